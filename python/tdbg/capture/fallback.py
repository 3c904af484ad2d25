"""Tensors that the batch capture refused, captured one by one.

They are parts of distributed tensors, tensors of unusual layouts and of element types
without statistics, sparse tensors, and tensors on devices without the core's kernels.

Thread safety: none; the thread of the recorder.

Errors: a tensor that cannot be captured here either is refused and counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from tdbg.capture.adapter import (
    FrameworkAdapter,
    Part,
    TensorRef,
    UnitSummarySpec,
    bytes_of,
)
from tdbg.capture.device import CallSite, DeviceTensors, PendingSteps, Target
from tdbg.capture.refusals import Refusals
from tdbg.capture.schedule import (
    HISTOGRAM,
    LIMITED_VALUES,
    ROWS,
    SMALL_VALUES,
    UNITS,
    VALUES,
)
from tdbg.capture.steps import Step
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.run.schema import RowFlag

if TYPE_CHECKING:
    from tdbg._core import BatchCapture
    from tdbg.capture.writer import Writer

__all__ = ["FallbackCapture", "TensorRequest"]


class TensorRequest(NamedTuple):
    """A tensor to capture.

    Attributes:
        entry: Its name.
        tensor: The tensor, or the part of it that lies on this rank.
        flags: What to capture of it, as a step plan says.
        part: Where the part lies in the whole; None: it is the whole.
    """

    entry: TensorEntry
    tensor: Any
    flags: int
    part: Part | None = None


# A sparse tensor is filled up with its zeros up to this size.
MOST_DENSE_BYTES = 64 << 20
# Why a tensor is not captured.
PART_UNKNOWN = "this rank's part of the distributed tensor is not known"
SPLIT_UNITS = "each rank holds only a part of each unit"
FACTOR_ELSEWHERE = "the loss scale lies on a device, and the tensor does not"
OF_DEVICE = "tdbg cannot read tensors of this device"
DEVICE_HISTOGRAM = "tdbg has no histograms of tensors that lie on this device"
TOO_SPARSE = "the tensor is sparse, and with its zeros larger than 64 MiB"


class FallbackCapture:
    """Captures tensors in whichever way is left.

    It tries, in this order:

    1. The part of a distributed tensor on this rank, by the batch capture again.
    2. A tensor whose memory the framework describes: on the CPU by the core, on a
       device by the framework (``DeviceTensors``).
    3. A tensor without plain memory, by statistics that the framework computes.

    Args:
        writer: Receives what is captured.
        adapter: Reads the framework's tensors.
        batch_capture: The one that refused them; None: there is none.
        pending: Waits for results of devices.

    Attributes:
        devices: Captures tensors on devices; None if the framework cannot.
        refusals: Counts the records that could not be captured.
        n_too_large: Number of values that exceeded the limit of their entry.
    """

    def __init__(
        self,
        writer: Writer,
        adapter: FrameworkAdapter,
        batch_capture: BatchCapture | None,
        pending: PendingSteps,
    ) -> None:
        self._writer = writer
        self._adapter = adapter
        self._batch_capture = batch_capture
        self.refusals = Refusals(writer)
        self.devices: DeviceTensors | None = None
        backend = adapter.device_backend
        if backend is not None:
            self.devices = DeviceTensors(writer, pending, backend, self.refusals)
        self.n_too_large = 0

    def take(
        self,
        step: Step,
        requests: Iterable[TensorRequest],
        site: CallSite = CallSite(),  # noqa: B008 - a value
        scale: Any = 1.0,
        *,
        reuses: bool = False,
    ) -> None:
        """Capture tensors now.

        Args:
            step: The step.
            requests: The tensors, whole.
            site: Which call they belong to.
            scale: As for ``Recorder.take``.
            reuses: As for ``Recorder.take``.
        """
        parts: list[TensorRequest] = []
        for request in requests:
            local = self._adapter.local_shard(request.tensor)
            if local is None:
                self._take_whole(step, request, site, scale)
            elif local.tensor is None:
                self._refuse(step, request.entry, PART_UNKNOWN)
            else:
                entry, _, flags, _ = request
                if flags & UNITS and _splits_units(entry, local.part):
                    # A rank holds only some elements of each unit.
                    self._refuse(step, entry.units or entry, SPLIT_UNITS)
                    flags &= ~UNITS
                parts.append(TensorRequest(entry, local.tensor, flags, local.part))
        if parts:
            self._take_parts(step, parts, site, scale, reuses=reuses)

    def take_ref(
        self,
        step: Step,
        entry: TensorEntry,
        ref: TensorRef,
        flags: int,
        site: CallSite,
        scale: Any = 1.0,
    ) -> None:
        """Capture a tensor whose place in memory is known.

        Args:
            step: The step.
            entry: The tensor's name.
            ref: Where it lies.
            flags: What to capture of it.
            site: Which call it belongs to.
            scale: As for ``Recorder.take``.
        """
        flags = self._with_limit(entry, ref, flags, site)
        if ref.on_device:
            self._take_on_device(step, entry, ref, flags, site, scale)
        elif isinstance(scale, float):
            self._take_on_cpu(step.number, entry, ref, flags, site, scale)
        else:
            self._refuse(step, entry, FACTOR_ELSEWHERE)

    def take_numbers(
        self,
        step: int,
        entries: Iterable[TensorEntry],
        numbers: NDArray[Any],
        flags: Iterable[int],
    ) -> None:
        """Capture numbers, as ``Recorder.take_numbers`` does, one by one."""
        dtype, size, place = numbers.dtype.name, numbers.itemsize, numbers.ctypes.data
        for i, (entry, requested) in enumerate(zip(entries, flags, strict=True)):
            ref = TensorRef(place + i * size, dtype, (), None, size, numbers)
            taken = self._with_limit(entry, ref, requested, CallSite())
            self._take_on_cpu(step, entry, ref, taken, CallSite(), 1.0)

    def _refuse(self, step: Step, entry: TensorEntry, why: str, n: int = 1) -> None:
        self.refusals.add(step.number, entry.name, why, n)

    # ---- 1. parts of distributed tensors -------------------------------------

    def _take_parts(
        self,
        step: Step,
        parts: list[TensorRequest],
        site: CallSite,
        scale: Any,
        *,
        reuses: bool,
    ) -> None:
        unhandled: Iterable[int] | None = range(len(parts))
        if self._batch_capture is not None:
            unhandled = self._batch_capture.take(
                step.number,
                [each.entry.shard(each.part) for each in parts],
                [each.tensor for each in parts],
                [each.flags for each in parts],
                site.call,
                site.micro_batch,
                scale,
                reuses,
            )
        for index in unhandled or ():
            self._take_whole(step, parts[index], site, scale)

    def _take_whole(
        self, step: Step, request: TensorRequest, site: CallSite, scale: Any
    ) -> None:
        entry, tensor, flags, part = request
        ref = self._adapter.describe(tensor)
        if ref is None:
            self._take_computed(step, request, site, scale)
        else:
            ref = ref if part is None else ref._replace(part=part)
            self.take_ref(step, entry, ref, flags, site, scale)

    # ---- 2. memory that the framework describes ------------------------------

    def _take_on_cpu(
        self,
        number: int,
        entry: TensorEntry,
        ref: TensorRef,
        flags: int,
        site: CallSite,
        scale: float,
    ) -> None:
        writer, (call, micro_batch) = self._writer, site
        identity = entry.id_of(ref, writer)
        pointer, strides = ref.pointer, ref.strides
        if flags & ROWS:
            writer.statistics(
                number,
                (identity,),
                (pointer,),
                None if strides is None else (strides,),
                call=call,
                micro_batch=micro_batch,
                scale=scale,
            )
        if _keeps_values(flags, micro_batch, ref.shape):
            writer.values(number, identity, pointer, strides, call=call)
        if flags & HISTOGRAM:
            writer.count_histogram(
                number,
                identity,
                pointer,
                strides,
                call=call,
                micro_batch=micro_batch,
                scale=scale,
            )
        units, spec = entry.units, entry.unit_spec
        if flags & UNITS and units is not None and spec is not None and ref.shape:
            writer.unit_summary(
                number,
                units.id_of(_summary_ref(spec, ref.shape), writer),
                identity,
                pointer,
                strides,
                call=call,
                micro_batch=micro_batch,
                low=spec.low,
                high=spec.high,
                rows_are_units=spec.rows_are_units,
                units_last=spec.units_last,
            )

    def _take_on_device(
        self,
        step: Step,
        entry: TensorEntry,
        ref: TensorRef,
        flags: int,
        site: CallSite,
        scale: Any,
    ) -> None:
        devices, tensor = self.devices, ref.owner
        if devices is None:
            self._refuse(step, entry, OF_DEVICE)
            return
        identity = entry.id_of(ref, self._writer)
        if flags & ROWS:
            devices.row(step, Target(entry.name, identity), tensor, site, scale)
        if _keeps_values(flags, site.micro_batch, ref.shape):
            devices.values(step, Target(entry.name, identity), tensor, site)
        if flags & HISTOGRAM:
            self._refuse(step, entry, DEVICE_HISTOGRAM)
        units, spec = entry.units, entry.unit_spec
        if flags & UNITS and units is not None and spec is not None and ref.shape:
            identity = units.id_of(_summary_ref(spec, ref.shape), self._writer)
            devices.units(step, Target(units.name, identity), tensor, site, spec)

    # ---- 3. statistics that the framework computes ---------------------------

    def _take_computed(
        self, step: Step, request: TensorRequest, site: CallSite, scale: Any
    ) -> None:
        entry, tensor, flags, part = request
        row = None
        if isinstance(scale, float):
            row = self._adapter.compute_row(tensor, scale)
        if row is None:
            self._refuse(step, entry, _unreadable(tensor))
            return
        ref = TensorRef(0, row.dtype, row.shape, part=part)  # It lies nowhere.
        identity = entry.id_of(ref, self._writer)
        flags = self._with_limit(entry, ref, flags, site)
        call, micro_batch = site
        if flags & ROWS:
            self._writer.add_rows(
                step.number,
                (identity,),
                (call,),
                (micro_batch,),
                (RowFlag.RESCALED if scale != 1.0 else 0,),
                row.words,
            )
        n_dense = int(_keeps_values(flags, micro_batch, ref.shape))
        n_dense += int(bool(flags & HISTOGRAM))
        if n_dense:
            self._take_dense(step, request, ref, flags, site, scale, n_dense)
        if flags & UNITS and entry.units is not None:
            self._take_computed_units(step, entry.units, tensor, site)

    def _take_dense(
        self,
        step: Step,
        request: TensorRequest,
        ref: TensorRef,
        flags: int,
        site: CallSite,
        scale: float,
        n_records: int,
    ) -> None:
        """Capture values and histogram of a sparse tensor, with all of its zeros."""
        entry, tensor = request.entry, request.tensor
        is_small = bytes_of(ref) <= MOST_DENSE_BYTES
        dense = self._adapter.to_dense(tensor) if is_small else None
        if dense is None:
            why = _unreadable(tensor) if is_small else TOO_SPARSE
            self._refuse(step, entry, why, n_records)
            return
        ref = dense._replace(part=request.part)
        kept = flags & ~(ROWS | UNITS)
        self._take_on_cpu(step.number, entry, ref, kept, site, scale)

    def _take_computed_units(
        self, step: Step, units: TensorEntry, tensor: Any, site: CallSite
    ) -> None:
        table = self._adapter.compute_units(tensor)
        if table is None:
            self._refuse(step, units, _unreadable(tensor))
            return
        ref = TensorRef(table.ctypes.data, "uint64", table.shape)
        self._writer.values(
            step.number,
            units.id_of(ref, self._writer),
            ref.pointer,
            call=site.call,
            micro_batch=site.micro_batch,
        )

    def _with_limit(
        self, entry: TensorEntry, ref: TensorRef, flags: int, site: CallSite
    ) -> int:
        """Return the flags, with VALUES if the limit of the entry allows them."""
        if not flags & LIMITED_VALUES or site.micro_batch:
            return flags
        if entry.core.is_within_limit(bytes_of(ref)):
            return flags | VALUES
        self.n_too_large += 1
        return flags


def _unreadable(tensor: Any) -> str:
    """Say what cannot be read."""
    dtype = getattr(tensor, "dtype", None)
    of_dtype = "" if dtype is None else f" of {dtype}"
    layout = getattr(tensor, "layout", None)
    how = "" if layout is None or "strided" in str(layout) else f", {layout}"
    return f"tdbg cannot read a {type(tensor).__name__}{of_dtype}{how}"


def _keeps_values(flags: int, micro_batch: int, shape: tuple[int, ...]) -> bool:
    # Only the values of the first micro-batch are kept.
    if micro_batch:
        return False
    is_small = flags & SMALL_VALUES and all(size == 1 for size in shape)
    return bool(flags & VALUES or is_small)


def _summary_ref(spec: UnitSummarySpec, shape: tuple[int, ...]) -> TensorRef:
    """Return what the unit summary of a tensor of that shape looks like."""
    return TensorRef(0, "uint64", (3, shape[spec.axis(len(shape))]))


def _splits_units(entry: TensorEntry, part: Part | None) -> bool:
    if part is None or entry.units is None or entry.unit_spec is None:
        return False
    return part.splits(entry.unit_spec.axis(len(part.global_shape)))
