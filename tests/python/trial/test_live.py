"""A trial that follows a training in another process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.errors import NoMoreData, StepUnavailable
from tdbg.modes import ModeKeys
from tdbg.trial import StepState, Trial, create_trial

HELPERS = Path(__file__).parents[1] / "helpers"
N_STEPS = 300

# Steps 0, 1, 2, ... with an evaluation at every tenth; the value tells the step.
# Prints each step when it is flushed, and ends as it is told to.
PROGRAM = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import numpy as np
from run_builder import RunBuilder
from tdbg.modes import ModeKeys
run = RunBuilder(Path(sys.argv[1]), flush_interval=0.005)
for step in range(int(sys.argv[2])):
    mode = ModeKeys.EVAL if step % 10 == 9 else ModeKeys.TRAIN
    arrays = {f"w{i}": np.full(50, step + i, np.float32) for i in range(20)}
    run.step(step, arrays, mode)
    if sys.argv[4] == "paced" and step % 10 == 9:
        run.flush()
        sys.stdin.readline()
    time.sleep(0.002)
if sys.argv[4] == "kill":
    run.flush()
    os.kill(os.getpid(), 9)
if sys.argv[4] == "wait":
    run.flush()
    print("flushed", flush=True)
    sys.stdin.readline()
run.close()
"""


@contextmanager
def training(
    run_dir: Path, n_steps: int = N_STEPS, end: str = "close"
) -> Iterator[subprocess.Popen[str]]:
    """A process that writes to *run_dir*."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(run_dir), str(n_steps), str(HELPERS), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def go_on(process: subprocess.Popen[str]) -> None:
    """Let a process that is paced write ten more steps."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # It has ended.
        process.stdin.write("\n")
        process.stdin.flush()


def check_step(trial: Trial, step: int) -> None:
    """All that was saved at *step* is there, and right."""
    assert trial.tensor_names(step=step, mode="GLOBAL") == sorted(
        f"w{i}" for i in range(20)
    )
    for i in (0, 19):
        tensor = trial.tensor(f"w{i}")
        assert np.all(tensor.value(step, "GLOBAL") == step + i)
        assert tensor.reduction_value(step, "max", "GLOBAL") == step + i
    expected = ModeKeys.EVAL if step % 10 == 9 else ModeKeys.TRAIN
    assert trial.mode(step) is expected


def test_following_sees_every_step_once_whole_and_in_order(run_dir: Path) -> None:
    """Sabotage that it caught: no poll any more once the writer has ended."""
    seen: list[int] = []
    statistics_seen = 0
    growths = 0
    with training(run_dir, end="paced") as process:
        trial = create_trial(run_dir, wait=60.0)
        while True:
            ended = trial.loaded_all_steps
            start = seen[-1] + 1 if seen else 0
            table = trial.step_table(start)
            new = table["step"][table["settled"]].tolist()
            growths += bool(new)
            rows = trial.statistics(start=start, end=new[-1] + 1 if new else start)
            statistics_seen += int(rows.present.sum())
            for step in new:
                assert trial.has_passed_step(step, "GLOBAL") is StepState.AVAILABLE
            if new:
                check_step(trial, new[-1])
                go_on(process)
            seen += new
            if ended and not new:
                break
            time.sleep(0.002)
    assert seen == list(range(N_STEPS))
    assert statistics_seen == 20 * N_STEPS
    assert growths >= 20
    assert trial.status == "closed"
    assert trial.problems() == []
    for step in seen:
        check_step(trial, step)


def test_a_step_passes_from_not_yet_to_available_only(run_dir: Path) -> None:
    order = [StepState.NOT_YET_AVAILABLE, StepState.AVAILABLE]
    with training(run_dir, 200, "paced") as process:
        trial = create_trial(run_dir, wait=60.0)
        states: list[list[StepState]] = [[] for _ in range(200)]
        while not states[199] or states[199][-1] is not StepState.AVAILABLE:
            for step in range(0, 200, 7):
                states[step].append(trial.has_passed_step(step, "GLOBAL"))
            states[199].append(trial.has_passed_step(199, "GLOBAL"))
            go_on(process)
    met = 0
    for of_step in states:
        known = [order.index(state) for state in of_step]
        assert known == sorted(known)
        met += len(set(known)) == 2
    assert met >= 5
    assert trial.has_passed_step(500, "GLOBAL") is StepState.UNAVAILABLE


def test_waiting_wakes_up_and_ends_with_the_training(run_dir: Path) -> None:
    with training(run_dir, 150):
        trial = create_trial(run_dir, wait=60.0)
        for step in (0, 60, 149):
            trial.wait_for_steps([step], "GLOBAL", timeout=60.0)
            check_step(trial, step)
        trial.wait_for_steps([14], mode=ModeKeys.EVAL, timeout=60.0)
        with pytest.raises(NoMoreData, match=r"step 150 .* its last is 149"):
            trial.wait_for_steps([150], "GLOBAL", timeout=60.0)
        with pytest.raises(NoMoreData, match=r"step 15 .*EVAL.* its last is 14"):
            trial.wait_for_steps([15], mode=ModeKeys.EVAL, timeout=60.0)
    with pytest.raises(StepUnavailable, match="step -1"):
        trial.wait_for_steps([-1])


def test_a_killed_training_keeps_its_flushed_steps_and_is_dead(run_dir: Path) -> None:
    with training(run_dir, 40, "kill") as process:
        trial = create_trial(run_dir, wait=60.0)
        with pytest.raises(NoMoreData):
            trial.wait_for_steps([39, 40], "GLOBAL", timeout=60.0)
        assert process.wait(60) == -9
    assert trial.status == "dead"
    assert trial.loaded_all_steps
    assert trial.steps("GLOBAL") == list(range(40))
    for step in range(40):
        check_step(trial, step)


def test_a_trial_opened_late_and_one_that_followed_agree(run_dir: Path) -> None:
    with training(run_dir, 100, "wait") as process:
        following = create_trial(run_dir, wait=60.0)
        following.wait_for_steps([99], "GLOBAL", timeout=60.0)
        assert process.stdout is not None
        assert process.stdout.readline() == "flushed\n"
        assert following.status == "running"
        late = create_trial(run_dir)
        assert late.steps("GLOBAL") == following.steps("GLOBAL") == list(range(100))
        process.communicate("\n")
        assert late.status == following.status == "closed"
        ours, theirs = late.statistics(), following.statistics()
        np.testing.assert_array_equal(ours.m2, theirs.m2)
        np.testing.assert_array_equal(late.step_table(), following.step_table())


def test_the_example_in_the_guide_runs(tmp_path: Path, repository: Path) -> None:
    array = np.ones((2, 3), np.float32)
    with RunBuilder(tmp_path / "runs" / "digits") as run:
        for step in range(101):
            run.step(step, {"0.weight": array, "2.weight": array})
    guide = (repository / "docs" / "reading.md").read_text()
    _, _, rest = guide.partition("```python\n")
    example, _, _ = rest.partition("```")
    assert "create_trial" in example
    command = [sys.executable, "-c", example]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=60)
