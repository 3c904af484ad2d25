from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shipped_runs import (
    check_promises,
    check_shipped,
    files_of,
    finished_run,
    named_by,
    newest_of,
    write_shards,
    writer_of,
)
from tdbg.errors import NotARun, StorageError
from tdbg.remote import Store, Uploader, open_store, request_mirror, shipment
from tdbg.remote import uploader as uploader_module
from tdbg.remote.attempts import Attempts, GivenUp
from tdbg.run.requests import request_stop


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(uploader_module, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(request_mirror, "POLL_SECONDS", 0.1)
    yield
    MemoryFileSystem.store.clear()


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}://{tmp_path}/there"


def ship(run: Path, url: str, *, empties: bool = False) -> Uploader:
    uploader = Uploader(run, url, empties=empties)
    uploader.prepare()
    assert uploader.run()
    return uploader


def test_a_run_that_has_ended_is_sent_whole(tmp_path: Path, url: str) -> None:
    original = finished_run(tmp_path / "run", 5)
    uploader = ship(tmp_path / "run", url)
    store = open_store(url)
    check_shipped(store, original)
    manifest = newest_of(store)["train-0-1"]
    assert manifest.state == "closed"
    assert manifest.commit_page == (tmp_path / "run/w/train-0-1/COMMIT").read_bytes()
    assert store.read("RUN.json") == (tmp_path / "run/RUN.json").read_bytes()
    assert uploader.progress().n_files == len(original)
    assert uploader.progress().pending_bytes == 0
    # A local run is left as it is.
    assert files_of(tmp_path / "run") == original


def test_a_spool_is_emptied_and_only_then(tmp_path: Path, url: str) -> None:
    original = finished_run(tmp_path / "run", 3)
    ship(tmp_path / "run", url, empties=True)
    assert files_of(tmp_path / "run") == {}
    check_shipped(open_store(url), original)


def test_a_second_time_nothing_is_sent_again(tmp_path: Path, url: str) -> None:
    original = finished_run(tmp_path / "run", 3)
    ship(tmp_path / "run", url)
    before = newest_of(open_store(url))["train-0-1"].number
    ship(tmp_path / "run", url)
    check_shipped(open_store(url), original)
    assert newest_of(open_store(url))["train-0-1"].number == before


def test_while_a_writer_lives_only_complete_shards_are_sent(
    tmp_path: Path, url: str
) -> None:
    writer = writer_of(tmp_path / "run")
    write_shards(writer, 2)
    uploader = Uploader(tmp_path / "run", url, empties=False)
    uploader.prepare()
    with following(uploader):
        store = open_store(url)
        wait_until(lambda: bool(sent(store)))
        shards = {file for file in sent(store) if file.endswith("s")}
        there = {path.name for path in (tmp_path / "run/w/train-0-1").glob("*.tds")}
        assert shards < there
        assert newest_of(store)["train-0-1"].state == "open"
        write_shards(writer, 3)
        writer.close()
        wait_until(lambda: newest_of(store)["train-0-1"].state == "closed")
    check_shipped(store, files_of(tmp_path / "run"))


def test_an_age_seals_what_is_little(tmp_path: Path, url: str) -> None:
    writer = writer_of(tmp_path / "run", shard_age=0.3)
    writer.event(0, 6, 1, b"{}")
    uploader = Uploader(tmp_path / "run", url, empties=True)
    uploader.prepare()
    with following(uploader):
        store = open_store(url)
        wait_until(lambda: sent(store) == ["000001.tds", "000001.tdi"])
        writer.close()


def test_of_a_writer_that_was_killed_the_last_shard_is_sent_as_it_is(
    tmp_path: Path, url: str
) -> None:
    kill_a_writer(tmp_path / "run")
    ship(tmp_path / "run", url)
    original = files_of(tmp_path / "run")
    check_shipped(open_store(url), original)
    assert newest_of(open_store(url))["train-0-1"].state == "dead"
    last = max(path for path in original if path.endswith(".tds"))
    assert b"the last words" in open_store(url).read(last)


def test_only_the_last_manifests_and_their_blocks_stay(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipment, "FILES_A_MANIFEST", 2)
    original = finished_run(tmp_path / "run", 9)
    ship(tmp_path / "run", url)
    names = [each.name.rpartition("/")[2] for each in open_store(url).list("m")]
    assert len([name for name in names if name.endswith(".json")]) == 4
    assert len([name for name in names if name.startswith("blocks-")]) <= 4
    check_shipped(open_store(url), original)


def test_block_objects_grow_and_are_joined(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipment, "FILES_A_MANIFEST", 2)
    monkeypatch.setattr(shipment, "GROWING_BYTES", 3_000)
    monkeypatch.setattr(shipment, "JOINED_BYTES", 9_000)
    original = finished_run(tmp_path / "run", 30)
    ship(tmp_path / "run", url)
    blocks = newest_of(open_store(url))["train-0-1"].blocks
    assert 2 <= len(blocks) <= 1 + sum(size for _, size in blocks) / 9_000 + 1
    check_shipped(open_store(url), original)


def test_a_thousand_shards_are_listed_by_two_objects(tmp_path: Path) -> None:
    url, run = f"memory://{tmp_path}/there", tmp_path / "run"
    original = finished_run(run, 3)
    folder = run / "w/train-0-1"
    shard, index = original["w/train-0-1/000001.tds"], folder / "000001.tdi"
    for number in range(len(original) // 2 + 1, 1001):
        (folder / f"{number:06}.tds").hardlink_to(folder / "000001.tds")
        (folder / f"{number:06}.tdi").hardlink_to(index)
    assert len(shard) > 100_000
    ship(run, url)
    manifest = newest_of(open_store(url))["train-0-1"]
    assert manifest.n_files == 2000
    assert len(manifest.blocks) <= 2


def test_writers_of_several_ranks_and_generations_are_all_sent(
    tmp_path: Path, url: str
) -> None:
    run = tmp_path / "run"
    finished_run(run, 2)
    finished_run(run, 1, rank=1)
    original = finished_run(run, 1)
    ship(run, url)
    assert set(newest_of(open_store(url))) == {"train-0-1", "train-0-2", "train-1-1"}
    check_shipped(open_store(url), original)


def test_a_spool_begins_where_other_machines_have_ended(
    tmp_path: Path, url: str
) -> None:
    finished_run(tmp_path / "first", 1)
    ship(tmp_path / "first", url)
    second = tmp_path / "second"
    second.mkdir()
    uploader = Uploader(second, url, empties=True)
    uploader.prepare()
    assert (second / "RUN.json").read_bytes() == open_store(url).read("RUN.json")
    original = finished_run(second, 1)
    assert {path.split("/")[1] for path in original} == {"train-0-2"}
    assert uploader.run()
    assert newest_of(open_store(url))["train-0-1"].state == "closed"


def test_another_run_at_the_url_is_refused(tmp_path: Path, url: str) -> None:
    finished_run(tmp_path / "one", 1)
    finished_run(tmp_path / "two", 1)
    ship(tmp_path / "one", url)
    uploader = Uploader(tmp_path / "two", url, empties=False)
    with pytest.raises(StorageError, match="are two different runs; send it to a URL"):
        uploader.prepare()


def test_another_writer_of_the_same_name_is_not_written_over(
    tmp_path: Path, url: str
) -> None:
    original = finished_run(tmp_path / "one", 2)
    ship(tmp_path / "one", url)
    two = tmp_path / "two"
    two.mkdir()
    (two / "RUN.json").write_bytes((tmp_path / "one/RUN.json").read_bytes())
    kill_a_writer(two)
    uploader = Uploader(two, url, empties=True)
    uploader.prepare()
    assert not uploader.run()
    assert (
        "another training writes train-0-1" in uploader.progress().writers["train-0-1"]
    )
    check_shipped(open_store(url), original)
    assert files_of(two)


def test_what_is_no_run_at_the_url_is_refused(tmp_path: Path, url: str) -> None:
    finished_run(tmp_path / "run", 1)
    open_store(url).write("RUN.json", b"{}")
    with pytest.raises(NotARun, match="not the description of a run"):
        Uploader(tmp_path / "run", url, empties=False).prepare()


def test_a_request_in_the_store_reaches_the_training(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    writer = writer_of(run)
    uploader = Uploader(run, url, empties=False)
    uploader.prepare()
    # What somebody far away writes, by a run of his that looks the same.
    far = tmp_path / "far"
    (far / "ctl").mkdir(parents=True)
    (far / "w/train-0-1").mkdir(parents=True)
    (far / "RUN.json").write_bytes((run / "RUN.json").read_bytes())
    request_stop(far, reason="enough")
    (request,) = (far / "ctl").glob("*.json")
    store = open_store(url)
    store.write(f"ctl/{request.name}", request.read_bytes())
    store.write("ctl/of-nobody.json", b"{}")
    store.write("ctl/stacks/ask", b"now")
    with following(uploader):
        wait_until((run / "ctl" / request.name).exists)
        assert (run / "ctl" / request.name).read_bytes() == request.read_bytes()
        wait_until((run / "ctl/stacks/ask").exists)
        (run / "ctl/stacks/rank-0-b-1.txt").write_bytes(b"tdbg-stacks 1 now\n")
        answers = "ctl/stacks/rank-0-b-1.txt"
        wait_until(lambda: answers in [each.name for each in store.list("ctl")])
        (run / "ctl/stacks/rank-0-b-1.txt").unlink()
        wait_until(lambda: answers not in [each.name for each in store.list("ctl")])
        writer.close()
    assert not (run / "ctl/of-nobody.json").exists()


class Killed(BaseException):
    """The process is gone at this point."""


def kills(at: int, after: bool) -> Callable[..., object]:
    """``Attempts.once``, with a process that is killed at its n-th request."""
    counter = itertools.count()
    once = Attempts.once

    def request(
        self: Attempts, ask: Callable[[Store], object], **given: object
    ) -> object:
        if next(counter) == at:
            if after:
                once(self, ask, **given)  # type: ignore[arg-type]
            raise GivenUp
        return once(self, ask, **given)  # type: ignore[arg-type]

    return request


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_an_uploader_that_is_killed_at_any_request_loses_and_forges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(shipment, "FILES_A_MANIFEST", 2)
    original = finished_run(tmp_path / "run", 4)
    n_kills = 0
    for at in itertools.count():
        url = f"memory://{tmp_path}/{at}-{after}"
        with monkeypatch.context() as patch:
            patch.setattr(Attempts, "once", kills(at, after))
            uploader = Uploader(tmp_path / "run", url, empties=False)
            try:
                uploader.prepare()
                ended = uploader.run()
            except StorageError:
                ended = False
        if ended:
            break
        n_kills += 1
        check_promises(open_store(url), original)
        ship(tmp_path / "run", url)
        check_shipped(open_store(url), original)
        MemoryFileSystem.store.clear()
    assert n_kills > 20


KILLED = """
import sys, time
from pathlib import Path
from shipped_runs import writer_of, write_shards
writer = writer_of(Path(sys.argv[1]))
write_shards(writer, 2)
writer.event(99, 6, 1, b'{"text": "the last words"}')
writer.flush()
print("written", flush=True)
time.sleep(100)
"""


def kill_a_writer(run: Path) -> None:
    """Have another process write to a run, and kill it."""
    helpers = str(Path(__file__).parents[1] / "helpers")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(run)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": helpers},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)


def sent(store: Store) -> list[str]:
    manifest = newest_of(store).get("train-0-1")
    return [] if manifest is None else [f.name for f in named_by(store, manifest)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class following:  # noqa: N801 - reads as a verb
    """An uploader that follows a run in a thread until the block is left."""

    def __init__(self, uploader: Uploader) -> None:
        self._needed = True
        self._thread = threading.Thread(
            target=uploader.run, kwargs={"is_needed": lambda: self._needed}
        )

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._needed = False
        self._thread.join(60)
        assert not self._thread.is_alive()
