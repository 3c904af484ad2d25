"""The recorder takes tensors from a hook to the queue of the core.

A tensor goes as far along this way as it must:

1. ``_core.ModuleCallCapture`` and ``_core.ParameterCapture`` (cpp/python_capture)
   capture plain tensors of module calls and of parameters without running Python.
2. ``Recorder.take`` hands all other tensors to ``_core.BatchCapture``, in one call.
3. What that cannot read goes to ``FallbackCapture`` (fallback.py).
4. What lies on a device without kernels goes on to ``DeviceTensors`` (device.py).

Thread safety: none; the thread of the training.

Errors: a tensor that cannot be captured is refused and counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tdbg.capture.adapter import (
    DeviceArray,
    FrameworkAdapter,
    TensorRef,
    UnitSummarySpec,
)
from tdbg.capture.device import CallSite, PendingSteps
from tdbg.capture.fallback import FallbackCapture, TensorRequest
from tdbg.capture.naming import scalar_name, unit_name
from tdbg.capture.policy import Policy
from tdbg.capture.schedule import StepPlan
from tdbg.capture.steps import Step
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.config.collections import Role
from tdbg.config.messages import printable
from tdbg.errors import StorageError
from tdbg.run.schema import MAX_NAME_BYTES, stored_name

if TYPE_CHECKING:
    from tdbg._core import (
        BatchCapture,
        ModuleCallCapture,
        ParameterCapture,
        UpdateCapture,
    )
    from tdbg.capture.writer import Writer

__all__ = ["Recorder", "StepContext", "TensorEntry"]

MAX_MICRO_BATCH = 65_535  # The field on disk has 16 bits.

_log = logging.getLogger("tdbg")
_SCALAR = ("", (), None)  # Element type, shape and shard of a scalar's definition.


class StepContext:
    """One step, as capture knows it.

    Attributes:
        step: The step.
        step_plan: Says what to capture in the step.
        start_ns: When the step began (``time.perf_counter_ns``).
        last_ns: When the latest event of the step came.
        spent_ns: Time that tdbg had spent in total when the step began.
        last_spent_ns: Time that tdbg had spent in total at ``last_ns``.
        has_data: Whether anything was captured.
        calls: Number of calls of each module in the current forward.
        done: Entries of parameters and gradients that were captured already.
        found: Functions that return more of these entries; the keys are the objects
            that captured them.
    """

    __slots__ = (
        "calls",
        "done",
        "found",
        "has_data",
        "last_ns",
        "last_spent_ns",
        "spent_ns",
        "start_ns",
        "step",
        "step_plan",
    )

    def __init__(
        self, step: Step, step_plan: StepPlan, start_ns: int, spent_ns: int = 0
    ) -> None:
        self.step = step
        self.spent_ns = self.last_spent_ns = spent_ns
        self.step_plan = step_plan
        self.start_ns = self.last_ns = start_ns
        self.has_data = False
        self.calls: dict[Any, int] = {}
        self.done: set[TensorEntry] = set()
        self.found: dict[Any, Callable[[], Iterable[TensorEntry]]] = {}

    def extend(self, now_ns: int, spent_ns: int) -> None:
        """Extend the step to *now_ns*, when tdbg has spent *spent_ns* in total."""
        self.last_ns, self.last_spent_ns = now_ns, spent_ns

    @property
    def takes(self) -> bool:
        """Whether anything more may be captured in this step."""
        return self.step_plan.is_active and not self.step.is_taken

    def done_so_far(self) -> set[TensorEntry]:
        """Return ``done``, completed by ``found``."""
        for found in self.found.values():
            self.done.update(found())
        self.found.clear()
        return self.done

    def count_call(self, key: Any) -> int:
        """Count a call in the current forward; return how many preceded it."""
        count = self.calls.get(key, 0)
        self.calls[key] = count + 1
        return count

    def note_data(self, pending: PendingSteps) -> None:
        """Note that something was captured; the step may have ended before."""
        if not self.has_data:
            self.has_data = True
            if not self.step.is_open:
                pending.revive(self.step.number)


NO_NUMBER = "the value is not a number that tdbg can read"


class Recorder:
    """Captures tensors and numbers of a training under names.

    Args:
        writer: Receives the captured data.
        policy: Says what to capture for each name.
        adapter: Reads the framework's tensors.
        batch_capture: See the attribute.

    Attributes:
        entries: All names so far, by name and role.
        pending: The steps that wait for results from devices.
        batch_capture: Captures many tensors in one call; None: tensors are not read,
            as in a dry run.
        direct: ``batch_capture`` if it reads the framework's own tensors; None if it
            reads only arrays.
        is_in_forward: Whether a forward is under way that module calls belong to.
        write_end: Writes the record of a step, as ``Capture.end_step`` does; with
            several replicas, every writer does.
    """

    def __init__(
        self,
        writer: Writer,
        policy: Policy,
        adapter: FrameworkAdapter | None = None,
        batch_capture: BatchCapture | None = None,
    ) -> None:
        self.writer = writer
        self.policy = policy
        self.entries: dict[tuple[str, Role], TensorEntry] = {}
        self.pending = PendingSteps(writer)
        self.batch_capture = batch_capture
        adapter = adapter or FrameworkAdapter()
        can_read = batch_capture is not None and batch_capture.can_read
        self.direct = batch_capture if can_read else None
        self._arrays = None if can_read else adapter.arrays
        self._fallback = FallbackCapture(writer, adapter, batch_capture, self.pending)
        self.refusals = self._fallback.refusals
        self.is_in_forward = False
        self.write_end: Callable[..., Any] = writer.end_step
        self._has_long_names = False

    # ---- names ---------------------------------------------------------------

    def entry(
        self,
        name: str,
        role: Role,
        aliases: tuple[str, ...] = (),
        classes: frozenset[str] = frozenset(),
        unit_spec: UnitSummarySpec | None = None,
    ) -> TensorEntry:
        """Return the entry of a name, always the same one.

        Args:
            name: The name.
            role: What the tensor is to the training.
            aliases: Other names of the same tensor.
            classes: Those of the module that the tensor belongs to, and its kind.
            unit_spec: How its units are counted, if a rule needs that, now or later;
                None: it has none.
        """
        entry = self.entries.get((name, role))
        if entry is None:
            capture_class = self.policy.capture_class(name, role, classes)
            entry = TensorEntry(name, role, capture_class, aliases, classes, unit_spec)
            self.entries[(name, role)] = entry
            self._check_length(name)
            self._apply_needs(entry)
        return entry

    def refresh(self) -> None:
        """Decide anew what to capture: collections or needs of rules have changed."""
        for (name, role), entry in list(self.entries.items()):
            entry.collections = None
            if role is not Role.UNIT_SUMMARY:
                classes = entry.classes
                entry.capture_class = self.policy.capture_class(name, role, classes)
                self._apply_needs(entry)

    def members(self) -> dict[str, list[str]]:
        """Return the names that each collection has, sorted."""
        found: dict[str, list[str]] = {}
        for (name, role), entry in self.entries.items():
            if entry.collections is None:
                entry.collections = self.policy.membership(name, role)
            for collection in entry.collections:
                found.setdefault(collection, []).append(name)
        return {collection: sorted(names) for collection, names in found.items()}

    def _apply_needs(self, entry: TensorEntry) -> None:
        """Count the units of a tensor, and limit its values, as rules need."""
        policy, role, classes = self.policy, entry.role, entry.classes
        if entry.units is not None:
            entry.units.capture_class = policy.units_class(role, classes)
        elif entry.unit_spec is not None and policy.rule_needs.units_of(role, classes):
            capture_class = policy.units_class(role, classes)
            name = unit_name(entry.name)
            units = TensorEntry(name, Role.UNIT_SUMMARY, capture_class)
            self.entries[(name, Role.UNIT_SUMMARY)] = units
            entry.count_units(units)
        limit = policy.rule_needs.raw_limit(entry.name, role, classes)
        if limit:
            entry.raw_limit = limit

    # ---- tensors -------------------------------------------------------------

    def calls_of(
        self, key: object, backward_id: Callable[[], int]
    ) -> ModuleCallCapture | None:
        """Make what captures the calls of one module without Python.

        Args:
            key: Names the module among the calls of a forward.
            backward_id: Returns -1 unless gradients are being computed.

        Returns:
            The object; None where the core reads no tensors of the framework.
        """
        if self.direct is None:
            return None
        made: ModuleCallCapture = import_module("tdbg._core").ModuleCallCapture(
            self.direct, key, backward_id
        )
        return made

    def parameters(self, parameters: Sequence[Any]) -> ParameterCapture | None:
        """Make what captures parameters with their gradients in one call.

        Args:
            parameters: As ``_core.ParameterCapture`` has them.

        Returns:
            The object; None where the core reads no tensors of the framework.
        """
        if self.direct is None:
            return None
        made: ParameterCapture = import_module("tdbg._core").ParameterCapture(
            self.direct, parameters
        )
        return made

    def updates(self) -> UpdateCapture | None:
        """Make what captures the updates of one optimizer; None as for the above."""
        if self.direct is None:
            return None
        made: UpdateCapture = import_module("tdbg._core").UpdateCapture(self.direct)
        return made

    def begin_forward(self, context: StepContext) -> None:
        """Let the core capture plain module calls by itself until ``end_forward``."""
        if self.direct is not None:
            self.is_in_forward = True
            step = context.step
            self.direct.begin_forward(
                context, context.calls, context.step_plan, step.number, step.micro_batch
            )

    def end_forward(self) -> None:
        """Let all module calls go through Python again."""
        self.is_in_forward = False
        if self.direct is not None:
            self.direct.end_forward()

    def take(
        self,
        context: StepContext,
        entries: Sequence[TensorEntry],
        tensors: Sequence[Any],
        flags: Sequence[int],
        call: int = 0,
        micro_batch: int = 0,
        scale: Any = 1.0,
        *,
        reuses: bool = False,
    ) -> None:
        """Capture tensors of the framework now.

        Args:
            context: The step.
            entries: The names of the tensors.
            tensors: The tensors.
            flags: What to capture of each, as the step plan says.
            call: Number of the call of their module in this forward.
            micro_batch: Number of the forward in the step.
            scale: Multiplies the elements in statistics and histograms; or a tensor
                of one element on their device, which divides the elements there.
            reuses: Whether statistics are copied if the same memory was reduced
                before in this step.
        """
        context.has_data = True
        micro_batch = min(micro_batch, MAX_MICRO_BATCH)
        unhandled: Iterable[int] | None
        if self.batch_capture is None:
            unhandled = range(len(entries))
        else:
            # A loss, in every step, is one tensor: no call for a list of one.
            is_single = len(entries) == 1
            arrays = self._arrays
            unhandled = self.batch_capture.take(
                context.step.number,
                [entries[0].core] if is_single else [entry.core for entry in entries],
                tensors if arrays is None else arrays(tensors),
                flags,
                call,
                micro_batch,
                scale,
                reuses,
            )
        if unhandled:
            requests = [
                TensorRequest(entries[i], tensors[i], flags[i]) for i in unhandled
            ]
            site = CallSite(call, micro_batch)
            self._fallback.take(context.step, requests, site, scale, reuses=reuses)

    def take_numbers(
        self,
        context: StepContext,
        entries: Sequence[TensorEntry],
        numbers: NDArray[Any],
        flags: Sequence[int],
    ) -> None:
        """Capture numbers now, each as a tensor of no dimensions of its own.

        Args:
            context: The step.
            entries: The names of the numbers.
            numbers: The numbers: contiguous, of one dimension.
            flags: What to capture of each, as the step plan says.
        """
        context.note_data(self.pending)
        self.take_step_numbers(context.step.number, entries, numbers, flags)

    def take_step_numbers(
        self,
        step: int,
        entries: Sequence[TensorEntry],
        numbers: NDArray[Any] | None,
        flags: Sequence[int],
    ) -> None:
        """Record numbers for a step, without noting that it has data; refuse None."""
        if numbers is None:
            for entry in entries:
                self.refusals.add(step, entry.name, NO_NUMBER)
            return
        batch, cores = self.batch_capture, [entry.core for entry in entries]
        if batch is None or not batch.take_numbers(step, cores, numbers, flags):
            self._fallback.take_numbers(step, entries, numbers, flags)

    def take_unhandled(
        self, context: StepContext, requests: Iterable[tuple[TensorEntry, Any, int]]
    ) -> None:
        """Capture tensors that the core could not read: entries, tensors and flags."""
        self._fallback.take(context.step, (TensorRequest(*each) for each in requests))

    def capture(
        self, context: StepContext, entry: TensorEntry, tensor: Any, call: int = 0
    ) -> None:
        """Capture a tensor of the framework, or where one lies (``TensorRef``), now."""
        flags = context.step_plan.of_entry(entry)
        if flags:
            context.note_data(self.pending)
            micro_batch = min(context.step.micro_batch, MAX_MICRO_BATCH)
            if isinstance(tensor, TensorRef):
                site = CallSite(call, micro_batch)
                self._fallback.take_ref(context.step, entry, tensor, flags, site)
            else:
                self.take(context, (entry,), (tensor,), (flags,), call, micro_batch)

    def _check_length(self, name: str) -> None:
        if self._has_long_names or (stored := stored_name(name)) == name:
            return
        self._has_long_names = True  # One warning is enough.
        _log.warning(
            "a name is longer than %d bytes (%s...): tdbg shortens it and appends its "
            "SHA-256, here as ...%s; readers find the tensor by either name",
            MAX_NAME_BYTES,
            printable(name[:60]),
            stored[-20:],
        )

    def refuse(
        self, context: StepContext, name: str, why: str, n_bytes: int = 0
    ) -> None:
        """Count a tensor that cannot be captured.

        Args:
            context: The step.
            name: What it is called.
            why: Why it cannot be captured.
            n_bytes: Its size, if it is known.
        """
        context.note_data(self.pending)
        self.refusals.add(context.step.number, name, why, n_bytes=n_bytes)

    # ---- numbers -------------------------------------------------------------

    def scalar(
        self,
        context: StepContext,
        name: str,
        value: float | DeviceArray | None,
        wall_ns: int | None = None,
    ) -> None:
        """Record a number, now or when a device has sent it; refuse None."""
        if value is None:
            self.refuse(context, name, NO_NUMBER)
            return
        entry = self.entry(scalar_name(name), Role.SCALAR)
        identity = entry.ids.get(_SCALAR)
        if identity is None:
            identity = self.writer.define(entry.name, int(Role.SCALAR))
            entry.ids[_SCALAR] = identity
        context.note_data(self.pending)
        step, writer = context.step, self.writer
        now_ns = time.time_ns() if wall_ns is None else wall_ns
        if isinstance(value, float):
            writer.scalar(step.number, identity, value, now_ns)
            return
        result = value

        def deliver() -> None:
            writer.scalar(step.number, identity, float(result.array[0]), now_ns)

        self.pending.expect(step, result, deliver)

    def flag_later(self, step: Step | None, flags: int, condition: DeviceArray) -> None:
        """Set flags of a step once a device has sent a number other than zero."""
        if step is None:
            return
        number = step.number

        def deliver() -> None:
            if condition.array[0]:
                self.pending.flag(number, flags)

        self.pending.expect(step, condition, deliver, n_records=0)

    # ---- devices -------------------------------------------------------------

    def step_ends(self, step: Step, **rest: Any) -> None:
        """End a step once the results of its devices have arrived.

        Args:
            step: The step.
            **rest: Further arguments of ``Capture.end_step``.
        """
        devices, pending = self._fallback.devices, self.pending
        if devices is not None and devices.unsent:
            devices.send(step)
        # Without devices there is nothing to wait for: no call more in every step.
        end = pending.end_step if pending.has_been_used else self.write_end
        end(step.number, step.mode._value_, step.mode_step, **rest)

    def fetch(self, timeout: float) -> float:
        """Fetch all results of devices so far; return the seconds that it took.

        Raises:
            StorageError: If they did not arrive within *timeout* seconds.
        """
        if self._fallback.devices is not None:
            self._fallback.devices.send_all()
        seconds = self.pending.wait(timeout)
        if self.pending.n_waiting:
            msg = f"a device has not delivered within {timeout:g} s"
            raise StorageError(msg, kind="timeout")
        return seconds

    def begin_values(
        self, context: StepContext, entries: Sequence[TensorEntry], tensors: list[Any]
    ) -> list[int]:
        """Begin to copy values on their devices; ``fence`` before they change.

        Returns:
            The indices of the tensors that are being copied.
        """
        if self.batch_capture is None:
            return []
        begun = self.batch_capture.begin_values(
            context.step.number, [entry.core for entry in entries], tensors
        )
        if begun:
            context.has_data = True
        return begun

    def fence(self) -> None:
        """Let the devices wait for the copies that the batch capture has started."""
        if self.batch_capture is not None:
            self.batch_capture.fence()

    def device_state(self) -> dict[int, dict[str, Any]]:
        """Return the state of each device that tensors were on, by its number."""
        if self.batch_capture is None:
            return {}
        devices = sorted(self.batch_capture.devices)
        return {device: self.writer.device_state(device) for device in devices}

    # ---- counters ------------------------------------------------------------

    @property
    def n_refused(self) -> int:
        """Number of tensors that could not be captured."""
        return self.refusals.n

    @property
    def n_too_large(self) -> int:
        """Number of values left out because they exceed the limit of their entry."""
        of_batch = 0 if self.batch_capture is None else self.batch_capture.n_too_large
        return of_batch + self._fallback.n_too_large

    @property
    def n_repeated(self) -> int:
        """Number of rows copied because the same memory had been reduced already."""
        return 0 if self.batch_capture is None else self.batch_capture.n_repeated
