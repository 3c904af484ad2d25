"""Tensors one by one, from where a reference says that they lie.

What ``_core.Taker`` does in one call for many, for those that it cannot read: arrays
of NumPy, tensors of unusual layouts, and tensors on devices without kernels.

Thread safety: the recorder's.

Errors: what cannot be captured is refused and counted.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tdbg.capture.late import LateSteps
from tdbg.capture.plans import TensorPlan
from tdbg.capture.remote import RESCALED, RemoteBackend, RemoteTensors, Site
from tdbg.capture.sink import Sink
from tdbg.capture.steps import Step
from tdbg.capture.tensors import TensorRef, bytes_of
from tdbg.capture.units import UnitQuestion
from tdbg.capture.wants import (
    HISTOGRAM,
    LIMITED_VALUES,
    ROWS,
    SMALL_VALUES,
    UNITS,
    VALUES,
)

__all__ = ["SingleTensors"]


class SingleTensors:
    """Takes what is wanted of one tensor at a time.

    Args:
        sink: The core's writer.
        late: Waits for what devices send.
        backend: What the framework does on its devices; None: nothing.

    Attributes:
        n_refused: Tensors that could not be captured.
        remote: Takes those on devices; None: nothing does.
        n_too_large: Values that were not kept because their plans have a limit.
    """

    def __init__(
        self, sink: Sink, late: LateSteps, backend: RemoteBackend | None
    ) -> None:
        self._sink = sink
        self.remote: RemoteTensors | None = None
        if backend is not None:
            self.remote = RemoteTensors(sink, late, backend, self.refuse)
        self.n_refused = 0
        self.n_too_large = 0

    def take(
        self,
        step: Step,
        plan: TensorPlan,
        ref: TensorRef,
        wanted: int,
        site: Site,
        scale: Any = 1.0,
    ) -> None:
        """Take what is wanted of a tensor, now.

        Args:
            step: The step.
            plan: Its name.
            ref: Where it lies.
            wanted: As the step's wants say.
            site: Of which call; its identity is found here.
            scale: As for ``Recorder.take``.
        """
        key = ref.dtype, ref.shape, ref.part
        identity = plan.ids.get(key) or self._define(plan, ref)
        site = site._replace(identity=identity)
        wanted = self._limited(plan, ref, wanted, site)
        units = None
        if wanted & UNITS and plan.units is not None and ref.shape:
            units = self._define(plan.units, _units_of(ref.shape, plan.question))
        if ref.is_remote:
            self._take_remote(step, ref, wanted, site, scale, units, plan.question)
        elif isinstance(scale, float):
            question = plan.question
            self._take_local(step.number, ref, wanted, site, scale, units, question)
        else:
            self.refuse(step.number, 1, 0)  # The factor lies on a device, it does not.

    def take_row(
        self,
        step: Step,
        plan: TensorPlan,
        ref: TensorRef,
        words: NDArray[Any],
        wanted: int,
        site: Site,
        scale: float,
    ) -> None:
        """Take the row of a tensor of which there is nothing else.

        Args:
            step: The step.
            plan: Its name.
            ref: Its element type and shape; it lies nowhere.
            words: Its row, at that scale (``ComputedRow``).
            wanted: As the step's wants say; what is no row is refused.
            site: Of which call; its identity is found here.
            scale: A factor that was applied.
        """
        identity = self._define(plan, ref)
        wanted = self._limited(plan, ref, wanted, site)
        if wanted & ROWS:
            _, call, micro_batch = site
            flags = RESCALED if scale != 1.0 else 0
            self._sink.add_rows(
                step.number, (identity,), (call,), (micro_batch,), (flags,), words
            )
        n_more = int(_wants_values(wanted, site.micro_batch, ref.shape))
        n_more += int(bool(wanted & HISTOGRAM))
        if n_more:
            self.refuse(step.number, n_more, 0)

    def take_units(
        self, step: Step, plan: TensorPlan, table: NDArray[Any] | None, site: Site
    ) -> None:
        """Take the counts of the units of a tensor of which its framework made them.

        Args:
            step: The step.
            plan: Its name.
            table: Active, beyond and count of each (uint64); None is refused.
            site: Of which call; its identity is found here.
        """
        if table is None or plan.units is None:
            self.refuse(step.number, 1, 0)
            return
        ref = TensorRef(table.ctypes.data, "uint64", table.shape)
        identity = self._define(plan.units, ref)
        _, call, micro_batch = site
        self._sink.values(
            step.number, identity, ref.pointer, call=call, micro_batch=micro_batch
        )

    def send_all(self) -> None:
        """Begin to fetch what devices have of any step."""
        if self.remote is not None:
            self.remote.send_all()

    def refuse(self, number: int, n_records: int, n_bytes: int) -> None:
        """Count what cannot be captured."""
        self.n_refused += n_records
        self._sink.refuse(number, n_records, n_bytes)

    def _take_local(
        self,
        number: int,
        ref: TensorRef,
        wanted: int,
        site: Site,
        scale: float,
        units: int | None,
        question: UnitQuestion,
    ) -> None:
        sink, (identity, call, micro_batch) = self._sink, site
        pointer, strides = ref.pointer, ref.strides
        if wanted & ROWS:
            sink.statistics(
                number,
                (identity,),
                (pointer,),
                None if strides is None else (strides,),
                call=call,
                micro_batch=micro_batch,
                scale=scale,
            )
        if _wants_values(wanted, micro_batch, ref.shape):
            sink.values(number, identity, pointer, strides, call=call)
        if wanted & HISTOGRAM:
            sink.count_histogram(
                number,
                identity,
                pointer,
                strides,
                call=call,
                micro_batch=micro_batch,
                scale=scale,
            )
        if units is not None:
            sink.unit_summary(
                number,
                units,
                identity,
                pointer,
                strides,
                call=call,
                micro_batch=micro_batch,
                **question._asdict(),
            )

    def _take_remote(
        self,
        step: Step,
        ref: TensorRef,
        wanted: int,
        site: Site,
        scale: Any,
        units: int | None,
        question: UnitQuestion,
    ) -> None:
        remote = self.remote
        if remote is None:
            self.refuse(step.number, 1, 0)
            return
        if wanted & ROWS:
            remote.row(step, ref.owner, site, scale)
        if _wants_values(wanted, site.micro_batch, ref.shape):
            remote.values(step, ref.owner, site)
        if wanted & HISTOGRAM:
            self.refuse(step.number, 1, 0)
        if units is not None:
            remote.units(step, ref.owner, site._replace(identity=units), question)

    def _limited(
        self, plan: TensorPlan, ref: TensorRef, wanted: int, site: Site
    ) -> int:
        """What is wanted, with values where they are small enough for the plan."""
        if not wanted & LIMITED_VALUES or site.micro_batch:
            return wanted
        if plan.keeps(bytes_of(ref)):
            return wanted | VALUES
        self.n_too_large += 1
        return wanted

    def _define(self, plan: TensorPlan, ref: TensorRef) -> int:
        key = ref.dtype, ref.shape, ref.part
        identity = plan.ids.get(key)
        if identity is None:
            where = {} if ref.part is None else ref.part._asdict()
            identity = plan.ids[key] = self._sink.define(
                plan.name,
                int(plan.role),
                ref.dtype,
                ref.shape,
                item_size=ref.item_size,
                aliases=plan.aliases,
                **where,
            )
        return identity


def _wants_values(wanted: int, micro_batch: int, shape: tuple[int, ...]) -> bool:
    """Whether values are due: of several micro-batches the first one's are."""
    if micro_batch:
        return False
    is_small = wanted & SMALL_VALUES and all(size == 1 for size in shape)
    return bool(wanted & VALUES or is_small)


def _units_of(shape: tuple[int, ...], question: UnitQuestion) -> TensorRef:
    """The counts of the units of such a tensor."""
    n_units = shape[question.axis(len(shape))]
    return TensorRef(0, "uint64", (3, n_units))
