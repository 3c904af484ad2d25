"""The parameters of a module and their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
from torch import nn

from tdbg.capture.naming import gradient_name, parameter_role
from tdbg.capture.recorder import Recorder, StepContext, TensorPlan
from tdbg.capture.session import Session
from tdbg.capture.wants import LIMITED_VALUES, SMALL_VALUES, VALUES, StepWants
from tdbg.collections import Role
from tdbg.hooks.pytorch.early_values import EarlyValues
from tdbg.hooks.pytorch.paths import class_names, places_of
from tdbg.hooks.pytorch.units import OF_ROWS

__all__ = ["LOOK_AGAIN", "Entry", "ParameterTable"]

# A parameter that comes or goes past the modules' own methods is noticed after so
# many captures at the latest.
LOOK_AGAIN = 100
_ANY_VALUES = VALUES | SMALL_VALUES | LIMITED_VALUES
# Sets of wants that are remembered: more than a schedule has.
_MAX_WANTS = 64
_NO_PLANS = frozenset[TensorPlan]()


class _Wanted(NamedTuple):
    """An entry, and what a step wants of it."""

    owner: weakref.ref[nn.Module]
    key: str
    weight: TensorPlan
    of_weight: int
    gradient: TensorPlan
    of_gradient: int


class _Selection:
    """The entries of which a step wants something.

    Attributes:
        entries: They.
        has_values: Whether values of parameters are wanted.
        quick: Takes all of them in one call of the core; None: there is no taker.
    """

    __slots__ = ("_with_gradients", "entries", "has_values", "quick")

    def __init__(self, recorder: Recorder, entries: list[_Wanted]) -> None:
        self.entries = entries
        self._with_gradients = [
            (each.owner, each.key, each.gradient)
            for each in entries
            if each.of_gradient
        ]
        self.has_values = any(each.of_weight & VALUES for each in entries)
        self.quick = recorder.parameters(
            [
                (
                    each.owner,
                    each.key,
                    each.weight.slot,
                    each.of_weight,
                    each.gradient.slot,
                    each.of_gradient,
                )
                for each in entries
            ]
        )

    def left_over(
        self, held: Callable[[], AbstractSet[int]]
    ) -> AbstractSet[TensorPlan]:
        """Gradients from before their parameters were frozen, which nobody will use.

        Args:
            held: Ids of what the optimizers hold, and so will use; seldom asked for.
        """
        found: list[tuple[int, TensorPlan]] = []
        for owner, key, gradient in self._with_gradients:
            module = owner()
            parameter = None if module is None else module._parameters.get(key)
            if parameter is None or parameter.requires_grad:
                continue
            if parameter.grad is not None:
                found.append((id(parameter), gradient))
        if not found:
            return _NO_PLANS
        ours = held()
        return {gradient for identity, gradient in found if identity not in ours}

    def plan(self, number: int) -> tuple[TensorPlan, int]:
        """Of a tensor as the core numbers them, and what is wanted of it."""
        entry = self.entries[number // 2]
        if number % 2:
            return entry.gradient, entry.of_gradient
        return entry.weight, entry.of_weight

    def values(self) -> list[tuple[TensorPlan, torch.Tensor]]:
        """The parameters of which values are wanted, with their plans."""
        found: list[tuple[TensorPlan, torch.Tensor]] = []
        for each in self.entries:
            module = each.owner() if each.of_weight & VALUES else None
            parameter = None if module is None else module._parameters.get(each.key)
            if parameter is not None:
                found.append((each.weight, parameter))
        return found

    def found(self) -> list[TensorPlan]:
        """Of what the core found the last time."""
        return [self.plan(number)[0] for number in self.quick.found()]


class _Batch:
    """Tensors that are taken in one call."""

    __slots__ = ("plans", "tensors", "wanted")

    def __init__(self) -> None:
        self.plans: list[TensorPlan] = []
        self.tensors: list[torch.Tensor] = []
        self.wanted: list[int] = []

    def add(self, plan: TensorPlan, tensor: torch.Tensor, wanted: int) -> None:
        self.plans.append(plan)
        self.tensors.append(tensor)
        self.wanted.append(wanted)


class Entry(NamedTuple):
    """A parameter by its place, so that a new one put there is found."""

    owner: weakref.ref[nn.Module]
    key: str
    weight: TensorPlan
    gradient: TensorPlan

    def parameter(self) -> torch.Tensor | None:
        """The one that stands there now."""
        owner = self.owner()
        return None if owner is None else owner._parameters.get(self.key)


class ParameterTable:
    """Captures parameters, named as ``named_parameters`` names them.

    A tied parameter is one tensor with aliases.

    Args:
        session: Where they go.
        module: Whose parameters they are; not kept alive.
        prefix: Goes before the names.

    Attributes:
        early: Copies values while the step goes on.
    """

    def __init__(self, session: Session, module: nn.Module, prefix: str) -> None:
        self._session = session
        self._module = weakref.ref(module)
        self._prefix = prefix
        self._countdown = LOOK_AGAIN
        self.early = EarlyValues(session.recorder)
        self._entries = self._find()
        self.refresh()

    def refresh(self) -> None:
        """Think again after a change of collections."""
        self._selected: dict[StepWants, _Selection] = {}

    def look_again(self) -> None:
        """Modules were added or replaced: find their parameters."""
        self._countdown = LOOK_AGAIN
        self._entries = self._find()
        self.refresh()

    def identities(self) -> set[int]:
        """The ids of the parameters as they are now."""
        module = self._module()
        return set() if module is None else {id(item) for item in module.parameters()}

    def entries(self) -> list[Entry]:
        """All parameters; another list when there may be others than before."""
        return self._entries

    def parameters(self) -> list[tuple[torch.Tensor, TensorPlan]]:
        """The parameters with the plans of their gradients."""
        found = [(entry.parameter(), entry.gradient) for entry in self.entries()]
        return [(item, plan) for item, plan in found if item is not None]

    def begin_values(self, context: StepContext) -> None:
        """A forward begins whose optimizer will step: copy what may be copied early.

        Args:
            context: The step.
        """
        selected = self._selected.get(context.wants) or self._select(context.wants)
        if selected.has_values:
            self.early.begin(context, selected.values())

    def fence(self, *, is_last: bool = False) -> None:
        """Parameters are about to change; if *is_last*, nothing more is captured."""
        self.early.fence(is_last=is_last)

    def capture(
        self,
        context: StepContext,
        *,
        gradients: bool,
        scale: float | torch.Tensor = 1.0,
        only: AbstractSet[int] | None = None,
        held: Callable[[], AbstractSet[int]] = frozenset,
    ) -> None:
        """Take what the step does not have yet.

        Args:
            context: The step.
            gradients: Whether gradients are taken as well.
            scale: Multiplies the gradients; a tensor on their device divides them.
            only: Ids of the parameters to take, those of an optimizer; None takes all.
            held: Ids of those that optimizers hold.
        """
        wants = context.wants
        selected = self._selected.get(wants)
        if selected is None:
            selected = self._select(wants)
        if not selected.entries:
            return
        self._countdown -= 1
        if self._countdown <= 0:
            self.look_again()
            selected = self._select(wants)
        early = self.early.has(context)
        is_first = not early and not context.done and self not in context.found
        is_scaled = not isinstance(scale, float) or scale != 1.0
        of_all = gradients and only is None
        left = selected.left_over(held) if of_all else _NO_PLANS
        is_whole = of_all and not is_scaled and not left
        if is_first and is_whole and self._take_all(context, selected):
            return
        done = context.done_so_far()
        plain, scaled = _Batch(), _Batch()
        # One call of the core for all, unless the gradients are scaled.
        target = scaled if is_scaled else plain
        add, add_gradient = plain.add, target.add
        for owner, key, weight, of_weight, gradient, of_gradient in selected.entries:
            module = owner()
            parameter = None if module is None else module._parameters.get(key)
            if parameter is None or (only is not None and id(parameter) not in only):
                continue
            wanted = of_weight & ~_ANY_VALUES if weight in early else of_weight
            if wanted and weight not in done:
                add(weight, parameter, wanted)
            if gradients and of_gradient and gradient not in done:
                tensor = parameter.grad
                if tensor is not None and gradient not in left:
                    add_gradient(gradient, tensor, of_gradient)
        for batch, factor in ((plain, 1.0), (scaled, scale)):
            if batch.plans:
                done.update(batch.plans)
                self._session.recorder.take(
                    context, batch.plans, batch.tensors, batch.wanted, scale=factor
                )

    def _take_all(self, context: StepContext, selected: _Selection) -> bool:
        """In one call of the core, if there is a taker: nearly every step."""
        if selected.quick is None:
            return False
        context.has_data = True
        context.found[self] = selected.found
        recorder = self._session.recorder
        left = selected.quick.take(context.step.number)
        if left:
            numbers, tensors = zip(*left, strict=True)
            plans, wanted = zip(*map(selected.plan, numbers), strict=True)
            given = zip(plans, tensors, wanted, strict=True)
            recorder.take_others(context, given)
        return True

    def _select(self, wants: StepWants) -> _Selection:
        """The entries of which something is wanted, kept for the next time."""
        of_plan = wants.of_plan
        found = [
            _Wanted(owner, key, weight, of_plan(weight), gradient, of_plan(gradient))
            for owner, key, weight, gradient in self._entries
        ]
        if len(self._selected) > _MAX_WANTS:
            self._selected.clear()
        self._selected[wants] = _Selection(
            self._session.recorder,
            [each for each in found if each.of_weight or each.of_gradient],
        )
        return self._selected[wants]

    def _find(self) -> list[Entry]:
        module = self._module()
        if module is None:
            return []
        plan = self._session.recorder.plan
        entries = []
        for owner, key, paths in places_of(module, _parameters_of):
            first, *others = (self._prefix + path for path in paths)
            gradient, *aliases = (gradient_name(name) for name in (first, *others))
            holder = owner()
            classes = frozenset[str]() if holder is None else class_names(holder)
            role, of_rows = Role.GRADIENT, OF_ROWS
            entries.append(
                Entry(
                    owner,
                    key,
                    plan(first, parameter_role(first), tuple(others), classes),
                    plan(gradient, role, tuple(aliases), classes, of_rows),
                )
            )
        return entries


def _parameters_of(module: nn.Module) -> Mapping[str, torch.Tensor | None]:
    return module._parameters
