"""Steps that capture nothing but numbers pass the session, many at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tdbg.capture import light_steps
from tdbg.capture.adapter import FrameworkAdapter
from tdbg.capture.light_steps import LightSteps
from tdbg.capture.opening import SessionSpec, open_session
from tdbg.capture.policy import Policy
from tdbg.capture.session import Session
from tdbg.config import CollectionRegistry, Role, SaveConfig
from tdbg.config.options import SessionOptions
from tdbg.modes import ModeKeys
from tdbg.trial import create_trial

TRAIN, EVAL = ModeKeys.TRAIN, ModeKeys.EVAL
ROOT, OPTIMIZER = "root", "optimizer"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of light steps: a microsecond later whenever it is looked at."""
    now = itertools.count(1_000_000, 1_000)
    shown = SimpleNamespace(ahead_ns=0)
    monkeypatch.setattr(
        light_steps,
        "time",
        SimpleNamespace(perf_counter_ns=lambda: next(now) + shown.ahead_ns),
    )
    return shown


@pytest.fixture
def session(run_dir: Path, clock: SimpleNamespace) -> Iterator[Session]:
    """A session that saves losses at every step, and weights at every hundredth."""
    del clock
    registry = CollectionRegistry()
    registry.include("losses")
    registry.include("weights")
    policy = Policy(registry, SaveConfig(save_interval=100, statistics_interval=100))
    spec = SessionSpec(run_dir, policy, SessionOptions())
    opened = open_session(spec, FrameworkAdapter())
    opened.optimizer_found(OPTIMIZER, defines_step=True)
    # A request may come at the end of time only.
    opened.run(opened.obey, TRAIN)
    opened.obedience.next_poll_ns = 1 << 62
    yield opened
    opened.close()


def step(session: Session) -> None:
    """A step that is told as it happens."""
    session.run(session.forward_begins, ROOT, TRAIN)
    session.run(session.forward_ends)
    session.run(session.optimizer_begins, OPTIMIZER, lambda: TRAIN)
    session.run(session.optimizer_ends, OPTIMIZER)


def begin(
    session: Session,
    read: Callable[[Any], Any] | None = None,
    ended: Callable[[int], None] = lambda _: None,
) -> LightSteps:
    light = try_to_begin(session, read=read, ended=ended)
    assert light is not None
    return light


def try_to_begin(session: Session, **options: Any) -> LightSteps | None:
    """As a hook does, in an event of the session."""
    return session.run(
        lambda: LightSteps.begin(session, ROOT, OPTIMIZER, TRAIN, **options)
    )


def count(light: LightSteps, most: int) -> int:
    """Make so many steps at most; return how many were counted."""
    for i in range(most):
        if not light.goes_on():
            return i
        light.add()
    return most


def test_the_numbers_of_each_step_come_back(session: Session, run_dir: Path) -> None:
    entry = session.entry("loss", Role.LOSS)
    losses = iter([0.5, 0.25, 0.125, 4.0])
    step(session)
    light = begin(session, lambda result: [(entry, result)])
    for loss in losses:
        assert light.goes_on()
        light.add(loss)
    step(session)
    assert session.close()
    trial = create_trial(run_dir)
    assert trial.tensor("loss").steps() == [1, 2, 3, 4]
    found = [float(trial.tensor("loss").value(i)) for i in (1, 2, 3, 4)]
    assert found == [0.5, 0.25, 0.125, 4.0]
    assert session.counters()["internal_errors"] == 0


def test_steps_without_numbers_are_counted_all_the_same(session: Session) -> None:
    told: list[int] = []
    step(session)
    light = begin(session, ended=told.append)
    assert count(light, 7) == 7
    session.see()
    assert session.machine.following(TRAIN) == 8
    assert session.latest_step(TRAIN) == (7, 7)
    assert session.overhead().steps == 8
    assert told == [7]
    assert not light.goes_on()
    session.see()  # Once is enough.
    assert told == [7]


def test_a_training_may_ask_for_its_step_without_ending_them(session: Session) -> None:
    """Sabotaged: a question ends them, and a loop that asks is observed throughout."""
    step(session)
    light = begin(session)
    for n in range(1, 8):
        assert count(light, 1) == 1
        session.settle()
        assert session.n_training_steps == session.n_forwards == n + 1
        assert session.latest_step(TRAIN) == (n, n)
        assert session.overhead().steps == n + 1
    assert session.machine.following(TRAIN) == 1
    assert light.goes_on()


def test_each_step_keeps_its_own_duration(
    session: Session, run_dir: Path, clock: SimpleNamespace
) -> None:
    entry = session.entry("loss", Role.LOSS)
    step(session)
    light = begin(session, lambda result: [(entry, result)])
    for n in range(1, 5):
        assert light.goes_on()
        clock.ahead_ns += n * 1_000_000
        light.add(0.5)
    assert session.close()
    found = create_trial(run_dir).step_table()
    own = (found["duration_ns"] - found["capture_ns"])[1:5]
    milliseconds = [round(each / 1e6) for each in own]
    assert milliseconds == [1, 2, 3, 4]


def test_what_is_recorded_by_hand_belongs_to_the_latest_step(
    session: Session, run_dir: Path
) -> None:
    step(session)
    count(begin(session), 5)
    session.run(session.record_scalar, TRAIN, "by_hand", 3.0)
    session.close()
    assert create_trial(run_dir).tensor("scalar/by_hand").steps() == [5]


def test_they_end_before_a_step_that_captures_more(session: Session) -> None:
    step(session)
    while session.machine.following(TRAIN) < 100:
        light = try_to_begin(session)
        n_before = session.machine.following(TRAIN)
        if light is None:
            assert n_before > 97  # The few that are left are told one by one.
            step(session)
        else:
            count(light, 1000)
            session.see()
            assert n_before < session.machine.following(TRAIN) <= 100
    assert try_to_begin(session) is None


def test_they_end_when_a_request_may_have_come(
    session: Session, clock: SimpleNamespace
) -> None:
    step(session)
    light = begin(session)
    assert count(light, 3) == 3
    clock.ahead_ns = 1 << 62
    assert not light.goes_on()
    assert try_to_begin(session) is None


def test_they_end_when_a_collection_changes(session: Session) -> None:
    step(session)
    light = begin(session)
    assert count(light, 3) == 3
    session.collections.get("weights").save_config = SaveConfig(statistics_interval=1)
    assert not light.goes_on()


def test_an_event_of_the_training_ends_them(session: Session) -> None:
    step(session)
    light = begin(session)
    assert count(light, 2) == 2
    session.run(session.forward_begins, ROOT, EVAL)
    assert not light.goes_on()
    assert session.latest_step(TRAIN) == (3, 2)
    assert session.latest_step(EVAL) == (3, 0)
    session.run(session.forward_ends)
    # The step of evaluation is open until the next forward.
    assert try_to_begin(session) is None


@pytest.mark.parametrize("optimizer", ["another", None])
def test_only_steps_of_the_optimizer_that_ends_steps_are_counted(
    session: Session, optimizer: str | None
) -> None:
    step(session)
    assert LightSteps.begin(session, ROOT, optimizer, TRAIN) is None
    assert LightSteps.begin(session, ROOT, OPTIMIZER, EVAL) is None


def test_a_number_that_cannot_be_read_is_an_error_of_tdbg(
    session: Session, run_dir: Path
) -> None:
    def read(_: Any) -> Any:
        msg = "no such number"
        raise RuntimeError(msg)

    step(session)
    assert count(begin(session, read), 1) == 1
    assert session.latest_step(TRAIN) == (1, 1)  # It is a step all the same.
    session.close()
    assert session.counters()["internal_errors"] == 1
    assert len(create_trial(run_dir).steps(mode=TRAIN)) <= 2


class Deleted:
    """A number whose memory the next step has taken over, as JAX has it."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        msg = "Array has been deleted"
        raise RuntimeError(msg)


def test_a_number_that_is_gone_by_then_is_refused(
    session: Session, run_dir: Path
) -> None:
    entry = session.entry("loss", Role.LOSS)
    ended: list[int] = []
    step(session)
    light = begin(session, lambda result: [(entry, result)], ended.append)
    for value in (0.5, Deleted(), 0.25):
        assert light.goes_on()
        light.add(value)
    session.see()
    assert ended == [3]
    step(session)
    assert session.latest_step(TRAIN) == (4, 4)
    session.close()
    assert session.counters()["internal_errors"] == 0
    assert session.counters()["refused_tensors"] == 1
    assert create_trial(run_dir).tensor("loss").steps() == [1, 3]


def test_an_error_as_they_end_costs_no_event(session: Session, run_dir: Path) -> None:
    """Sabotaged: the event that ends them is lost, even the end of the run."""

    def ended(_: int) -> None:
        msg = "no such number"
        raise RuntimeError(msg)

    step(session)
    assert count(begin(session, ended=ended), 1) == 1
    assert session.run(lambda: "an event") == "an event"
    assert session.latest_step(TRAIN) == (1, 1)
    assert count(begin(session, ended=ended), 1) == 1
    session.close()
    assert session.counters()["internal_errors"] == 2
    statuses = [each.data for each in create_trial(run_dir).events("status")]
    assert "ended" in [each.get("training") for each in statuses]


class Computing:
    """A number that a step has yet to compute."""

    def is_ready(self) -> bool:
        return False

    def __array__(self, *_: Any, **__: Any) -> Any:
        msg = "this would wait"
        raise AssertionError(msg)


def in_another_thread(session: Session) -> None:
    """An event that comes from inside a step."""
    thread = threading.Thread(target=session.see)
    thread.start()
    thread.join()


def test_another_thread_waits_for_no_number(session: Session) -> None:
    """Sabotaged: a callback waits for the step that waits for the callback."""
    entry = session.entry("loss", Role.LOSS)
    step(session)
    light = begin(session, lambda result: [(entry, result)])
    for value in (0.5, Computing()):
        assert light.goes_on()
        light.add(value)
    in_another_thread(session)
    assert session.latest_step(TRAIN) == (2, 2)
    assert session.counters()["internal_errors"] == 0
    assert session.counters()["refused_tensors"] == 1
    step(session)
    assert try_to_begin(session) is None  # This training does so at each step.


def test_a_step_during_which_another_thread_ends_them_is_counted(
    session: Session, run_dir: Path
) -> None:
    entry = session.entry("loss", Role.LOSS)
    told: list[int] = []
    step(session)
    light = begin(session, lambda result: [(entry, result)], told.append)
    assert light.goes_on()
    light.add(0.5)
    assert light.goes_on()
    in_another_thread(session)
    light.add(0.25)
    assert not light.goes_on()
    step(session)
    assert session.latest_step(TRAIN) == (3, 3)
    assert told == [1, 1]
    session.close()
    assert create_trial(run_dir).tensor("loss").steps() == [1, 2]


def test_numbers_that_are_not_captured_are_left_out(
    session: Session, run_dir: Path
) -> None:
    other = session.entry("other", Role.OTHER)
    loss = session.entry("loss", Role.LOSS)
    step(session)
    light = begin(session, lambda _: [(other, 1.0), (loss, np.nan)])
    assert count(light, 2) == 2
    session.close()
    trial = create_trial(run_dir)
    assert "other" not in trial.tensor_names()
    assert np.isnan(trial.tensor("loss").value(2))
