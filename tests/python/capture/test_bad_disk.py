"""A disk that hangs, crawls or refuses holds no training up, whoever asks it."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bad_disk import FOR_EVER, WRITES, BadDisk, build_bad_disk
from tdbg.trial import create_trial

PROGRAM = Path(__file__).parents[1] / "helpers" / "programs" / "train_on_bad_disk.py"
# A training that is kept by its disk never ends.
HANGS_SECONDS = 100.0


class Program:
    """Trains by cases, in a process that has PyTorch loaded."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder / "runs"
        self.folder.mkdir()
        disk = BadDisk(folder / "control")
        self._errors = folder / "errors"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self.folder), str(disk.path)],
                env=disk.environment(library, self.folder)
                | {"PYTHONPATH": str(PROGRAM.parents[1])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
            )
        self._number = 0

    def train(self, case: dict[str, Any] | None) -> dict[str, Any]:
        given, said = self._process.stdin, self._process.stdout
        assert given is not None
        assert said is not None
        print(json.dumps(case), file=given, flush=True)
        ready, _, _ = select.select([said], [], [], HANGS_SECONDS)
        assert ready, f"the training hangs: {case}"
        line = said.readline()
        assert line, self._errors.read_text()
        result: dict[str, Any] = json.loads(line)
        assert result["status"] == 0, self._errors.read_text()
        result["run"] = self.folder / str(self._number)
        self._number += 1
        return result

    def end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("bad_disk")
    library = build_bad_disk(folder)
    if library is None:
        pytest.skip("there is no C compiler")
    program = Program(folder, library)
    yield program
    program.end()


@pytest.fixture(scope="module")
def digest(program: Program) -> str:
    """Of the parameters that a training without tdbg ends with."""
    return str(program.train(None)["digest"])


def check(result: dict[str, Any], digest: str) -> dict[str, int]:
    """What holds whatever the disk does; returns the counters."""
    assert result["digest"] == digest
    counters: dict[str, int] = result["counters"]
    assert counters["internal_errors"] == 0
    ended = counters["written"] + counters["dropped"] + counters["failed"]
    assert ended == counters["offered"] > 100
    # The thread of the training asks a disk for nothing, once the hook is made.
    assert result["by_training"] == 0
    starts = [text for text in result["warnings"] if "is losing" in text]
    assert len(starts) <= 1, result["warnings"]
    return counters


@pytest.mark.torch
@pytest.mark.slow
def test_a_disk_that_hangs_costs_data_and_not_the_training(
    program: Program, digest: str
) -> None:
    result = program.train({"delay": FOR_EVER})
    counters = check(result, digest)
    assert not result["closed"]
    assert counters["written"] < counters["offered"]
    lost = [text for text in result["warnings"] if "tdbg lost" in text]
    assert len(lost) == 1
    assert result["stop"] is None


@pytest.mark.torch
@pytest.mark.slow
def test_a_slow_disk_costs_what_it_does_not_take_in_time(
    program: Program, digest: str
) -> None:
    result = program.train({"delay": 100})
    counters = check(result, digest)
    assert not result["closed"] or counters["written"] == counters["offered"]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [errno.EIO, errno.ESTALE, errno.EROFS, errno.EDQUOT, errno.ENOSPC]
)
def test_a_disk_that_refuses_to_the_end_is_told_once_and_counted(
    program: Program, digest: str, number: int
) -> None:
    which = {} if number in (errno.EIO, errno.ESTALE) else {"which": WRITES}
    result = program.train({"error": number, **which})
    counters = check(result, digest)
    assert counters["last_errno"] == number
    (start, end) = result["warnings"]
    assert os.strerror(number) in start
    assert end.startswith("tdbg lost ")
    # What was written before is read.  Nothing could be said of the rest, not even
    # that the training has closed it.
    trial = create_trial(result["run"])
    assert trial.steps()
    assert trial.status == "dead"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {"error": errno.ENOSPC, "which": WRITES},
        {"error": errno.ESTALE},
        {"delay": FOR_EVER},
    ],
    ids=["full", "stale", "hangs"],
)
def test_a_disk_that_recovers_is_written_to_again_and_requests_are_heard(
    program: Program, digest: str, case: dict[str, Any]
) -> None:
    result = program.train({**case, "until": 30})
    counters = check(result, digest)
    assert result["stop"] == "the disk is well again"
    assert result["closed"] or counters["failed"] > 0
    trial = create_trial(result["run"])
    assert trial.status == "closed"
    assert trial.steps(what="any")[-1] >= 45
    lost = counters["dropped"] + counters["failed"]
    assert trial.lost_records().records == lost
    table = trial.step_table()
    assert int(table["failed"].sum() + table["dropped"].sum()) <= lost
