"""Steps that wait for a device: their order, their bounds, and what never arrives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tdbg.capture import device
from tdbg.capture.device import PendingSteps
from tdbg.capture.steps import Step
from tdbg.capture.writer import NullWriter
from tdbg.modes import ModeKeys


class Awaited:
    """Something on its way, until ``arrives``."""

    n_bytes = 10

    def __init__(self, number: float = 0.0) -> None:
        self.state: bool | Exception = False
        self._number = number

    def arrives(self) -> None:
        self.state = True

    def is_there(self) -> bool:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    @property
    def array(self) -> NDArray[Any]:
        assert self.state is True
        return np.array([self._number])


class Log(NullWriter):
    """Notes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Any] = []

    def end_step(self, step: int, *_: int, **rest: Any) -> bool:
        self.lines.append(("end", step, rest.get("flags", 0)))
        return True

    def refuse(self, step: int, n_records: int = 1, n_bytes: int = 0) -> None:
        self.lines.append(("refused", step, n_records, n_bytes))


def step_of(number: int) -> Step:
    return Step(number, ModeKeys.TRAIN, number)


def note(log: Log, text: str) -> Any:
    return lambda: log.lines.append(text)


def test_steps_without_anything_late_end_at_once() -> None:
    log = Log()
    steps = PendingSteps(log)
    steps.end_step(0, 1, 0, flags=2)
    assert log.lines == [("end", 0, 2)]


def test_a_step_ends_when_its_last_thing_has_arrived_and_steps_keep_their_order() -> (
    None
):
    log = Log()
    steps = PendingSteps(log)
    first, second = Awaited(), Awaited()
    steps.expect(step_of(0), first, note(log, "first"))
    steps.expect(step_of(0), second, note(log, "second"))
    steps.end_step(0, 1, 0, flags=0)
    steps.end_step(1, 1, 1, flags=0)
    second.arrives()
    steps.poll()
    assert log.lines == []
    first.arrives()
    steps.poll()
    assert log.lines == ["first", "second", ("end", 0, 0), ("end", 1, 0)]
    assert steps.n_waiting == 0


def test_a_flag_that_only_the_device_knows() -> None:
    log = Log()
    steps = PendingSteps(log)
    found = Awaited()
    steps.expect(step_of(3), found, lambda: steps.flag(3, 1), n_records=0)
    steps.end_step(3, 1, 3, flags=4)
    found.arrives()
    steps.end_step(4, 1, 4, flags=0)
    assert log.lines == [("end", 3, 5), ("end", 4, 0)]


def test_what_comes_to_a_step_that_has_ended_is_delivered_alone() -> None:
    log = Log()
    steps = PendingSteps(log)
    ended = step_of(2)
    ended.is_open = False
    value = Awaited()
    steps.expect(ended, value, note(log, "value"))
    value.arrives()
    steps.poll()
    assert log.lines == ["value"]


def test_what_never_arrives_is_refused_and_its_step_ends() -> None:
    log = Log()
    steps = PendingSteps(log)
    steps.expect(step_of(0), Awaited(), note(log, "never"), n_records=7)
    steps.end_step(0, 1, 0, flags=0)
    steps.wait(0.0)
    assert log.lines == []
    steps.wait(0.0, gives_up=True)
    assert log.lines == [("refused", 0, 7, 10), ("end", 0, 0)]


def test_a_device_in_an_error_delivers_nothing() -> None:
    log = Log()
    steps = PendingSteps(log)
    broken = Awaited()
    broken.state = RuntimeError("an illegal memory access")
    steps.expect(step_of(0), broken, note(log, "never"))
    steps.end_step(0, 1, 0, flags=0)
    assert log.lines == [("refused", 0, 1, 10), ("end", 0, 0)]


def test_a_device_far_behind_loses_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MAX_STEPS", 2)
    log = Log()
    steps = PendingSteps(log)
    awaited = [Awaited() for _ in range(3)]
    for number, each in enumerate(awaited):
        steps.expect(step_of(number), each, note(log, f"row {number}"))
        steps.end_step(number, 1, number, flags=0)
    assert log.lines == [("refused", 2, 1, 10), ("end", 2, 0)]
    assert not steps.has_room(0)
    for each in awaited:
        each.arrives()
    steps.poll()
    assert log.lines[2:] == ["row 0", ("end", 0, 0), "row 1", ("end", 1, 0)]
    assert steps.has_room(0)


def test_the_bytes_on_the_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MAX_BYTES", 25)
    log = Log()
    steps = PendingSteps(log)
    value = Awaited()
    steps.expect(step_of(0), value, note(log, "value"))
    assert steps.has_room(15)
    assert not steps.has_room(16)
    value.arrives()
    steps.end_step(0, 1, 0)
    assert steps.has_room(25)
