"""The session: what it tells the core, without any framework."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tdbg.capture.adapter import TensorRef
from tdbg.capture.overhead import OverheadMeter
from tdbg.capture.policy import Policy
from tdbg.capture.process import MAX_FAULTS
from tdbg.capture.requests import Requests
from tdbg.capture.session import Session
from tdbg.capture.writer import NullWriter
from tdbg.config import CollectionRegistry, Role, SaveConfig
from tdbg.config.options import SessionOptions, is_disabled
from tdbg.errors import ConfigurationError, TrainingStopped
from tdbg.modes import ModeKeys
from tdbg.run.requests import Request
from tdbg.run.schema import EventKind

TRAIN, EVAL = ModeKeys.TRAIN, ModeKeys.EVAL
EVERY_STEP = SaveConfig(statistics_interval=1)
NOWHERE = TensorRef(0, "float32", (0,))


class Listing(NullWriter):
    """Keeps the calls that matter."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, int, int]] = []
        self.events: list[dict[str, Any]] = []
        self.rows: list[int] = []
        self.n_refused = 0
        self.costs: list[tuple[int, int]] = []

    def end_step(self, step: int, mode: int, mode_step: int, **more: Any) -> bool:
        self.costs.append((more["capture_ns"], more["duration_ns"]))
        self.steps.append((step, mode, mode_step))
        return True

    def event(self, step: int, kind: int, severity: int, text: bytes) -> bool:
        assert severity == 1
        self.events.append({"step": step, "kind": kind, **json.loads(text)})
        return True

    def statistics(self, step: int, ids: Any, *_: Any, **__: Any) -> None:
        self.rows += [step] * len(ids)

    def refuse(self, *_: Any, **__: Any) -> None:
        self.n_refused += 1


@dataclass
class Stop:
    """A request that comes when it is told to."""

    reason: str = "enough"
    has_come: bool = False
    next_ns: int = 0

    def poll(self) -> list[Request]:
        if not self.has_come:
            return []
        self.has_come = False
        return [Request("1", "stop", {0: 1}, "", {"reason": self.reason})]

    def close(self) -> None:
        pass


@pytest.fixture
def sink() -> Listing:
    return Listing()


def make(sink: Listing, stop: Stop | None = None, **options: Any) -> Session:
    registry = CollectionRegistry(["weights", "losses"])
    policy = Policy(registry, SaveConfig(statistics_interval=2))
    return Session(sink, policy, requests=stop and Requests(stop), **options)


def step(session: Session, mode: ModeKeys = TRAIN, captures: str = "") -> None:
    """One step without an optimizer, perhaps with a tensor in it."""
    context = session.run(session.forward_begins, "net", mode)
    if captures and context is not None:
        entry = session.recorder.entry(captures, Role.WEIGHT)
        session.run(session.recorder.capture, context, entry, NOWHERE)
    session.run(session.forward_ends)


@pytest.mark.parametrize("mode", [TRAIN, EVAL])
def test_what_is_done_between_two_steps_makes_no_step_take_less_than_nothing(
    sink: Listing, mode: ModeKeys
) -> None:
    session = make(sink)
    for _ in range(9):
        step(session, mode, captures="w")
        session.run(time.sleep, 0.002)
    cost = session.overhead()
    session.close()
    assert sum(capture for capture, _ in sink.costs) >= 6_000_000
    assert all(0 < capture < duration for capture, duration in sink.costs)
    # The steps themselves took microseconds, so that their cost is thousands of times.
    assert 0 < cost.step_seconds - cost.capture_seconds < cost.capture_seconds


def test_a_step_is_recorded_when_something_was_captured(sink: Listing) -> None:
    session = make(sink)
    for _ in range(5):
        step(session, captures="w")
    session.close()
    assert sink.rows == [0, 2, 4]
    assert sink.steps == [(0, 1, 0), (2, 1, 2), (4, 1, 4)]


def test_new_names_are_told_at_once_then_together(sink: Listing) -> None:
    def told() -> list[dict[str, Any]]:
        return [
            event for event in sink.events if event["kind"] == EventKind.COLLECTIONS
        ]

    session = make(sink)
    for number in range(20):
        step(session, captures=f"w{number}")
    assert len(told()) == 1
    session.close()
    assert len(told()) == 2
    weights = told()[-1]["collections"]["weights"]
    assert len(weights["tensor_names"]) == 20
    assert weights["captured"]


def test_names_that_fill_an_event_are_left_out_of_it(sink: Listing) -> None:
    session = make(sink)
    for number in range(3000):
        session.recorder.entry(f"{number:0>100}", Role.WEIGHT)
    step(session, captures="w")
    step(session)
    (told,) = (each for each in sink.events if each["kind"] == 2)
    assert told["collections"]["weights"]["tensor_names"] == []


def test_a_stop_is_raised_in_training_and_once_in_evaluation(sink: Listing) -> None:
    stop = Stop()
    session = make(sink, stop)
    step(session)
    stop.has_come = True
    with pytest.raises(TrainingStopped, match="enough"):
        step(session, EVAL)
    step(session, EVAL)
    with pytest.raises(TrainingStopped):
        step(session)
    session.close()
    statuses = [event for event in sink.events if event["kind"] == EventKind.STATUS]
    assert [each["training"] for each in statuses] == ["stopped"]


def test_a_stop_never_comes_inside_a_forward(sink: Listing) -> None:
    stop = Stop()
    session = make(sink, stop)
    session.run(session.forward_begins, "outer", TRAIN)
    stop.has_come = True
    session.run(session.forward_begins, "inner", TRAIN)
    session.run(session.forward_ends)
    session.run(session.forward_ends)
    with pytest.raises(TrainingStopped):
        step(session)


def test_a_stop_as_a_flag_only_sets_it(sink: Listing) -> None:
    session = make(sink, Stop(has_come=True), raises_on_stop=False)
    step(session)
    assert session.should_stop
    session.close()
    assert sink.events[-1]["training"] == "stopped"


def test_an_error_is_counted_and_ten_of_them_end_it(sink: Listing) -> None:
    session = make(sink)
    for number in range(MAX_FAULTS):
        assert session.is_live, number
        assert session.run(lambda: 1 // 0) is None
    assert not session.is_live
    assert session.counters()["internal_errors"] == MAX_FAULTS
    assert session.run(lambda: 1) is None


def test_an_interrupt_passes_through(sink: Listing) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    session = make(sink)
    with pytest.raises(KeyboardInterrupt):
        session.run(interrupt)
    assert session.counters()["internal_errors"] == 0


def test_arrays_that_cannot_be_stored_are_refused(sink: Listing) -> None:
    session = make(sink)
    for value in ([[1], [1, 2]], object(), np.ones(2, np.complex64)):
        session.run(session.record_array, TRAIN, "x", ["default"], value)
    assert sink.n_refused == 3
    assert session.counters()["internal_errors"] == 0


def test_closing_is_idempotent_and_runs_what_was_asked_for(sink: Listing) -> None:
    session = make(sink)
    calls: list[int] = []
    session.listen(close=lambda: calls.append(1))
    session.listen(close=lambda: 1 // 0)
    session.listen(close=lambda: calls.append(2))
    assert session.close()
    assert session.close()
    assert calls == [1, 2]


def test_the_meter_charges_each_step_once() -> None:
    meter = OverheadMeter()
    meter.total_ns += 100
    assert meter.end_step(900, meter.spent_ns) == 100
    meter.total_ns += 50
    assert meter.end_step(950, meter.spent_ns) == 50
    summary = meter.summary()
    assert (summary.steps, summary.capture_seconds) == (2, 150e-9)
    assert summary.share == pytest.approx(150 / 1850)
    assert str(summary) == "2 steps, 0 us a step, 8.11%"


def test_what_is_captured_is_metered(sink: Listing) -> None:
    session = make(sink)
    for _ in range(3):
        step(session, captures="w")
    session.close()
    overhead = session.meter.summary()
    assert overhead.steps == 3
    assert overhead.capture_seconds > 0


def test_what_steps_without_a_record_cost_is_told_at_the_end(sink: Listing) -> None:
    session = make(sink)
    for _ in range(5):
        step(session, captures="w")
    session.close()
    assert len(sink.steps) == 3
    made, cost = (each for each in sink.events if each["kind"] == EventKind.CHANGE)
    assert (made["what"], made["modes"]) == ("steps", {"TRAIN": [0, 5]})
    assert (cost["what"], cost["steps"]) == ("cost", 5)
    assert cost["capture_ns"] > 0


def test_where_every_step_has_a_record_no_cost_is_told_beside_them(
    sink: Listing,
) -> None:
    session = Session(sink, Policy(CollectionRegistry(["weights"]), EVERY_STEP))
    for _ in range(3):
        step(session, captures="w")
    session.close()
    assert len(sink.steps) == 3
    (made,) = (each for each in sink.events if each["kind"] == EventKind.CHANGE)
    assert (made["what"], made["modes"]) == ("steps", {"TRAIN": [0, 3]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_stop": "rise"}, "did you mean 'raise'"),
        ({"overflow": 3}, "valid are 'block', 'drop'"),
        ({"queue_bytes": 0}, "queue_bytes"),
        ({"min_free_bytes": True}, "min_free_bytes"),
        ({"rank": 2, "world_size": 2}, "rank 2 is not one of 2"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SessionOptions(**options)


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("0", False), ("", False)]
)
def test_the_environment_can_disable_all(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    monkeypatch.setenv("TDBG_DISABLED", value)
    assert is_disabled() is expected
