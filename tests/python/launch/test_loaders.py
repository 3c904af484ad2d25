"""``tdbg run`` measures the loader of a training from its first epoch on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tdbg.pytorch import create_trial
from tdbg.run.stacks import ask_for_stacks

pytestmark = pytest.mark.torch
PROGRAM = str(Path(__file__).parents[1] / "helpers" / "programs" / "slow_worker.py")


def command(run_dir: Path, *arguments: str, profiler: str = "on") -> list[str]:
    given = ["--out", str(run_dir), "--profiler", profiler]
    program = ["--", sys.executable, PROGRAM, *arguments]
    return [sys.executable, "-m", "tdbg", "run", *given, *program]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_fetches_in_workers_that_started_before_the_training_was_found_are_measured(
    run_dir: Path, method: str
) -> None:
    subprocess.run(command(run_dir, "-1", method), check=True, timeout=120)
    rows = create_trial(run_dir).profile.workers()
    assert len(rows) == 15  # Before the first batch nobody knew of the training.
    assert rows["fetch_ns"].min() >= 4 * 1_000_000


def test_a_profiler_that_is_off_measures_no_workers(run_dir: Path) -> None:
    subprocess.run(
        command(run_dir, "-1", "fork", profiler="off"), check=True, timeout=120
    )
    assert len(create_trial(run_dir).profile.workers()) == 0


def test_a_worker_of_the_first_epoch_says_where_it_stands_still(run_dir: Path) -> None:
    process = subprocess.Popen(command(run_dir, "32", "fork"))
    try:
        limit = time.monotonic() + 90
        while "stand_still" not in _calls_of_workers(run_dir):
            assert time.monotonic() < limit, "no worker says that it stands still"
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(30)


def _calls_of_workers(run_dir: Path) -> set[str]:
    if not (run_dir / "ctl").is_dir():
        return set()
    workers = [each for each in ask_for_stacks(run_dir) if each.kind == "worker"]
    threads = [thread for worker in workers for thread in worker.threads]
    return {frame.function for each in threads for frame in each.frames}
