"""The folder that an export goes to: whole or not at all, and nobody else's."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from run_builder import RunBuilder, simple_run
from tdbg.cli import _tdbg
from tdbg.errors import ConfigurationError, NotARun, StorageError
from tdbg.export import export_tensorboard
from tdbg.export.event_files import ExportFolder
from tdbg.trial import create_trial
from tensorboard_helpers import KeyValueStore, files


@pytest.fixture
def run(run_dir: Path) -> Path:
    simple_run(run_dir, steps=range(5))
    return run_dir


def folder_of(run: Path, out: Path, **options: Any) -> ExportFolder:
    trial = create_trial(run)
    return ExportFolder(out, trial.uuid, trial.created, **options)


@contextmanager
def no_file_larger_than(n_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_export_of_another_run_is_refused_unless_it_may_be_beside(
    run: Path, tmp_path: Path
) -> None:
    out, other = tmp_path / "tb", tmp_path / "other"
    simple_run(other, steps=range(2))
    export_tensorboard(run, out)
    before = files(out)
    with pytest.raises(ConfigurationError, match=r"export of another run .* choose"):
        export_tensorboard(other, out)
    assert files(out) == before
    export_tensorboard(other, out, beside=True)
    assert len(files(out)) == 2
    assert before.items() <= files(out).items()


def test_one_export_writes_into_a_folder_at_a_time(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "tb"
    with folder_of(run, out), pytest.raises(StorageError, match="another export"):
        export_tensorboard(run, out)
    export_tensorboard(run, out)


def test_an_export_that_fails_leaves_the_earlier_one_as_it_was(
    run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tb"
    export_tensorboard(run, out, histograms="none", statistics=["l2"])
    before = files(out)
    with no_file_larger_than(2000), pytest.raises(StorageError, match="cannot write"):
        export_tensorboard(run, out)
    assert files(out) == before


def test_what_a_killed_export_left_is_removed(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "tb"
    code = (
        "import os, sys; from pathlib import Path\n"
        "from tdbg.export.event_files import ExportFolder\n"
        "folder = ExportFolder(Path(sys.argv[1]), sys.argv[2], '')\n"
        "folder.begin('TRAIN').append(b'half a file')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    uuid = create_trial(run).uuid
    killed = subprocess.run([sys.executable, "-c", code, out, uuid], check=False)
    assert killed.returncode == -9
    (name,) = files(out)
    assert name.endswith(".tmp")
    export_tensorboard(run, out)
    (name,) = files(out)
    assert name.startswith("TRAIN/events.out.tfevents.")


def test_a_folder_that_cannot_be_written_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "tb"):
        with pytest.raises(StorageError, match=r"cannot make .*file"):
            export_tensorboard(run, out)
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "TRAIN").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*tb/TRAIN"):
        export_tensorboard(run, tmp_path / "tb")


def test_a_run_does_not_say_where_else_to_write(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (run / "tensorboard").symlink_to(target)
    with pytest.raises(StorageError, match="symbolic link"):
        export_tensorboard(run)
    (run / "tensorboard").unlink()
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "TRAIN").symlink_to(target)
    with pytest.raises(StorageError, match="symbolic link"):
        export_tensorboard(run)
    assert not list(target.iterdir())


def test_without_the_package_it_says_how_to_get_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorboard", "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tdbg\[tensorboard\]'"):
        export_tensorboard(run)
    assert not (run / "tensorboard").exists()


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotARun):
        export_tensorboard(tmp_path / "run", tmp_path / "tb")
    assert not (tmp_path / "tb").exists()


def test_damage_is_counted_and_everything_else_exported(run_dir: Path) -> None:
    with RunBuilder(run_dir, codec="none") as builder:
        for step in range(5):
            for name in ("first", "second"):
                builder.save(step, name, np.full(4096, step + 1.5, np.float32))
            builder.end_step(step)
    shard = next(run_dir.glob("w/train-*/000001.tds"))
    content = bytearray(shard.read_bytes())
    at = content.find(np.full(512, 3.5, np.float32).tobytes())
    content[at + 1000] ^= 0x40
    shard.write_bytes(content)
    report = export_tensorboard(run_dir, statistics=["max"])
    assert (report.unreadable, report.histograms, report.complete) == (1, 9, True)
    board = KeyValueStore(run_dir / "tensorboard" / "TRAIN")
    assert len(board.scalars("weights/first/max")) == 5
    assert len(board.histograms("weights/second")) == 5


# ---- the command line ------------------------------------------------------------


def call(*arguments: object) -> Result:
    command = ["export", "tensorboard", *(str(each) for each in arguments)]
    return CliRunner().invoke(_tdbg, command)


def test_the_verb_exports_and_says_what(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "tb"
    options = ("--out", out, "--regex", "^fc", "--statistics", "l2,nan")
    result = call(run, *options, "--statistics", "max", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (
        document
        == export_tensorboard(
            run, out, regex="^fc", statistics=["l2", "nan", "max"]
        ).to_json()
    )
    assert KeyValueStore(out / "TRAIN").scalar_tags == {
        f"weights/fc.weight/{name}" for name in ("l2", "nan", "max")
    }
    shown = call(run, "--out", out, "--histograms", "stored", "--steps", "mode")
    assert shown.exit_code == 0
    assert "5 steps, no numbers and no histograms" in shown.stdout
    assert f"tensorboard --logdir {out}" in shown.stdout


def test_the_verb_follows_to_the_end(run: Path) -> None:
    result = call(run, "--follow", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["complete"]
    assert (run / "tensorboard" / "TRAIN").is_dir()


def test_the_verb_tells_a_wrong_line_from_a_run_that_cannot_be_read(
    run: Path, tmp_path: Path
) -> None:
    wrong = call(run, "--statistics", "l3")
    assert (wrong.exit_code, "unknown 'l3'" in wrong.stderr) == (2, True)
    assert call(run, "--histograms", "some").exit_code == 2
    assert call(tmp_path / "nothing").exit_code == 3
    (tmp_path / "file").write_text("")
    unwritable = call(run, "--out", tmp_path / "file" / "tb")
    assert (unwritable.exit_code, "cannot make" in unwritable.stderr) == (3, True)
