"""A process that tdbg watches ends as it would have ended without."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tdbg import _core
from tdbg.run.directory import open_run, writer_directories

PROGRAM = Path(__file__).parents[1] / "helpers" / "programs" / "exit_scenario.py"
STEPS = 40
FLUSHED = 20

# Ways to end that leave Python time to run its exit handlers.
CLEAN = [
    "return",
    "closed",
    "exception",
    "exit-0",
    "exit-3",
    "exit-text",
    "keyboard-interrupt",
    "exit-in-thread",
    "exit-in-atexit",
    "handled-sigterm",
]
# An end may take five seconds where the disk hangs; the rest is for a busy machine.
SOON = 30.0
ABRUPT = ["os-exit-7", "abort", "exec"] + [
    f"SIG{name}" for name in ("TERM", "KILL", "HUP", "SEGV", "QUIT")
]


def run_program(
    how: str, run: str, marks: Path, *options: str, **environment: str
) -> tuple[int, float]:
    """Its return code, and how long it took from its end mark to its end."""
    result = subprocess.run(
        [sys.executable, str(PROGRAM), how, run, str(marks), *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    ended = time.time()
    for trace in ("terminate called", "PyGILState", "Fatal Python error: PyEval"):
        assert trace not in result.stderr
    *_, last = marks.read_text().splitlines()
    assert last.startswith("end "), result.stderr
    return result.returncode, ended - float(last.split()[1])


def read_back(run_dir: Path) -> tuple[list[int], _core.RunReader]:
    """Steps whose row and value are both there and right."""
    run = open_run(run_dir)
    (writer,) = writer_directories(run)
    reader = _core.RunReader(str(writer.path), run.uuid)
    kinds = {problem.kind for problem in reader.problems()}
    assert kinds <= {"torn_tail"}, [problem.message for problem in reader.problems()]
    rows = {int(row["step"]): float(row["mean"]) for row in reader.rows()}
    good = []
    for index, entry in enumerate(reader.tensors()):
        step = int(entry["step"])
        values = reader.read_tensor(index).view(np.float32)
        assert (values == step).all()
        if step in reader.steps()["step"]:
            assert rows[step] == step
            good.append(step)
    return good, reader


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], int]:
    """The return code without tdbg, found out once for each way to end."""

    @functools.cache
    def run(how: str) -> int:
        return run_program(how, "off", tmp_path_factory.mktemp("off") / "marks")[0]

    return run


@pytest.mark.parametrize("how", CLEAN)
def test_a_clean_end_is_unchanged_and_loses_nothing(
    how: str, run_dir: Path, tmp_path: Path, unwatched: Callable[[str], int]
) -> None:
    """Sabotage that it caught: a capture that is leaked instead of closed."""
    without = unwatched(how)
    with_tdbg, delay = run_program(how, str(run_dir), tmp_path / "on")
    assert with_tdbg == without
    assert delay < SOON
    steps, reader = read_back(run_dir)
    assert steps == list(range(STEPS))
    assert reader.liveness() == "closed"
    assert reader.problems() == []


@pytest.mark.parametrize("how", ABRUPT)
def test_an_abrupt_end_is_unchanged_and_loses_at_most_the_queue(
    how: str, run_dir: Path, tmp_path: Path, unwatched: Callable[[str], int]
) -> None:
    without = unwatched(how)
    with_tdbg, delay = run_program(how, str(run_dir), tmp_path / "on")
    assert with_tdbg == without != 0
    assert delay < SOON
    steps, reader = read_back(run_dir)
    assert steps == list(range(len(steps))), "only the last may be missing"
    assert len(steps) >= FLUSHED
    # exec keeps the process, but ends the writer all the same.
    assert reader.liveness() == "dead"


@pytest.mark.torch
@pytest.mark.parametrize(
    "how",
    [
        "return",
        "SIGKILL",
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in ("exception", "keyboard-interrupt", "SIGTERM")
        ),
    ],
)
def test_a_hooked_training_ends_as_it_would_have_ended(
    how: str, run_dir: Path, tmp_path: Path, unwatched: Callable[[str], int]
) -> None:
    without = unwatched(how)
    with_tdbg, delay = run_program(how, str(run_dir), tmp_path / "on", "torch")
    assert with_tdbg == without
    assert delay < SOON
    run = open_run(run_dir)
    (writer,) = writer_directories(run)
    reader = _core.RunReader(str(writer.path), run.uuid)
    assert {problem.kind for problem in reader.problems()} <= {"torn_tail"}
    steps = reader.steps()["step"].tolist()
    assert steps == list(range(len(steps)))
    if how in CLEAN:
        assert len(steps) >= STEPS
        assert reader.steps()["dropped"].sum() == 0
        assert reader.liveness() == "closed"
    else:
        assert len(steps) >= FLUSHED - 1, "the last may still have been open"
        assert reader.liveness() == "dead"


def test_a_capture_that_is_never_closed_harms_nobody(
    run_dir: Path, tmp_path: Path
) -> None:
    code, delay = run_program("never-closed", str(run_dir), tmp_path / "on")
    assert code == 0
    assert delay < SOON
    steps, _ = read_back(run_dir)
    assert len(steps) >= FLUSHED


def test_daemon_threads_that_record_during_the_end_harm_nobody(
    tmp_path: Path,
) -> None:
    """Sabotage that it caught: a ReleaseGil that lets the unwinding through."""
    for repeat in range(3):
        run_dir = tmp_path / f"run-{repeat}"
        code, delay = run_program(
            "daemon-threads", str(run_dir), tmp_path / f"marks-{repeat}"
        )
        assert code == 0
        assert delay < SOON
        assert open_run(run_dir)


def test_a_hung_disk_delays_the_end_by_five_seconds_at_most(
    run_dir: Path, tmp_path: Path, io_fault: dict[str, str]
) -> None:
    """Sabotage that it caught: Writer::Close waiting 30 s longer."""
    counters = tmp_path / "counters"
    environment = {
        **io_fault,
        "IO_FAULT_PREFIX": str(run_dir / "w"),
        "IO_FAULT_COUNTERS": str(counters),
    }
    marks = tmp_path / "marks"
    run_program("return", str(run_dir), marks, **environment)
    calls = int(np.fromfile(counters, np.uint64)[0])
    assert calls > 10
    hung = False
    # How many calls the end makes depends on how the data came to be batched: go
    # back from the last one until one is met.
    for at in range(calls, calls - 8, -1):
        other = tmp_path / f"run-{at}"
        code, delay = run_program(
            "hung",
            str(other),
            marks,
            **{
                **environment,
                "IO_FAULT_PREFIX": str(other / "w"),
                "IO_FAULT_COUNTERS": str(tmp_path / f"counters-{at}"),
                "IO_FAULT_AT": str(at),
                "IO_FAULT_ERRNO": "hang",
                "IO_FAULT_FOREVER": "1",
            },
        )
        assert code == 0
        assert delay < SOON
        hung = delay > 4.5  # Five seconds are waited then.
        if hung:
            break
    assert hung, "no exit met the hung disk: the test proves nothing"


def test_no_signal_handler_is_installed(run_dir: Path) -> None:
    script = (
        "import signal, sys\n"
        "def handlers():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return [l for l in lines if l.startswith(('SigCgt', 'SigIgn'))]\n"
        # The C library takes a signal of its own with the first thread of all.
        "import threading\n"
        "thread = threading.Thread(target=int); thread.start(); thread.join()\n"
        "before = handlers()\n"
        "from tdbg import _core; from tdbg.run.directory import create_run\n"
        "run = create_run(sys.argv[1])\n"
        "capture = _core.Capture(sys.argv[1], run_uuid=run.uuid,"
        " attempt_uuid=bytes(16))\n"
        "assert handlers() == before\n"
        "capture.close()\n"
        "assert handlers() == before\n"
    )
    command = [sys.executable, "-c", script, str(run_dir)]
    assert subprocess.run(command, check=False).returncode == 0
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
