"""From tensors to the core: plans, definitions, rows and values.

A plan is a captured tensor's name with all that follows from it.  A reference
says where the tensor lies now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tdbg.capture.naming import unit_name
from tdbg.capture.policy import ROWS, SMALL_VALUES, VALUES, Policy, StepWants
from tdbg.capture.sink import Sink
from tdbg.capture.steps import Step
from tdbg.collections import Role

__all__ = ["Recorder", "StepContext", "TensorPlan", "TensorRef"]

MAX_MICRO_BATCH = 65_535  # What the field on disk holds.


class TensorRef(NamedTuple):
    """Where a tensor lies.

    Attributes:
        pointer: Address in the memory of the CPU.
        dtype: NumPy's or ml_dtypes' name, or another NumPy ``dtype.str``.
        shape: Its dimensions.
        strides: In bytes; None where it is contiguous.
        item_size: Bytes per element; needed for a ``dtype.str`` only.
        owner: Keeps the memory where it is as long as the reference lives.
    """

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    item_size: int = 0
    owner: object = None


class TensorPlan:
    """A captured name.

    Attributes:
        profile: By which the policy says what is wanted of it.
        collections: Names of those that it belongs to; None: not asked yet.
        ids: Definitions given out so far, by element type and shape.
    """

    __slots__ = ("aliases", "collections", "ids", "name", "profile", "role", "units")

    def __init__(
        self, name: str, role: Role, profile: int, aliases: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.role = role
        self.profile = profile
        self.aliases = aliases
        self.collections: list[str] | None = None
        self.ids: dict[tuple[str, tuple[int, ...]], int] = {}
        self.units: TensorPlan | None = None


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
    """

    __slots__ = ("calls", "done", "has_data", "last_ns", "start_ns", "step", "wants")

    def __init__(self, step: Step, wants: StepWants, start_ns: int) -> None:
        self.step = step
        self.wants = wants
        self.start_ns = self.last_ns = start_ns
        self.has_data = False
        self.calls: dict[Any, int] = {}
        self.done: set[TensorPlan] = set()

    @property
    def takes(self) -> bool:
        """Whether anything more may be captured in this step."""
        return self.wants.is_active and not self.step.is_taken

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
    """

    def __init__(self, sink: Sink, policy: Policy) -> None:
        self.sink = sink
        self.policy = policy
        self.plans: dict[tuple[str, Role], TensorPlan] = {}
        self.n_refused = 0

    def plan(self, name: str, role: Role, aliases: tuple[str, ...] = ()) -> TensorPlan:
        """The plan for a name; always the same one."""
        plan = self.plans.get((name, role))
        if plan is None:
            profile = self.policy.profile(name, role)
            plan = self.plans[(name, role)] = TensorPlan(name, role, profile, aliases)
        return plan

    def plan_units(self, plan: TensorPlan) -> None:
        """Count the units of the tensor as well, where a rule wants that."""
        if plan.units is None and self.policy.needs.unit_summaries:
            plan.units = TensorPlan(
                unit_name(plan.name), Role.UNIT_SUMMARY, self.policy.units_profile
            )
            self.plans[(plan.units.name, Role.UNIT_SUMMARY)] = plan.units

    def refresh(self) -> None:
        """Think again after a change of collections."""
        for (name, role), plan in self.plans.items():
            plan.collections = None
            if role is not Role.UNIT_SUMMARY:
                plan.profile = self.policy.profile(name, role)

    def capture(
        self, context: StepContext, plan: TensorPlan, ref: TensorRef, call: int = 0
    ) -> None:
        """Take what is wanted of a tensor, now."""
        wanted = context.wants.of(plan.profile)
        if plan.units is not None and context.wants.of(plan.units.profile):
            self._count_units(context, plan, plan.units, ref, call)
        if not wanted:
            return
        context.has_data = True
        pointer, dtype, shape, strides, _, _ = ref
        identity = plan.ids.get((dtype, shape)) or self._define(plan, ref)
        step = context.step
        if wanted & ROWS:
            self.sink.statistics(
                step.number,
                (identity,),
                (pointer,),
                None if strides is None else (strides,),
                call=call,
                micro_batch=min(step.micro_batch, MAX_MICRO_BATCH),
            )
        if step.micro_batch == 0 and (
            wanted & VALUES
            or (wanted & SMALL_VALUES and all(size == 1 for size in shape))
        ):
            self.sink.values(step.number, identity, pointer, strides, call=call)

    def capture_all(
        self,
        context: StepContext,
        tensors: Sequence[tuple[TensorPlan, TensorRef]],
        scale: float = 1.0,
    ) -> None:
        """Take what is wanted of many tensors, their statistics in one call."""
        if not tensors:
            return
        context.has_data = True
        wants, number = context.wants, context.step.number
        identities, pointers, strides = [], [], []
        is_strided = False
        for plan, ref in tensors:
            wanted = wants.of(plan.profile)
            pointer, dtype, shape, steps, _, _ = ref
            identity = plan.ids.get((dtype, shape)) or self._define(plan, ref)
            if wanted & ROWS:
                identities.append(identity)
                pointers.append(pointer)
                strides.append(steps)
                is_strided = is_strided or steps is not None
            if wanted & VALUES:
                self.sink.values(number, identity, pointer, steps)
        if identities:
            layout = strides if is_strided else None
            self.sink.statistics(number, identities, pointers, layout, scale=scale)

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

    def _count_units(
        self,
        context: StepContext,
        plan: TensorPlan,
        units: TensorPlan,
        ref: TensorRef,
        call: int,
    ) -> None:
        if not ref.shape:
            return
        n_units = ref.shape[1] if len(ref.shape) > 1 else ref.shape[-1]
        step = context.step
        context.has_data = True
        self.sink.unit_summary(
            step.number,
            self._define(units, TensorRef(0, "uint64", (3, n_units))),
            self._define(plan, ref),
            ref.pointer,
            ref.strides,
            call=call,
            micro_batch=min(step.micro_batch, MAX_MICRO_BATCH),
        )

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
