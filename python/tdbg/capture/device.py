"""Tensors on devices, captured by the operations of their framework.

The last stop of a tensor that neither the core's kernels nor the CPU can read
(docs/gpu.md).  ``DeviceTensors`` begins the work on the device; ``PendingSteps`` ends
each step when the results of that step have arrived, and nobody waits for them.

Thread safety: ``DeviceTensors`` none, the thread of the recorder; ``PendingSteps`` may
be called from any thread.

Errors: what the framework cannot do is refused and counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tdbg.capture.adapter import (
    AsyncResult,
    DeviceArray,
    DeviceBackend,
    UnitSummarySpec,
)
from tdbg.capture.refusals import Refusals
from tdbg.capture.steps import Step
from tdbg.run.schema import RowFlag

if TYPE_CHECKING:
    from tdbg.capture.writer import Writer

__all__ = [
    "MAX_BYTES",
    "MAX_STEPS",
    "CallSite",
    "DeviceTensors",
    "PendingSteps",
]

# How many steps may wait at once; what a device that is further behind computes
# after that is refused.
MAX_STEPS = 64
# How many bytes of results may be under way at once.
MAX_BYTES = 256 << 20
_POLL_SECONDS = 0.0005


class CallSite(NamedTuple):
    """Which call of its module a tensor belongs to.

    Attributes:
        call: Number of the call in its forward, from 0.
        micro_batch: Number of the forward in its step, from 0.
    """

    call: int = 0
    micro_batch: int = 0


# Why a tensor of a device is not captured.
_BUSY = "the device could not compute or send it, or too many results were on their way"


class Target(NamedTuple):
    """What a tensor of a device is written as.

    Attributes:
        name: Its name.
        identity: The number of its definition.
    """

    name: str
    identity: int


class _RowBatch(NamedTuple):
    """Statistics of one step that one queue of a device computes."""

    rows: list[Any]  # As the framework's device holds them.
    targets: list[Target]
    sites: list[CallSite]
    flags: list[int]


class DeviceTensors:
    """Captures tensors by operations that their framework does on the device.

    Args:
        writer: Receives the results.
        pending: Waits for them.
        backend: The framework's operations.
        refusals: Counts what is not captured.

    Attributes:
        unsent: The steps with statistics that nobody fetches yet, by number.
    """

    def __init__(
        self,
        writer: Writer,
        pending: PendingSteps,
        backend: DeviceBackend,
        refusals: Refusals,
    ) -> None:
        self._writer = writer
        self._pending = pending
        self._backend = backend
        self._refusals = refusals
        self.unsent: dict[int, tuple[Step, dict[Hashable, _RowBatch]]] = {}

    def row(
        self, step: Step, target: Target, tensor: Any, site: CallSite, scale: Any
    ) -> None:
        """Begin to compute a tensor's statistics; ``send`` fetches them."""
        row = self._backend.row(tensor, scale) if self._pending.has_room(0) else None
        if row is None:
            self._refusals.add(step.number, target.name, _BUSY)
            return
        _, batches = self.unsent.setdefault(step.number, (step, {}))
        queue = self._backend.queue(tensor)
        batch = batches.setdefault(queue, _RowBatch([], [], [], []))
        is_scaled = not isinstance(scale, float) or scale != 1.0
        batch.rows.append(row)
        batch.targets.append(target)
        batch.sites.append(site)
        batch.flags.append(RowFlag.RESCALED if is_scaled else 0)
        if not step.is_open:
            self.send(step)

    def values(self, step: Step, target: Target, tensor: Any, site: CallSite) -> None:
        """Begin to fetch a tensor's values."""
        n_bytes = self._backend.n_bytes(tensor)
        has_room = self._pending.has_room(n_bytes)
        result = self._backend.values(tensor) if has_room else None
        self._expect_values(step, target, result, site, n_bytes)

    def units(
        self,
        step: Step,
        target: Target,
        tensor: Any,
        site: CallSite,
        spec: UnitSummarySpec,
    ) -> None:
        """Begin to count a tensor's units, and to fetch the counts."""
        result = None
        if self._pending.has_room(0):
            result = self._backend.units(tensor, spec)
        self._expect_values(step, target, result, site, 0)

    def send(self, step: Step) -> None:
        """Begin to fetch the statistics of the step, in one copy for each queue."""
        _, batches = self.unsent.pop(step.number, (step, {}))
        for queue, batch in batches.items():
            result = self._backend.send_rows(queue, batch.rows)
            if result is None:
                for target in batch.targets:
                    self._refusals.add(step.number, target.name, _BUSY)
            else:
                deliver = _DeliverRows(self._writer, step.number, result, batch)
                self._pending.expect(step, result, deliver, n_records=len(batch.rows))

    def send_all(self) -> None:
        """Begin to fetch the statistics of all steps."""
        for step, _ in list(self.unsent.values()):
            self.send(step)

    def _expect_values(
        self,
        step: Step,
        target: Target,
        result: DeviceArray | None,
        site: CallSite,
        n_bytes: int,
    ) -> None:
        if result is None:
            self._refusals.add(step.number, target.name, _BUSY, n_bytes=n_bytes)
            return
        found = result

        def deliver() -> None:
            self._writer.values(
                step.number,
                target.identity,
                found.array.ctypes.data,
                call=site.call,
                micro_batch=site.micro_batch,
            )

        self._pending.expect(step, found, deliver)


class _DeliverRows:
    """Writes statistics that have arrived; does not keep them on the device."""

    def __init__(
        self, writer: Writer, number: int, result: DeviceArray, batch: _RowBatch
    ) -> None:
        self._writer = writer
        self._number = number
        self._result = result
        self._ids = [each.identity for each in batch.targets]
        self._sites = batch.sites
        self._flags = batch.flags

    def __call__(self) -> None:
        calls, micro_batches = zip(*self._sites, strict=True)
        self._writer.add_rows(
            self._number,
            self._ids,
            calls,
            micro_batches,
            self._flags,
            self._result.array,
        )


@dataclass(slots=True)
class _Expected:
    """A result that is under way, and what writes it."""

    result: AsyncResult
    deliver: Callable[[], None]
    n_records: int


@dataclass(slots=True)
class _PendingStep:
    """A step and the results that it waits for.

    ``end`` holds the rest of its record; None for results of a step that has ended
    already, or that has no record.
    """

    number: int
    expected: deque[_Expected] = field(default_factory=deque)
    flags: int = 0
    end: dict[str, Any] | None = None


class PendingSteps:
    """Ends steps in order, each when its results have arrived from the devices.

    Args:
        writer: Receives the ends of steps.

    Attributes:
        has_been_used: Whether a step has ever waited for a result.
        write_end: Writes the record of a step, as ``Recorder.write_end``.
    """

    def __init__(self, writer: Writer) -> None:
        self.has_been_used = False
        self._writer = writer
        self.write_end: Callable[..., Any] = writer.end_step
        self._lock = threading.RLock()
        self._open: dict[int, _PendingStep] = {}
        self._ended: deque[_PendingStep] = deque()
        self._n_bytes = 0
        # By mode, the step that last ended without a record, and what that record
        # would hold.
        self._dropped: dict[int, tuple[int, int, dict[str, Any]]] = {}

    @property
    def n_waiting(self) -> int:
        """Number of steps that wait for a result."""
        with self._lock:
            n_open = sum(1 for each in self._open.values() if each.expected)
            return len(self._ended) + n_open

    def has_room(self, n_bytes: int) -> bool:
        """Whether a further result of so many bytes may be awaited."""
        return self._n_bytes + n_bytes <= MAX_BYTES and len(self._ended) < MAX_STEPS

    def expect(
        self,
        step: Step,
        result: AsyncResult,
        deliver: Callable[[], None],
        *,
        n_records: int = 1,
    ) -> None:
        """Let a step wait for a result.

        Args:
            step: The step, open or ended.
            result: What a device is computing or sending.
            deliver: Called when the result has arrived; before the step ends, unless
                it has ended already.
            n_records: Number of records to refuse if the result never arrives.
        """
        number = step.number
        self.has_been_used = True
        with self._lock:
            self._n_bytes += result.n_bytes
            pending = self._open.get(number)
            if pending is None:
                pending = _PendingStep(number)
                if step.is_open:
                    self._open[number] = pending
                else:
                    self._ended.append(pending)
            pending.expected.append(_Expected(result, deliver, n_records))

    def flag(self, number: int, flags: int) -> None:
        """Set flags of a step; called by a result of that step as it is delivered."""
        with self._lock:
            for step in (self._open.get(number), *self._ended):
                if step is not None and step.number == number:
                    step.flags |= flags

    def end_step(self, number: int, mode: int, mode_step: int, **rest: Any) -> None:
        """End a step as ``Capture.end_step`` does, once all its results are there."""
        with self._lock:
            step = self._open.pop(number, None)
            if step is None and not self._ended:
                self.write_end(number, mode, mode_step, **rest)
                return
            step = step or _PendingStep(number)
            step.end = {"mode": mode, "mode_step": mode_step, **rest}
            self._ended.append(step)
            self.poll()
            if len(self._ended) > MAX_STEPS:
                self._give_up(self._ended.pop())

    def drop_step(self, number: int, mode: int, mode_step: int, **rest: Any) -> None:
        """Note the end of a step without data; ``revive`` records it if data comes."""
        self._dropped[mode] = number, mode_step, rest  # Atomic: needs no lock.
        if self._open:
            with self._lock:
                step = self._open.pop(number, None)
                if step is not None:
                    self._ended.append(step)

    def revive(self, number: int) -> None:
        """Record a step that was dropped: data has been captured after its end."""
        with self._lock:
            for mode, (dropped, mode_step, rest) in list(self._dropped.items()):
                if dropped == number:
                    del self._dropped[mode]
                    self.end_step(number, mode, mode_step, **rest)

    def poll(self) -> None:
        """Deliver what has arrived, and end the steps that are complete; never wait."""
        with self._lock:
            while self._ended and self._is_complete(self._ended[0]):
                self._finish(self._ended.popleft())

    def wait(self, timeout: float, *, gives_up: bool = False) -> float:
        """Wait until all results have arrived.

        Args:
            timeout: In seconds.
            gives_up: Whether the results that are missing then are refused.

        Returns:
            How long it took, in seconds.
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

    def _is_complete(self, step: _PendingStep) -> bool:
        """Deliver the results that have arrived, in order; whether none is missing."""
        expected = step.expected
        while expected:
            try:
                is_there = expected[0].result.is_there()
            except RuntimeError:  # The device is in an error: it sends nothing more.
                self._refuse(step.number, expected.popleft())
                continue
            if not is_there:
                return False
            each = expected.popleft()
            self._n_bytes -= each.result.n_bytes
            each.deliver()
        return True

    def _refuse(self, number: int, each: _Expected) -> None:
        n_bytes = each.result.n_bytes
        self._n_bytes -= n_bytes
        if each.n_records:
            self._writer.refuse(number, each.n_records, n_bytes)

    def _give_up(self, step: _PendingStep) -> None:
        for each in step.expected:
            self._refuse(step.number, each)
        step.expected.clear()
        self._finish(step)

    def _finish(self, step: _PendingStep) -> None:
        if step.end is not None:
            flags = step.end.pop("flags", 0) | step.flags
            self.write_end(step.number, **step.end, flags=flags)
