"""Step states, waiting, refreshing: what a reader sees of a run that goes on."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder, simple_run
from tdbg.errors import (
    NoMoreData,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailableForStep,
)
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run
from tdbg.trial import StepState, Trial, create_trial

ONES = np.ones(3, np.float32)
UNAVAILABLE, AVAILABLE, NOT_YET = StepState


@pytest.fixture
def live(run_dir: Path) -> Iterator[RunBuilder]:
    """A worker that has saved the steps 0, 10 and 20, and goes on."""
    run = RunBuilder(run_dir)
    for step in (0, 10, 20):
        run.step(step, {"w": ONES})
    run.flush()
    yield run
    run.capture.close()


def test_states_have_the_numbers_of_smdebug() -> None:
    assert [(state.name, state.value) for state in StepState] == [
        ("UNAVAILABLE", 0),
        ("AVAILABLE", 1),
        ("NOT_YET_AVAILABLE", 2),
    ]


def test_a_step_is_there_or_never_will_be_or_may_come(
    run_dir: Path, live: RunBuilder
) -> None:
    trial = create_trial(run_dir)
    assert trial.has_passed_step(10) is AVAILABLE
    assert trial.has_passed_step(11) is UNAVAILABLE
    assert trial.has_passed_step(21) is NOT_YET
    assert trial.has_passed_step(10, ModeKeys.TRAIN) is AVAILABLE
    assert trial.has_passed_step(30, ModeKeys.TRAIN) is NOT_YET
    assert trial.has_passed_step(0, ModeKeys.EVAL) is NOT_YET
    assert (trial.status, trial.loaded_all_steps) == ("running", False)
    assert trial.last_complete_step == 20
    live.close()
    assert trial.has_passed_step(20) is AVAILABLE
    assert trial.has_passed_step(21) is UNAVAILABLE
    assert trial.has_passed_step(0, ModeKeys.EVAL) is UNAVAILABLE
    assert (trial.status, trial.loaded_all_steps) == ("closed", True)


def test_a_step_that_saved_nothing_is_passed_but_not_there(
    run_dir: Path, live: RunBuilder
) -> None:
    live.end_step(25)
    live.flush()
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 10, 20]
    assert trial.step_table()["step"].tolist() == [0, 10, 20, 25]
    assert trial.last_complete_step == 25
    assert trial.has_passed_step(22) is UNAVAILABLE
    assert trial.has_passed_step(25) is UNAVAILABLE
    assert trial.has_passed_step(26) is NOT_YET


def test_a_step_that_has_not_ended_is_incomplete(
    run_dir: Path, live: RunBuilder
) -> None:
    live.save(30, "w", ONES, what="values")
    live.flush()
    trial = create_trial(run_dir)
    assert trial.steps() == [0, 10, 20]
    assert trial.steps(show_incomplete_steps=True) == [0, 10, 20, 30]
    assert trial.tensor("w").steps(show_incomplete_steps=True) == [0, 10, 20, 30]
    assert trial.has_passed_step(30) is NOT_YET
    np.testing.assert_array_equal(trial.tensor("w").value(30), ONES)
    live.end_step(30)
    live.flush()
    assert trial.steps() == [0, 10, 20, 30]
    assert trial.has_passed_step(30) is AVAILABLE


def test_errors_tell_never_from_not_yet_and_no_more(
    run_dir: Path, live: RunBuilder
) -> None:
    trial = create_trial(run_dir)
    tensor = trial.tensor("w")
    with pytest.raises(StepUnavailable, match="nearest recorded is 10 or 20"):
        tensor.value(15)
    with pytest.raises(StepNotYetAvailable, match="the last is 20"):
        tensor.value(30)
    with pytest.raises(StepNotYetAvailable):
        tensor.stats(50, mode=ModeKeys.TRAIN)
    live.step(30, {"v": ONES})
    live.close()
    with pytest.raises(TensorUnavailableForStep):
        tensor.value(30)
    with pytest.raises(StepUnavailable):
        tensor.value(15)
    with pytest.raises(NoMoreData, match=r"step 31 .* its last is 30"):
        tensor.value(31)
    with pytest.raises(NoMoreData, match=r"step 0 \(mode EVAL\)"):
        tensor.reduction_value(0, "mean", mode=ModeKeys.EVAL)


def test_answers_stay_as_they_are_within_no_refresh(
    run_dir: Path, live: RunBuilder
) -> None:
    trial = create_trial(run_dir)
    with trial.no_refresh() as same:
        assert same is trial
        live.step(30, {"v": ONES})
        live.flush()
        time.sleep(0.01)
        assert trial.steps() == [0, 10, 20]
        assert not trial.has_tensor("v")
        assert trial.refresh()
        assert trial.steps() == [0, 10, 20, 30]
    time.sleep(0.01)
    assert trial.has_tensor("v")
    assert not trial.refresh()


def test_a_run_without_writers_is_empty_and_fills(run_dir: Path) -> None:
    create_run(run_dir)
    trial = create_trial(run_dir)
    assert trial.steps() == []
    assert trial.tensor_names() == []
    assert trial.workers() == []
    assert trial.status == "unknown"
    assert not trial.loaded_all_steps
    assert trial.last_complete_step == -1
    assert trial.has_passed_step(0) is NOT_YET
    assert trial.statistics().names == []
    assert len(trial.step_table()) == 0
    assert trial.overhead().share == 0.0
    assert trial.configuration() == {}
    simple_run(run_dir)
    time.sleep(0.01)
    assert trial.steps() == [0, 1, 2, 3, 4]


def test_a_writer_that_comes_within_a_tick_of_the_clock_is_seen(
    run_dir: Path,
) -> None:
    create_run(run_dir)
    trial = create_trial(run_dir)
    folder = run_dir / "w"
    before = folder.stat()
    assert not trial.refresh()
    simple_run(run_dir)
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert trial.refresh()
    assert trial.workers() == ["worker_0"]


def test_a_run_that_comes_into_being_is_waited_for(run_dir: Path) -> None:
    thread = threading.Timer(0.1, simple_run, [run_dir])
    thread.start()
    trial = create_trial(run_dir, wait=30.0)
    thread.join()
    trial.wait_for_steps([4], timeout=120.0)


# --- Waiting --------------------------------------------------------------


def test_waiting_returns_when_the_step_is_there(
    run_dir: Path, live: RunBuilder
) -> None:
    trial = create_trial(run_dir)

    is_written = threading.Event()

    def go_on() -> None:
        is_written.set()
        live.step(30, {"w": ONES})
        live.flush()

    thread = threading.Timer(0.2, go_on)
    thread.start()
    trial.wait_for_steps([0, 30], timeout=120.0)
    assert is_written.is_set()
    thread.join()
    trial.wait_for_steps([30], mode=ModeKeys.TRAIN, timeout=0.0)


def test_waiting_ends_at_its_timeout(run_dir: Path, live: RunBuilder) -> None:
    trial = create_trial(run_dir)
    started = time.monotonic()
    with pytest.raises(StepNotYetAvailable, match=r"step 30 .* in 0\.1 s"):
        trial.wait_for_steps([30], timeout=0.1)
    assert time.monotonic() - started >= 0.1
    assert live.capture.directory


def test_waiting_for_what_will_not_come_says_why(
    run_dir: Path, live: RunBuilder
) -> None:
    trial = create_trial(run_dir)
    with pytest.raises(StepUnavailable, match="step 15"):
        trial.wait_for_steps([10, 15], timeout=5.0)
    thread = threading.Timer(0.1, live.close)
    thread.start()
    with pytest.raises(NoMoreData, match="step 30"):
        trial.wait_for_steps([30], timeout=120.0)
    thread.join()


def test_waiting_lets_other_threads_read(run_dir: Path, live: RunBuilder) -> None:
    trial = create_trial(run_dir)
    failed: list[BaseException] = []

    def waiting() -> None:
        try:
            trial.wait_for_steps([40], timeout=120.0)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=waiting)
    thread.start()
    for step in (30, 40):
        assert trial.tensor("w").value(10).shape == (3,)
        live.step(step, {"w": ONES})
        live.flush()
    thread.join(120.0)
    assert not thread.is_alive()
    assert failed == []


def test_many_threads_may_ask_at_once(
    run_dir: Path, live: RunBuilder, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    trial = create_trial(run_dir)
    stop = threading.Event()
    failed: list[BaseException] = []
    answered = [0] * 4

    def ask(number: int) -> None:
        try:
            while not stop.is_set():
                read_everything(trial)
                answered[number] += 1
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for step in range(30, 130):
        live.step(step, {"w": ONES * step, "net_output_0": ONES})
        if step % 10 == 0:
            live.flush()
    live.close()
    while not failed and min(answered) == 0:
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert min(answered) > 0
    assert trial.steps()[-1] == 129


def test_a_question_waits_while_another_is_answered(
    run_dir: Path, live: RunBuilder
) -> None:
    """Sabotage that it caught: questions without the lock."""
    assert live.capture.directory
    trial = create_trial(run_dir)
    tensor = trial.tensor("w")
    questions: list[Callable[[], object]] = [
        trial.steps,
        trial.tensor_names,
        trial.statistics,
        trial.step_table,
        trial.refresh,
        lambda: tensor.value(0),
        lambda: tensor.stats(0),
        lambda: tensor.shape(0),
    ]
    # Without a refresh, which has the lock anyway.
    with trial.no_refresh(), trial._run.lock:
        threads = [threading.Thread(target=ask) for ask in questions]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        assert all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join(120.0)
        assert not thread.is_alive()


def read_everything(trial: Trial) -> None:
    with trial.no_refresh():
        steps = trial.tensor("w").steps()
        table = trial.statistics(["w"])
    assert set(steps) <= set(table.steps.tolist())
    assert trial.tensor("w").value(steps[-1])[0] in (1, steps[-1])
    trial.has_passed_step(steps[-1] + 1)
