"""Steps that wait for what is still on its way from a device.

A row that a device computes, a value that it sends, a flag that only it knows: the
training must not wait for any of them.  They are asked for here, and the record that
ends their step is written when the last of them has arrived; steps end in their
order.  Looked for is at each end of a step, never waited for but in ``wait``.

Thread safety: all methods may be called from any thread.

Errors: none of its own.  What does not arrive is refused, which counts it as dropped
in its step.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tdbg.capture.sink import Sink
from tdbg.capture.steps import Step

__all__ = ["MAX_BYTES", "MAX_STEPS", "Arrival", "LateSteps"]

# Steps that wait at once; a device that is further behind loses what comes next.
MAX_STEPS = 64
# On the way at once.
MAX_BYTES = 256 << 20
_POLL_SECONDS = 0.0005


class Arrival(Protocol):
    """Something on its way from a device."""

    @property
    def n_bytes(self) -> int:
        """That it holds on the way."""
        ...

    def is_there(self) -> bool:
        """Whether it has arrived; never waits.

        Raises:
            RuntimeError: If it never will.
        """


@dataclass(slots=True)
class _Expected:
    arrival: Arrival
    deliver: Callable[[], None]
    n_records: int


@dataclass(slots=True)
class _Waiting:
    number: int
    expected: deque[_Expected] = field(default_factory=deque)
    flags: int = 0
    # None for what comes to a step that has ended.
    end: dict[str, Any] | None = None


class LateSteps:
    """Ends the steps, each when everything of it has arrived.

    Args:
        sink: The core's writer.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = threading.RLock()
        self._open: dict[int, _Waiting] = {}
        self._ended: deque[_Waiting] = deque()
        self._n_bytes = 0
        # By mode, the last step that ended without a record, and what it would say.
        self._dropped: dict[int, tuple[int, int, dict[str, Any]]] = {}

    @property
    def n_waiting(self) -> int:
        """Steps that wait for something."""
        with self._lock:
            n_open = sum(1 for each in self._open.values() if each.expected)
            return len(self._ended) + n_open

    def has_room(self, n_bytes: int) -> bool:
        """Whether so much more may be on the way."""
        return self._n_bytes + n_bytes <= MAX_BYTES and len(self._ended) < MAX_STEPS

    def expect(
        self,
        step: Step,
        arrival: Arrival,
        deliver: Callable[[], None],
        *,
        n_records: int = 1,
    ) -> None:
        """Let a step wait for something.

        Args:
            step: The step, whether it has ended or not.
            arrival: What is on its way.
            deliver: Called when it is there, before the step ends if it has not.
            n_records: How many records it stands for, should it never come.
        """
        number = step.number
        with self._lock:
            self._n_bytes += arrival.n_bytes
            waiting = self._open.get(number)
            if waiting is None:
                waiting = _Waiting(number)
                if step.is_open:
                    self._open[number] = waiting
                else:
                    self._ended.append(waiting)
            waiting.expected.append(_Expected(arrival, deliver, n_records))

    def flag(self, number: int, flags: int) -> None:
        """Set flags of a step that has not been written: called as one delivers."""
        with self._lock:
            for step in (self._open.get(number), *self._ended):
                if step is not None and step.number == number:
                    step.flags |= flags

    def end_step(self, number: int, mode: int, mode_step: int, **rest: Any) -> None:
        """End a step as ``Sink.end_step`` does, as soon as nothing is missing."""
        with self._lock:
            step = self._open.pop(number, None)
            if step is None and not self._ended:
                self._sink.end_step(number, mode, mode_step, **rest)
                return
            step = step or _Waiting(number)
            step.end = {"mode": mode, "mode_step": mode_step, **rest}
            self._ended.append(step)
            self.poll()
            if len(self._ended) > MAX_STEPS:
                self._give_up(self._ended.pop())

    def drop_step(self, number: int, mode: int, mode_step: int, **rest: Any) -> None:
        """A step of which nothing is recorded has ended; so far, see ``revive``."""
        self._dropped[mode] = number, mode_step, rest  # At once, for any thread.
        if self._open:
            with self._lock:
                step = self._open.pop(number, None)
                if step is not None:
                    self._ended.append(step)

    def revive(self, number: int) -> None:
        """Something is recorded of a step after its end: so is the step, by now."""
        with self._lock:
            for mode, (dropped, mode_step, rest) in list(self._dropped.items()):
                if dropped == number:
                    del self._dropped[mode]
                    self.end_step(number, mode, mode_step, **rest)

    def poll(self) -> None:
        """Take what has arrived; never waits."""
        with self._lock:
            while self._ended and self._is_complete(self._ended[0]):
                self._finish(self._ended.popleft())

    def wait(self, timeout: float, *, gives_up: bool = False) -> float:
        """Wait until all that is on the way has arrived.

        Args:
            timeout: In seconds.
            gives_up: Whether what is missing then is refused.

        Returns:
            How many seconds it took.
        """
        start = time.monotonic()
        deadline = start + timeout
        while True:
            self.poll()
            with self._lock:
                are_complete = [self._is_complete(each) for each in self._open.values()]
            is_done = not self._ended and all(are_complete)
            if is_done or time.monotonic() >= deadline:
                break
            time.sleep(_POLL_SECONDS)
        if gives_up:
            with self._lock:
                while self._ended:
                    self._give_up(self._ended.popleft())
        return time.monotonic() - start

    def _is_complete(self, step: _Waiting) -> bool:
        expected = step.expected
        while expected:
            try:
                is_there = expected[0].arrival.is_there()
            except RuntimeError:  # The device is in an error: nothing will come.
                self._refuse(step.number, expected.popleft())
                continue
            if not is_there:
                return False
            each = expected.popleft()
            self._n_bytes -= each.arrival.n_bytes
            each.deliver()
        return True

    def _refuse(self, number: int, each: _Expected) -> None:
        n_bytes = each.arrival.n_bytes
        self._n_bytes -= n_bytes
        if each.n_records:
            self._sink.refuse(number, each.n_records, n_bytes)

    def _give_up(self, step: _Waiting) -> None:
        for each in step.expected:
            self._refuse(step.number, each)
        step.expected.clear()
        self._finish(step)

    def _finish(self, step: _Waiting) -> None:
        if step.end is not None:
            flags = step.end.pop("flags", 0) | step.flags
            self._sink.end_step(step.number, **step.end, flags=flags)
