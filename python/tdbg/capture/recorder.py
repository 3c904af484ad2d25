"""From tensors to the core: plans, definitions, rows and values.

A plan is a captured tensor's name with all that follows from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tdbg.capture.contexts import StepContext
from tdbg.capture.late import LateSteps
from tdbg.capture.naming import scalar_name, unit_name
from tdbg.capture.others import OtherTensors
from tdbg.capture.plans import TensorPlan
from tdbg.capture.policy import Policy
from tdbg.capture.remote import RemoteArray, Site
from tdbg.capture.single import SingleTensors
from tdbg.capture.sink import Sink
from tdbg.capture.steps import Step
from tdbg.capture.tensors import TensorRef, Tensors
from tdbg.capture.units import UnitQuestion
from tdbg.collections import Role
from tdbg.errors import StorageError

__all__ = ["Recorder", "StepContext", "TensorPlan"]

MAX_MICRO_BATCH = 65_535  # What the field on disk holds.
_SCALAR = ("", (), None)  # Element type, shape and part of a scalar's definition.


class Recorder:
    """Hands tensors to the core, as the policy wants them.

    Args:
        sink: The core's writer.
        policy: What is wanted.
        tensors: How the framework's tensors are read.

    Attributes:
        is_in_forward: Whether a forward has begun here and not ended.
    """

    def __init__(
        self, sink: Sink, policy: Policy, tensors: Tensors | None = None
    ) -> None:
        self.sink = sink
        self.policy = policy
        self.plans: dict[tuple[str, Role], TensorPlan] = {}
        self.late = LateSteps(sink)
        self._tensors = tensors or Tensors()
        self.taker = self._tensors.taker
        self._single = SingleTensors(sink, self.late, self._tensors.remote)
        self._others = OtherTensors(self._tensors, self._single)
        self.is_in_forward = False

    def plan(
        self,
        name: str,
        role: Role,
        aliases: tuple[str, ...] = (),
        classes: frozenset[str] = frozenset(),
        question: UnitQuestion | None = None,
    ) -> TensorPlan:
        """The plan for a name; always the same one.

        Args:
            name: The name.
            role: What it is of.
            aliases: Other names of the same.
            classes: Names of the classes of the module that it is of.
            question: What is counted of its units, where a rule wants that, now or
                later; None: they never are.
        """
        plan = self.plans.get((name, role))
        if plan is None:
            profile = self.policy.profile(name, role, classes)
            plan = TensorPlan(name, role, profile, aliases, None, classes)
            if question is not None:
                plan.question, plan.has_units = question, True
            self._make_slot(plan)
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

    def _make_slot(self, plan: TensorPlan) -> None:
        policy, units = self.policy, ""
        if self._counts_units(plan):
            units = unit_name(plan.name)
            profile = policy.units_profile(plan.role, plan.classes)
            plan.units = TensorPlan(units, Role.UNIT_SUMMARY, profile)
            self.plans[(units, Role.UNIT_SUMMARY)] = plan.units
        plan.slot = self._tensors.make_slot(
            plan.name, int(plan.role), plan.aliases, units, **plan.question._asdict()
        )
        plan.parts = {}
        self._limit_raw(plan)

    def _counts_units(self, plan: TensorPlan) -> bool:
        needed = self.policy.needed
        return plan.has_units and bool(needed.units_of(plan.role, plan.classes))

    def _limit_raw(self, plan: TensorPlan) -> None:
        limit = self.policy.needed.raw_limit(plan.name, plan.role, plan.classes)
        if limit:
            plan.limit_raw(limit)

    def refresh(self) -> None:
        """Think again after a change of collections, or of what rules need."""
        for (name, role), plan in list(self.plans.items()):
            plan.collections = None
            if role is Role.UNIT_SUMMARY:
                continue
            plan.profile = self.policy.profile(name, role, plan.classes)
            if plan.units is not None:
                profile = self.policy.units_profile(role, plan.classes)
                plan.units.profile = profile
            elif self._counts_units(plan):
                self._make_slot(plan)
            self._limit_raw(plan)

    def take(
        self,
        context: StepContext,
        plans: Sequence[TensorPlan],
        tensors: Sequence[Any],
        wanted: Sequence[int],
        call: int = 0,
        micro_batch: int = 0,
        scale: Any = 1.0,
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
            scale: Multiplies the elements in statistics and histograms; or a tensor
                of one element on their device, which only the device reads, that
                divides them.
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
        if left:
            given = [(plans[i], tensors[i], wanted[i]) for i in left]
            site = Site(0, call, micro_batch)
            self._others.take(context.step, given, site, scale, reuses=reuses)

    def take_others(
        self, context: StepContext, given: Iterable[tuple[TensorPlan, Any, int]]
    ) -> None:
        """Take tensors that the taker could not read.

        Args:
            context: The step.
            given: Plans and tensors, with what is wanted.
        """
        self._others.take(context.step, given)

    def capture(
        self, context: StepContext, plan: TensorPlan, ref: Any, call: int = 0
    ) -> None:
        """Take what is wanted of one tensor of the framework or of a reference, now."""
        wanted = context.wants.of_plan(plan)
        if wanted:
            context.note_data(self.late)
            micro_batch = min(context.step.micro_batch, MAX_MICRO_BATCH)
            if isinstance(ref, TensorRef):
                site = Site(0, call, micro_batch)
                self._single.take(context.step, plan, ref, wanted, site)
            else:
                self.take(context, (plan,), (ref,), (wanted,), call, micro_batch)

    def device_state(self) -> dict[int, dict[str, Any]]:
        """What became of the devices of which there were tensors."""
        if self.taker is None:
            return {}
        devices = sorted(self.taker.devices)
        return {device: self.sink.device_state(device) for device in devices}

    def begin_forward(self, context: StepContext) -> None:
        """Until ``end_forward``, what is simple is taken without a word to Python."""
        if self.taker is not None:
            self.is_in_forward = True
            step = context.step
            self.taker.begin_forward(
                context, context.calls, context.wants, step.number, step.micro_batch
            )

    def end_forward(self) -> None:
        """From now on modules ask in Python what is wanted."""
        self.is_in_forward = False
        if self.taker is not None:
            self.taker.end_forward()

    @property
    def n_too_large(self) -> int:
        """Values that were not kept because they are larger than rules want them."""
        of_taker = 0 if self.taker is None else self.taker.n_too_large
        return of_taker + self._single.n_too_large

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
        context.note_data(self.late)
        self._single.refuse(context.step.number, 1, n_bytes)

    @property
    def n_refused(self) -> int:
        """Tensors that could not be captured."""
        return self._single.n_refused

    def scalar(
        self,
        context: StepContext,
        name: str,
        value: float | RemoteArray | None,
        wall_ns: int | None = None,
    ) -> None:
        """Record a number, now or when it has arrived; None counts as refused."""
        if value is None:
            self.refuse(context)
            return
        plan = self.plan(scalar_name(name), Role.SCALAR)
        identity = plan.ids.get(_SCALAR)
        if identity is None:
            identity = self.sink.define(plan.name, int(Role.SCALAR))
            plan.ids[_SCALAR] = identity
        context.note_data(self.late)
        step, sink = context.step, self.sink
        now_ns = time.time_ns() if wall_ns is None else wall_ns
        if isinstance(value, float):
            sink.scalar(step.number, identity, value, now_ns)
            return
        number = value

        def deliver() -> None:
            sink.scalar(step.number, identity, float(number.array[0]), now_ns)

        self.late.expect(step, number, deliver)

    def flag_later(self, step: Step | None, flags: int, condition: RemoteArray) -> None:
        """Set flags of a step if what is on its way is not zero."""
        if step is None:
            return
        number = step.number

        def deliver() -> None:
            if condition.array[0]:
                self.late.flag(number, flags)

        self.late.expect(step, condition, deliver, n_records=0)

    def fetch(self, timeout: float) -> float:
        """Fetch what devices have so far; the seconds that it took.

        Raises:
            StorageError: If it did not arrive within *timeout* seconds.
        """
        self._single.send_all()
        seconds = self.late.wait(timeout)
        if self.late.n_waiting:
            msg = f"a device has not delivered within {timeout:g} s"
            raise StorageError(msg, kind="timeout")
        return seconds

    def fence(self) -> None:
        """Let devices do nothing more before the copies that ``taker`` has begun."""
        if self.taker is not None:
            self.taker.fence()

    def step_ends(self, step: Step) -> None:
        """Nothing more will be taken in this step: begin to fetch what is far."""
        remote = self._single.remote
        if remote is not None and remote.lanes:
            remote.send(step)
