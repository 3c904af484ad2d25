from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from tdbg.errors import NotARun, StorageError, TdbgError, UnsupportedFeature
from tdbg.run import directory
from tdbg.run.directory import (
    create_run,
    find_runs,
    fingerprint,
    open_run,
    writer_directories,
)


def test_a_new_run_is_private_and_says_what_it_is(run_dir: Path) -> None:
    run = create_run(run_dir)
    content = json.loads((run_dir / "RUN.json").read_text())
    assert content["format"] == "tdbg-run"
    assert content["version"] == 1
    assert bytes.fromhex(content["uuid"]) == run.uuid
    assert content["created"].endswith("Z")
    for folder in (run_dir, run_dir / "ctl", run_dir / "w"):
        assert folder.stat().st_mode & 0o077 == 0
    assert (run_dir / "RUN.json").stat().st_mode & 0o077 == 0
    names = sorted(entry.name for entry in run_dir.iterdir())
    assert names == ["RUN.json", "ctl", "w"]


def test_a_run_that_is_there_is_joined(run_dir: Path) -> None:
    assert create_run(run_dir) == create_run(run_dir) == open_run(run_dir)


def test_of_processes_that_race_all_get_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage that it caught: os.replace instead of os.link."""
    lost = []
    link = os.link

    def counting_link(source: Path, target: Path) -> None:
        try:
            link(source, target)
        except FileExistsError:
            lost.append(target)
            raise

    monkeypatch.setattr(os, "link", counting_link)
    for round_ in range(30):
        path = tmp_path / str(round_)
        barrier = threading.Barrier(8)
        uuids: list[bytes] = []

        def join(
            path: Path = path,
            barrier: threading.Barrier = barrier,
            uuids: list[bytes] = uuids,
        ) -> None:
            barrier.wait()
            uuids.append(create_run(path).uuid)

        threads = [threading.Thread(target=join) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(uuids) == 8
        assert len(set(uuids)) == 1
        assert not list(path.glob(".tmp-*"))
    assert lost, "nobody lost a race: the test proves nothing"


def test_a_file_system_without_hard_links_will_do(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_source: Path, _target: Path) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    run = create_run(run_dir)
    assert create_run(run_dir) == run


def test_a_run_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file/run") as caught:
        create_run(tmp_path / "file" / "run")
    assert caught.value.errno in {errno.ENOTDIR, errno.EEXIST}


def test_what_is_no_run_is_named_with_the_nearest_thing_that_is(
    tmp_path: Path,
) -> None:
    create_run(tmp_path / "runs" / "digits")
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("")
    expected = {
        "runs/digit": "did you mean .*runs/digits",
        "runs/digits/w": "lies inside one; did you mean .*runs/digits",
        "runs/digits/w/train-0-1": "lies inside one; did you mean .*runs/digits",
        "runs": "contains 1 of them; did you mean .*runs/digits",
        "runs/other": "has no RUN.json",
        "runs/notes.txt": "it is a file",
        "nowhere/at/all": "neither it nor .* exists",
    }
    for path, hint in expected.items():
        with pytest.raises(NotARun, match=hint) as caught:
            open_run(tmp_path / path)
        assert str(tmp_path / path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"null",
        b"{}",
        b'{"format": "other", "version": 1, "uuid": "", "created": ""}',
        b'{"format": "tdbg-run", "version": 1, "uuid": "12", "created": ""}',
        b'{"format": "tdbg-run", "version": null, "uuid": 1, "created": ""}',
        b"[" * 60_000,
        b"\xff\xfe\x00",
    ],
)
def test_a_bad_run_file_is_no_run(run_dir: Path, content: bytes) -> None:
    run_dir.mkdir()
    (run_dir / "RUN.json").write_bytes(content)
    with pytest.raises(NotARun, match=r"RUN\.json"):
        open_run(run_dir)


def test_a_run_of_a_later_format_is_refused_as_such(run_dir: Path) -> None:
    create_run(run_dir)
    file = run_dir / "RUN.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "version": 2}))
    with pytest.raises(UnsupportedFeature, match="format 2"):
        open_run(run_dir)


def test_no_byte_of_the_run_file_raises_anything_untyped(run_dir: Path) -> None:
    create_run(run_dir)
    file = run_dir / "RUN.json"
    original = file.read_bytes()
    refused = 0
    for position in range(len(original)):
        for value in (0, 0x20, 0x22, 0x7B, 0x80, 0xFF, original[position] ^ 1):
            changed = bytearray(original)
            changed[position] = value
            file.write_bytes(changed)
            try:
                open_run(run_dir)
            except TdbgError:
                refused += 1
    assert refused > len(original)


def test_only_a_small_regular_file_is_read(run_dir: Path) -> None:
    create_run(run_dir)
    file = run_dir / "RUN.json"
    elsewhere = run_dir.parent / "elsewhere.json"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    with pytest.raises(StorageError):
        open_run(run_dir)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(StorageError, match="not a regular file"):
        open_run(run_dir)
    file.unlink()
    file.mkdir()
    with pytest.raises(StorageError, match="not a regular file"):
        open_run(run_dir)
    file.rmdir()
    file.write_bytes(elsewhere.read_bytes() + b" " * 70_000)
    with pytest.raises(StorageError, match="64 KiB"):
        open_run(run_dir)


def test_writer_directories_are_found_by_name_and_ordered(run_dir: Path) -> None:
    run = create_run(run_dir)
    good = ["engine-0-1", "train-0-2", "train-0-10", "train-2-1", "train-10-1"]
    bad = ["train-0-0", "train-00-1", "train-0", "spy-0-1", "train-0-1.tmp", "x"]
    for name in good + bad:
        (run_dir / "w" / name).mkdir()
    (run_dir / "w" / "train-5-1").symlink_to(run_dir / "w" / "train-0-2")
    (run_dir / "w" / "train-6-1").write_text("")
    found = writer_directories(run)
    assert [writer.path.name for writer in found] == good
    assert found[1].name == "train-0"
    assert (found[2].role, found[2].rank, found[2].generation) == ("train", 0, 10)
    assert writer_directories(run_dir) == found
    (run_dir / "w").rename(run_dir / "v")
    assert writer_directories(run_dir) == []


def test_runs_below_a_folder_are_found(tmp_path: Path) -> None:
    for name in ("b", "a/one", "a/two", "a/b/c/too-deep"):
        create_run(tmp_path / name)
    create_run(tmp_path / "b" / "inside-another")
    (tmp_path / "loop").symlink_to(tmp_path)
    names = [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)]
    assert names == ["a/one", "a/two", "b"]
    assert find_runs(tmp_path / "b") == [tmp_path / "b"]
    assert find_runs(tmp_path / "nowhere") == []
    assert directory.RUN_FILE == "RUN.json"


def test_a_folder_that_the_system_refuses_to_read_is_not_taken_for_one_without_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_run(tmp_path / "run")
    stat = Path.stat

    def refuse(path: Path, **options: bool) -> os.stat_result:
        if path.name == "RUN.json":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(StorageError, match=r"cannot read .*Input/output error"):
        find_runs(tmp_path / "run")


def test_the_names_of_new_folders_are_synced_up_to_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is flushed durably is lost with the name of a folder above it."""
    synced: list[Path] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))  # noqa: PTH115
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    run = tmp_path / "sweep" / "first" / "run"
    create_run(run)
    assert {run, run.parent, run.parent.parent, tmp_path} <= set(synced)
    assert tmp_path.parent not in synced
    synced.clear()
    create_run(run)
    assert synced == []


def test_a_fingerprint_is_another_one_when_a_file_came_went_or_was_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    create_run(path)
    seen = [fingerprint(path)]
    assert fingerprint(path) == seen[0]
    (path / "w").mkdir(exist_ok=True)
    (path / "w" / "more").write_bytes(b"1")
    seen.append(fingerprint(path))
    (path / "w" / "more").write_bytes(b"12")
    seen.append(fingerprint(path))
    (path / "w" / "more").unlink()
    seen.append(fingerprint(path))
    assert len(set(seen)) == 3
    assert seen[3] == seen[0]
