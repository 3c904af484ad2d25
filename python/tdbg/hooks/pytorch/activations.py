"""Inputs and outputs of modules and losses, as their hooks are given them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._C import _current_graph_task_id

from tdbg.capture.naming import MAX_CALLS, activation_name, tensors_in
from tdbg.capture.recorder import StepContext, TensorPlan
from tdbg.capture.session import Session
from tdbg.capture.units import UnitQuestion
from tdbg.capture.wants import StepWants
from tdbg.collections import Role
from tdbg.hooks.pytorch.callbacks import NOT_IN_BACKWARD
from tdbg.hooks.pytorch.tensors import is_tensor
from tdbg.modes import ModeKeys

__all__ = ["Activations", "take_both"]

_Tensor = torch.Tensor
_GIVEN = frozenset({Role.INPUT, Role.MODEL_INPUT, Role.PREDICTION, Role.LABEL})
_NOTHING = (None, 0)  # A slot and what is wanted of it.


class _Choice(NamedTuple):
    """What is wanted of one call's tensors; nothing where there are no plans."""

    plans: tuple[TensorPlan, ...] = ()
    wanted: tuple[int, ...] = ()

    def __add__(self, other: object) -> _Choice:
        if not isinstance(other, _Choice):
            return NotImplemented
        return _Choice(self.plans + other.plans, self.wanted + other.wanted)

    def of_single(self) -> tuple[Any, int]:
        """Slot and flags of the only tensor, as ``_core.CallTaker`` wants them."""
        return (self.plans[0].slot, self.wanted[0]) if self.plans else (None, 0)


class Activations:
    """Captures the inputs or the outputs of one module or loss.

    Args:
        session: Where they go.
        mode: Says the present mode.
        path: What their names begin with.
        role: What they are.
        aliases: Further paths of the same module.
        classes: Names of the classes of the module.
        question: What is counted of units, where a rule wants that; None: they
            are not.
    """

    def __init__(
        self,
        session: Session,
        mode: Callable[[], ModeKeys],
        path: str,
        role: Role,
        aliases: tuple[str, ...] = (),
        classes: frozenset[str] = frozenset(),
        question: UnitQuestion | None = None,
    ) -> None:
        self._session = session
        self._mode = mode
        self._path = path
        self._role = role
        self._is_input = role in _GIVEN
        self._direction = "input" if self._is_input else "output"
        self._aliases = aliases
        self._classes = classes
        self._question = question
        self._key = object()
        self._index_runs = session.policy.naming.index_runs
        self._plans: dict[tuple[int, int], TensorPlan] = {}
        # Nearly every call is the first in its forward, of a single tensor.
        self._single: dict[StepWants, _Choice] = {}

    def quick(self) -> Any:
        """A ``_core.CallTaker`` that takes what is simple, or None."""
        return self._session.recorder.calls_of(self._key, _current_graph_task_id)

    def take(self, value: Any, quick: Any = None) -> None:
        """Capture the tensors in *value*, as they are now.

        Args:
            value: What the call was given or answered.
            quick: Is told what is wanted of a single tensor, for the next time.
        """
        if _current_graph_task_id() != NOT_IN_BACKWARD:
            return  # A checkpointed forward that is recomputed.
        session = self._session
        context = session.forward_context or session.module_called(self._mode())
        if context is None:
            return
        call = self.count_call(context)
        if type(value) is tuple and len(value) == 1:
            value = value[0]
        if type(value) is _Tensor and call == 0:
            choice = self._single.get(context.wants) or self.single(context.wants)
            tensors = (value,)
            if quick is not None:
                wanted = choice.of_single()
                given, answered = (_NOTHING, wanted)
                if self._is_input:
                    given, answered = wanted, _NOTHING
                quick.prepare(context.wants, *given, *answered)
        else:
            choice, tensors = self.choose(value, call, context)
        if choice.plans:
            session.recorder.take(
                context,
                choice.plans,
                tensors,
                choice.wanted,
                call,
                context.step.micro_batch,
                reuses=True,
            )

    def context(self) -> StepContext | None:
        """The step that a call belongs to now, if anything is captured in it."""
        if _current_graph_task_id() != NOT_IN_BACKWARD:
            return None  # A checkpointed forward that is recomputed.
        session = self._session
        return session.forward_context or session.module_called(self._mode())

    def count_call(self, context: StepContext) -> int:
        """How often this was called before in this forward."""
        calls = context.calls
        call = calls.get(self._key, 0)
        calls[self._key] = call + 1
        return call

    def calls_so_far(self, context: StepContext) -> int:
        """How often this was called in the latest forward."""
        return context.calls.get(self._key, 0)

    def single(self, wants: StepWants) -> _Choice:
        """What is wanted of the only tensor of a first call."""
        choice = self._single.get(wants)
        if choice is None:
            choice, _ = self._choose([None], 0, 0, wants)
            if len(self._single) > _MAX_WANTS:
                self._single.clear()
            self._single[wants] = choice
        return choice

    def choose(
        self, value: Any, call: int, context: StepContext
    ) -> tuple[_Choice, tuple[Any, ...]]:
        """What is wanted of the tensors in *value*, and these tensors."""
        if call >= MAX_CALLS:
            return _Choice(), ()
        found = tensors_in(value, is_tensor)
        if not self._index_runs:
            return self._choose(found, 0, call, context.wants)
        found, calls = tuple(found), context.calls
        # A call that is not counted here was taken as that of a single tensor.
        first = calls.get(self, call)
        calls[self] = first + len(found)
        return self._choose(found, first, 0, context.wants)

    def _choose(
        self, found: Any, first: int, call: int, wants: StepWants
    ) -> tuple[_Choice, tuple[Any, ...]]:
        chosen = []
        for index, tensor in enumerate(found, first):
            plan = self._plans.get((index, call)) or self._plan(index, call)
            wanted = wants.of_plan(plan)
            if wanted:
                chosen.append((plan, wanted, tensor))
        if not chosen:
            return _Choice(), ()
        plans, flags, tensors = zip(*chosen, strict=True)
        return _Choice(plans, flags), tensors

    def _plan(self, index: int, call: int) -> TensorPlan:
        name, *aliases = (
            activation_name(path, self._direction, index, call)
            for path in (self._path, *self._aliases)
        )
        role = self.role_of(index)
        plan = self._session.recorder.plan(
            name, role, tuple(aliases), self._classes, self._question
        )
        self._plans[(index, call)] = plan
        return plan

    def role_of(self, index: int) -> Role:  # noqa: ARG002
        """What the tensor of that index is."""
        return self._role


# Sets of wants that are remembered: more than a schedule has.
_MAX_WANTS = 64


def take_both(
    session: Session,
    inputs: Activations,
    outputs: Activations,
    args: Any,
    kwargs: Any,
    output: Any,
    quick: Any = None,
) -> None:
    """Capture what a call was given and what it answered, in one go."""
    context = inputs.context()
    if context is None:
        return
    call = inputs.count_call(context)
    wants = context.wants
    tensors: tuple[Any, ...]
    if (
        type(output) is _Tensor
        and not kwargs
        and len(args) == 1
        and type(args[0]) is _Tensor
        and call == 0
    ):
        given, answered = inputs.single(wants), outputs.single(wants)
        if quick is not None:
            quick.prepare(wants, *given.of_single(), *answered.of_single())
        tensors = ()
        if given.plans:
            tensors = args
        if answered.plans:
            tensors = (*tensors, output)
    else:
        value = (args, kwargs) if kwargs else args
        given, of_given = inputs.choose(value, call, context)
        answered, of_answered = outputs.choose(output, call, context)
        tensors = of_given + of_answered
    if tensors:
        choice = given + answered
        session.recorder.take(
            context,
            choice.plans,
            tensors,
            choice.wanted,
            call,
            context.step.micro_batch,
            reuses=True,
        )
