"""A link to a run that is made later goes with its process, at the latest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tdbg.profiler.later_run import LaterRun

PROGRAM = """
import os, sys, time
from pathlib import Path
from tdbg.profiler.later_run import LaterRun
run = LaterRun()
run.lead_to(Path.cwd())
print(run.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def other(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )


def test_the_link_of_a_killed_process_goes_with_the_next_run(
    folder: Path, other: subprocess.Popen[str]
) -> None:
    assert other.stdout is not None
    left = Path(other.stdout.readline().strip())
    assert left.is_symlink()
    mine = LaterRun()
    mine.lead_to(folder)
    assert left.is_symlink(), "the other process uses it"
    other.send_signal(signal.SIGKILL)
    other.wait()
    other.stdout.close()
    assert left.is_symlink()
    mine.lead_to(folder)
    assert not left.is_symlink()
    assert Path(mine.path).resolve() == folder.resolve()
    mine.forget()
    assert list(folder.iterdir()) == []


def test_what_may_be_of_others_stays(folder: Path) -> None:
    mine = LaterRun()
    head, tail = mine.path.split("-run-")[0], "0-0-" + 32 * "a"
    of_a_container = Path(f"{head}-run-pid1-{tail}")
    of_somebody = folder / "tdbg-run-mine"
    for each in (of_a_container, of_somebody):
        each.symlink_to(folder)
    dead = Path(
        f"{head}-run-{Path(mine.path).name.split('-')[2]}-{1 << 30}-7-{tail[4:]}"
    )
    dead.mkdir()
    mine.lead_to(folder)
    assert of_a_container.is_symlink()
    assert of_somebody.is_symlink()
    assert dead.is_dir()
    mine.forget()
