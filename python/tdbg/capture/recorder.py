"""From tensors to the core: plans, definitions, rows and values.

A plan is a captured tensor's name with all that follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tdbg.capture.naming import unit_name
from tdbg.capture.policy import Policy
from tdbg.capture.sink import Sink
from tdbg.capture.steps import Step
from tdbg.capture.tensors import TensorRef, Tensors
from tdbg.capture.wants import (
    HISTOGRAM,
    ROWS,
    SMALL_VALUES,
    UNITS,
    VALUES,
    StepWants,
)
from tdbg.collections import Role

__all__ = ["Recorder", "StepContext", "TensorPlan"]

MAX_MICRO_BATCH = 65_535  # What the field on disk holds.


class TensorPlan:
    """A captured name.

    Attributes:
        profile: By which the policy says what is wanted of it.
        slot: What the taker knows of it.
        collections: Names of those that it belongs to; None: not asked yet.
        ids: Definitions given out so far, by element type and shape.
    """

    __slots__ = (
        "aliases",
        "collections",
        "ids",
        "name",
        "profile",
        "role",
        "slot",
        "units",
    )

    def __init__(
        self,
        name: str,
        role: Role,
        profile: int,
        aliases: tuple[str, ...] = (),
        slot: Any = None,
    ) -> None:
        self.name = name
        self.role = role
        self.profile = profile
        self.aliases = aliases
        self.collections: list[str] | None = None
        self.ids: dict[tuple[str, tuple[int, ...]], int] = {}
        self.units: TensorPlan | None = None
        self.slot = slot


class StepContext:
    """What the capture side keeps for a step.

    Attributes:
        step: The step.
        wants: What is wanted at it.
        start_ns: When it began (monotonic).
        last_ns: When something last happened in it.
        has_data: Whether anything was captured.
        calls: How often each module was called in this forward.
        done: Parameters and gradients that the step has already.
        found: Says which more it has, by the table that took them.
    """

    __slots__ = (
        "calls",
        "done",
        "found",
        "has_data",
        "last_ns",
        "start_ns",
        "step",
        "wants",
    )

    def __init__(self, step: Step, wants: StepWants, start_ns: int) -> None:
        self.step = step
        self.wants = wants
        self.start_ns = self.last_ns = start_ns
        self.has_data = False
        self.calls: dict[Any, int] = {}
        self.done: set[TensorPlan] = set()
        self.found: dict[Any, Callable[[], Iterable[TensorPlan]]] = {}

    @property
    def takes(self) -> bool:
        """Whether anything more may be captured in this step."""
        return self.wants.is_active and not self.step.is_taken

    def done_so_far(self) -> set[TensorPlan]:
        """``done``, with all that is ``found``."""
        for found in self.found.values():
            self.done.update(found())
        self.found.clear()
        return self.done

    def count_call(self, key: Any) -> int:
        """How often *key* was called before in this forward."""
        count = self.calls.get(key, 0)
        self.calls[key] = count + 1
        return count


class Recorder:
    """Hands tensors to the core, as the policy wants them.

    Args:
        sink: The core's writer.
        policy: What is wanted.
        tensors: How the framework's tensors are read.
    """

    def __init__(
        self, sink: Sink, policy: Policy, tensors: Tensors | None = None
    ) -> None:
        self.sink = sink
        self.policy = policy
        self.plans: dict[tuple[str, Role], TensorPlan] = {}
        self.n_refused = 0
        self._tensors = tensors or Tensors()
        self.taker = self._tensors.taker

    def plan(self, name: str, role: Role, aliases: tuple[str, ...] = ()) -> TensorPlan:
        """The plan for a name; always the same one."""
        plan = self.plans.get((name, role))
        if plan is None:
            profile = self.policy.profile(name, role)
            slot = self._tensors.make_slot(name, int(role), aliases, "")
            plan = TensorPlan(name, role, profile, aliases, slot)
            self.plans[(name, role)] = plan
        return plan

    def calls_of(self, key: object, backward_id: Callable[[], int]) -> Any:
        """A ``_core.CallTaker`` for a module; None where there is no taker."""
        if self.taker is None:
            return None
        return self._tensors.make_calls(self.taker, key, backward_id)

    def parameters(self, entries: Sequence[Any]) -> Any:
        """A ``_core.ParameterList`` of these; None where there is no taker."""
        if self.taker is None:
            return None
        return self._tensors.make_parameters(self.taker, entries)

    def plan_units(self, plan: TensorPlan) -> None:
        """Count the units of the tensor as well, where a rule wants that."""
        if plan.units is None and self.policy.needs.unit_summaries:
            name = unit_name(plan.name)
            profile = self.policy.units_profile
            plan.units = TensorPlan(name, Role.UNIT_SUMMARY, profile)
            plan.slot = self._tensors.make_slot(
                plan.name, int(plan.role), plan.aliases, name
            )
            self.plans[(name, Role.UNIT_SUMMARY)] = plan.units

    def refresh(self) -> None:
        """Think again after a change of collections."""
        for (name, role), plan in self.plans.items():
            plan.collections = None
            if role is not Role.UNIT_SUMMARY:
                plan.profile = self.policy.profile(name, role)

    def take(
        self,
        context: StepContext,
        plans: Sequence[TensorPlan],
        tensors: Sequence[Any],
        wanted: Sequence[int],
        call: int = 0,
        micro_batch: int = 0,
        scale: float = 1.0,
        *,
        reuses: bool = False,
    ) -> None:
        """Take what is wanted of tensors of the framework, now, in one call.

        Args:
            context: The step.
            plans: Their names.
            tensors: They themselves.
            wanted: Of each, as the step's wants say.
            call: Of their module in this forward.
            micro_batch: Of the step.
            scale: Multiplies the elements in statistics and histograms.
            reuses: Whether the row of the same memory is copied.
        """
        context.has_data = True
        micro_batch = min(micro_batch, MAX_MICRO_BATCH)
        left: Iterable[int] | None
        if self.taker is None:
            left = range(len(plans))
        else:
            left = self.taker.take(
                context.step.number,
                [plan.slot for plan in plans],
                tensors,
                wanted,
                call,
                micro_batch,
                scale,
                reuses,
            )
        for index in left or ():
            self.take_other(
                context,
                plans[index],
                tensors[index],
                wanted[index],
                call,
                micro_batch,
                scale,
            )

    def take_other(
        self,
        context: StepContext,
        plan: TensorPlan,
        tensor: Any,
        wanted: int,
        call: int = 0,
        micro_batch: int = 0,
        scale: float = 1.0,
    ) -> None:
        """Take what is wanted of a tensor that the taker cannot read."""
        ref = self._tensors.describe(tensor)
        if ref is None:
            self.refuse(context)
        else:
            self._take(context, plan, ref, wanted, call, micro_batch, scale)

    def capture(
        self, context: StepContext, plan: TensorPlan, ref: TensorRef, call: int = 0
    ) -> None:
        """Take what is wanted of one tensor of any origin, now."""
        wanted = context.wants.of_plan(plan)
        if wanted:
            context.has_data = True
            micro_batch = min(context.step.micro_batch, MAX_MICRO_BATCH)
            self._take(context, plan, ref, wanted, call, micro_batch)

    def _take(
        self,
        context: StepContext,
        plan: TensorPlan,
        ref: TensorRef,
        wanted: int,
        call: int,
        micro_batch: int,
        scale: float = 1.0,
    ) -> None:
        # What _core.Taker does, for what it cannot read.
        pointer, dtype, shape, strides, _, _ = ref
        identity = plan.ids.get((dtype, shape)) or self._define(plan, ref)
        number, sink = context.step.number, self.sink
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
        if micro_batch == 0 and (
            wanted & VALUES
            or (wanted & SMALL_VALUES and all(size == 1 for size in shape))
        ):
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
        if wanted & UNITS and plan.units is not None and shape:
            n_units = shape[1] if len(shape) > 1 else shape[-1]
            sink.unit_summary(
                number,
                self._define(plan.units, TensorRef(0, "uint64", (3, n_units))),
                identity,
                pointer,
                strides,
                call=call,
                micro_batch=micro_batch,
            )

    def begin_forward(self, context: StepContext) -> None:
        """Until ``end_forward``, what is simple is taken without a word to Python."""
        if self.taker is not None:
            step = context.step
            self.taker.begin_forward(
                context, context.calls, context.wants, step.number, step.micro_batch
            )

    def end_forward(self) -> None:
        """From now on modules ask in Python what is wanted."""
        if self.taker is not None:
            self.taker.end_forward()

    def spent_ns(self) -> int:
        """Time of what was taken without a word to Python."""
        return 0 if self.taker is None else self.taker.spent_ns

    @property
    def n_repeated(self) -> int:
        """Rows copied because the same memory was reduced in the step before."""
        return 0 if self.taker is None else self.taker.n_repeated

    def members(self) -> dict[str, list[str]]:
        """The captured names of each collection, sorted."""
        found: dict[str, list[str]] = {}
        for (name, role), plan in self.plans.items():
            if plan.collections is None:
                plan.collections = self.policy.membership(name, role)
            for collection in plan.collections:
                found.setdefault(collection, []).append(name)
        return {collection: sorted(names) for collection, names in found.items()}

    def refuse(self, context: StepContext, n_bytes: int = 0) -> None:
        """Count a tensor that cannot be captured."""
        self.n_refused += 1
        context.has_data = True
        self.sink.refuse(context.step.number, 1, n_bytes)

    def _define(self, plan: TensorPlan, ref: TensorRef) -> int:
        key = (ref.dtype, ref.shape)
        identity = plan.ids.get(key)
        if identity is None:
            identity = plan.ids[key] = self.sink.define(
                plan.name,
                int(plan.role),
                ref.dtype,
                ref.shape,
                item_size=ref.item_size,
                aliases=plan.aliases,
            )
        return identity
