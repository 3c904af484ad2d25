"""The parameters of a module and their gradients, as an optimizer uses them.

Other files capture other gradients: ``unclipped_gradients``, ``output_gradients`` and
``gradients_without_optimizer``.

Thread safety: the training's thread.  Errors: none of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
from torch import nn

from tdbg.capture.naming import gradient_name, parameter_role
from tdbg.capture.recorder import StepContext, TensorEntry
from tdbg.capture.schedule import LIMITED_VALUES, SMALL_VALUES, VALUES, StepPlan
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.capture.activations import OF_ROWS
from tdbg.hooks.pytorch.device import tensors
from tdbg.hooks.pytorch.model.kinds import classes_and_kind
from tdbg.hooks.pytorch.model.module_tree import (
    SEARCH_INTERVAL,
    modules_of,
    places_of,
)

__all__ = [
    "EarlyValues",
    "ParameterPlace",
    "ParameterTable",
]


class _Copy(NamedTuple):
    """A copy that is under way."""

    entry: TensorEntry
    # Shares the memory, which it keeps alive, and the count of changes.
    alias: torch.Tensor
    version: int


class EarlyValues:
    """Copy parameters on their devices while a step goes on.

    Args:
        session: Where the values go.

    Attributes:
        copies: The copies under way.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._context: StepContext | None = None
        self.copies: list[_Copy] = []
        # The entries whose values the step under way has.
        self._has: frozenset[TensorEntry] = frozenset()

    def begin(
        self,
        context: StepContext,
        requested: Iterable[tuple[TensorEntry, torch.Tensor]],
    ) -> None:
        """Begin to copy parameters, once a step, as the root's forward begins.

        Args:
            context: The step.
            requested: Parameters whose values the step captures, with their entries.
        """
        if context is self._context:
            return
        self.fence()  # A step has ended without its optimizer.
        self._context, self._has = context, frozenset()
        candidates = [each for each in requested if tensors.is_on_device(each[1])]
        if not candidates:
            return
        entries = [entry for entry, _ in candidates]
        aliases = [tensor.detach() for _, tensor in candidates]
        versions = [_version_of(alias) for alias in aliases]
        begun = self._session.begin_values(
            context, entries, [tensor for _, tensor in candidates]
        )
        self.copies = [_Copy(entries[i], aliases[i], versions[i]) for i in begun]
        self._has = frozenset(copy.entry for copy in self.copies)

    def has(self, context: StepContext) -> frozenset[TensorEntry]:
        """Return the entries whose values the step has, or will have."""
        return self._has if context is self._context else frozenset()

    def fence(self, *, is_last: bool = False) -> None:
        """Make current streams wait for the copies: parameters may change from now on.

        Parameters that have changed already are captured again later in the step.

        Args:
            is_last: Whether the step captures nothing more; parameters that have
                changed are then counted as dropped.
        """
        copies, self.copies = self.copies, []
        context = self._context
        if not copies or context is None:
            return
        self._session.fence()
        spoilt = [c for c in copies if _version_of(c.alias) != c.version]
        self._has -= {copy.entry for copy in spoilt}
        if not is_last and context.step.is_open:
            return
        for copy in spoilt:
            n_bytes = copy.alias.numel() * copy.alias.element_size()
            why = "it was written to before the step captured it"
            self._session.refuse(context, copy.entry.name, why, n_bytes)


def _version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to; 0 for tensors of inference mode."""
    return 0 if tensor.is_inference() else tensor._version


_ANY_VALUES = VALUES | SMALL_VALUES | LIMITED_VALUES
# Step plans that are remembered: more than a schedule has.
_MAX_STEP_PLANS = 64
_NO_ENTRIES = frozenset[TensorEntry]()


class _Selected(NamedTuple):
    """A parameter, with flags for what a step captures of it."""

    owner: weakref.ref[nn.Module]
    key: str
    weight: TensorEntry
    of_weight: int
    gradient: TensorEntry
    of_gradient: int


class _Selection:
    """The parameters of which a step captures something.

    Attributes:
        all_tracked: The parameters.
        has_values: Whether values of parameters are captured.
        quick: Captures all in one call of the core; None if there is no batch capture.
    """

    __slots__ = ("_with_gradients", "all_tracked", "has_values", "quick")

    def __init__(self, session: Session, all_tracked: list[_Selected]) -> None:
        self.all_tracked = all_tracked
        self._with_gradients = [
            (each.owner, each.key, each.gradient)
            for each in all_tracked
            if each.of_gradient
        ]
        self.has_values = any(each.of_weight & VALUES for each in all_tracked)
        self.quick = session.make_parameter_capture(
            [
                (
                    each.owner,
                    each.key,
                    each.weight.core,
                    each.of_weight,
                    each.gradient.core,
                    each.of_gradient,
                )
                for each in all_tracked
            ]
        )

    def left_over(
        self, held: Callable[[], AbstractSet[int]]
    ) -> AbstractSet[TensorEntry]:
        """Return gradients that nobody uses: their parameters have been frozen since.

        Args:
            held: Returns the ids of parameters that optimizers hold, and so use; seldom
                called.
        """
        found: list[tuple[int, TensorEntry]] = []
        for owner, key, gradient in self._with_gradients:
            module = owner()
            parameter = None if module is None else module._parameters.get(key)
            if parameter is None or parameter.requires_grad:
                continue
            if parameter.grad is not None:
                found.append((id(parameter), gradient))
        if not found:
            return _NO_ENTRIES
        ours = held()
        return {gradient for identity, gradient in found if identity not in ours}

    def entry(self, number: int) -> tuple[TensorEntry, int]:
        """Return the entry and the flags of a tensor by the core's number."""
        tracked = self.all_tracked[number // 2]
        if number % 2:
            return tracked.gradient, tracked.of_gradient
        return tracked.weight, tracked.of_weight

    def values(self) -> list[tuple[TensorEntry, torch.Tensor]]:
        """Return the parameters whose values are captured, with their entries."""
        found: list[tuple[TensorEntry, torch.Tensor]] = []
        for each in self.all_tracked:
            module = each.owner() if each.of_weight & VALUES else None
            parameter = None if module is None else module._parameters.get(each.key)
            if parameter is not None:
                found.append((each.weight, parameter))
        return found

    def found(self) -> list[TensorEntry]:
        """Return the entries of the tensors that the core captured last."""
        if self.quick is None:
            return []
        return [self.entry(number)[0] for number in self.quick.found()]


class _Batch:
    """Tensors to capture in one call."""

    __slots__ = ("entries", "requested", "tensors")

    def __init__(self) -> None:
        self.entries: list[TensorEntry] = []
        self.tensors: list[torch.Tensor] = []
        self.requested: list[int] = []

    def add(self, entry: TensorEntry, tensor: torch.Tensor, requested: int) -> None:
        self.entries.append(entry)
        self.tensors.append(tensor)
        self.requested.append(requested)


class ParameterPlace(NamedTuple):
    """A parameter by its place in the model, where its replacement is found, too."""

    owner: weakref.ref[nn.Module]
    key: str
    weight: TensorEntry
    gradient: TensorEntry

    def parameter(self) -> torch.Tensor | None:
        """Return the parameter that is there now."""
        owner = self.owner()
        return None if owner is None else owner._parameters.get(self.key)


class ParameterTable:
    """Capture parameters and their gradients, by the names of ``named_parameters``.

    A tied parameter is one tensor with aliases.

    Args:
        session: Where they go.
        module: The module that has them; not kept alive.
        prefix: Stands before the names.

    Attributes:
        early: Copies values while the step goes on.
    """

    def __init__(self, session: Session, module: nn.Module, prefix: str) -> None:
        self._session = session
        self._module = weakref.ref(module)
        self._prefix = prefix
        self._countdown = SEARCH_INTERVAL
        self.early = EarlyValues(session)
        self._tracked = self._find()
        self.refresh()

    def refresh(self) -> None:
        """Decide anew what is captured: collections have changed."""
        self._selected: dict[StepPlan, _Selection] = {}

    def search_again(self) -> None:
        """Find the parameters anew: modules were added or replaced."""
        self._countdown = SEARCH_INTERVAL
        self._tracked = self._find()
        self.refresh()

    @property
    def module(self) -> nn.Module | None:
        """The module, if it lives."""
        return self._module()

    def identities(self) -> set[int]:
        """Return the ids of the parameters as they are now."""
        module = self._module()
        return {
            id(item)
            for each in ([] if module is None else modules_of(module))
            for item in each._parameters.values()
            if item is not None
        }

    def tracked_parameters(self) -> list[ParameterPlace]:
        """Return all parameters; a new list if they may have changed."""
        return self._tracked

    def parameters(self) -> list[tuple[torch.Tensor, TensorEntry]]:
        """Return the parameters with the entries of their gradients."""
        found = [
            (tracked.parameter(), tracked.gradient)
            for tracked in self.tracked_parameters()
        ]
        return [(item, entry) for item, entry in found if item is not None]

    def begin_values(self, context: StepContext) -> None:
        """Begin to copy values early: a forward begins before an optimizer steps.

        Args:
            context: The step.
        """
        selected = self._selected.get(context.step_plan) or self._select(
            context.step_plan
        )
        if selected.has_values:
            self.early.begin(context, selected.values())

    def fence(self, *, is_last: bool = False) -> None:
        """End the copies: parameters may change now; see ``EarlyValues.fence``."""
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
        """Capture what the step does not have yet.

        Args:
            context: The step.
            gradients: Whether gradients are taken as well.
            scale: Multiplies the gradients; a tensor on their device divides them.
            only: Ids of the parameters of an optimizer, to take only these; None: all.
            held: Returns the ids of parameters that optimizers hold.
        """
        step_plan = context.step_plan
        selected = self._selected.get(step_plan)
        if selected is None:
            selected = self._select(step_plan)
        if not selected.all_tracked:
            return
        self._countdown -= 1
        if self._countdown <= 0:
            self.search_again()
            selected = self._select(step_plan)
        early = self.early.has(context)
        is_first = not early and not context.done and self not in context.found
        is_scaled = not isinstance(scale, float) or scale != 1.0
        of_all = gradients and only is None
        left = selected.left_over(held) if of_all else _NO_ENTRIES
        is_whole = of_all and not is_scaled and not left
        if is_first and is_whole and self._take_all(context, selected):
            return
        self._take_each(context, selected, early, left, only, gradients, scale)

    def _take_each(
        self,
        context: StepContext,
        selected: _Selection,
        early: AbstractSet[TensorEntry],
        left: AbstractSet[TensorEntry],
        only: AbstractSet[int] | None,
        gradients: bool,
        scale: float | torch.Tensor,
    ) -> None:
        """Capture what the step does not have yet, chosen tensor by tensor.

        Args:
            context: The step.
            selected: The parameters of which the step captures something.
            early: Parameters whose values are copied already.
            left: Gradients that nobody will use.
            only: Ids of the parameters to take; None takes all.
            gradients: As for ``capture``.
            scale: As for ``capture``.
        """
        done, all_selected = context.done_so_far(), selected.all_tracked
        plain, scaled = _Batch(), _Batch()
        # One call of the core for all, unless the gradients are scaled.
        is_scaled = not isinstance(scale, float) or scale != 1.0
        target = scaled if is_scaled else plain
        add, add_gradient = plain.add, target.add
        for owner, key, weight, of_weight, gradient, of_gradient in all_selected:
            module = owner()
            parameter = None if module is None else module._parameters.get(key)
            if parameter is None or (only is not None and id(parameter) not in only):
                continue
            requested = of_weight & ~_ANY_VALUES if weight in early else of_weight
            if requested and weight not in done:
                add(weight, parameter, requested)
            if of_gradient and gradients and gradient not in done:
                tensor = tensors.gradient_of(parameter)
                if tensor is not None and gradient not in left:
                    add_gradient(gradient, tensor, of_gradient)
        self._take_batch(context, plain, 1.0)
        self._take_batch(context, scaled, scale)

    def _take_batch(
        self, context: StepContext, batch: _Batch, scale: float | torch.Tensor
    ) -> None:
        entries = batch.entries
        if entries:
            context.done.update(entries)
            self._session.take(
                context, entries, batch.tensors, batch.requested, scale=scale
            )

    def _take_all(self, context: StepContext, selected: _Selection) -> bool:
        """Capture all in one call of the core, if there is a batch capture."""
        if selected.quick is None:
            return False
        context.has_data = True
        context.found[self] = selected.found
        session = self._session
        left = selected.quick.take(context.step.number)
        if left:
            numbers, tensors = zip(*left, strict=True)
            entries, requested = zip(*map(selected.entry, numbers), strict=True)
            given = zip(entries, tensors, requested, strict=True)
            session.take_unhandled(context, given)
        return True

    def _select(self, step_plan: StepPlan) -> _Selection:
        """Select the tensors of which the step captures something; kept for later."""
        of_entry = step_plan.of_entry
        found = [
            _Selected(
                owner, key, weight, of_entry(weight), gradient, of_entry(gradient)
            )
            for owner, key, weight, gradient in self._tracked
        ]
        if len(self._selected) > _MAX_STEP_PLANS:
            self._selected.clear()
        self._selected[step_plan] = _Selection(
            self._session,
            [each for each in found if each.of_weight or each.of_gradient],
        )
        return self._selected[step_plan]

    def _find(self) -> list[ParameterPlace]:
        module = self._module()
        if module is None:
            return []
        entry = self._session.entry
        all_tracked = []
        for owner, key, paths in places_of(module, _parameters_of):
            first, *others = (self._prefix + path for path in paths)
            gradient, *aliases = (gradient_name(name) for name in (first, *others))
            holder = owner()
            classes = frozenset[str]() if holder is None else classes_and_kind(holder)
            role, of_rows = Role.GRADIENT, OF_ROWS
            all_tracked.append(
                ParameterPlace(
                    owner,
                    key,
                    entry(first, parameter_role(first), tuple(others), classes),
                    entry(gradient, role, tuple(aliases), classes, of_rows),
                )
            )
        return all_tracked


def _parameters_of(module: nn.Module) -> Mapping[str, torch.Tensor | None]:
    return module._parameters
