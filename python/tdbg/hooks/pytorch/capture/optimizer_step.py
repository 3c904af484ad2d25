"""Capture around the step of an optimizer, besides parameters and their gradients.

Before the step these are the numbers of the optimizer's parameter groups, unclipped
gradients, and copies of parameters; after it, the optimizer's state and the updates.  A
skipped step has neither state nor updates.

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.optim import Optimizer

from tdbg.capture.naming import optimizer_state_name, update_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.scalars import GroupScalars
from tdbg.capture.schedule import StepPlan
from tdbg.capture.session import Session
from tdbg.capture.tensor_entry import TensorEntry
from tdbg.capture.updates import DerivedEntries, Updates
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.capture.parameters_and_gradients import (
    ParameterPlace,
    ParameterTable,
)
from tdbg.hooks.pytorch.capture.unclipped_gradients import UnclippedGradients
from tdbg.hooks.pytorch.device.cuda import CudaTensors, number_of
from tdbg.hooks.pytorch.device.tensors import TYPES, gradient_of
from tdbg.hooks.pytorch.model.process_objects import held_ids
from tdbg.modes import ModeKeys

__all__ = ["OptimizerStep"]

# The key of a parameter group that holds its parameters.
_PARAMETERS = frozenset({"params"})


def _version(tensor: Any) -> tuple[int, int]:
    """Return a mark that changes with each write to a tensor, without reading it."""
    is_counted = isinstance(tensor, torch.Tensor) and not tensor.is_inference()
    return id(tensor), tensor._version if is_counted else 0


class OptimizerStep:
    """Capture what the collections ask for around the steps of all optimizers.

    Args:
        session: Where it goes.
        tables: The parameters of the registered modules; grows.
        remote: Reads what optimizers hold on devices.

    Attributes:
        contexts: The step of each optimizer that is stepping, by its key.
        has_scalars: Whether numbers of parameter groups may be captured.
        has_unclipped: Whether unclipped gradients may be captured.
    """

    def __init__(
        self,
        session: Session,
        tables: Sequence[ParameterTable],
        remote: CudaTensors,
    ) -> None:
        self._session = session
        self._remote = remote
        self._updates = OptimizerUpdates(session, tables)
        self._states = OptimizerStates(session, tables)
        self._unclipped = UnclippedGradients(session, tables)
        self._scalars: dict[int, GroupScalars] = {}
        self._n_optimizers = 0
        self.contexts: dict[int, StepContext] = {}
        self.refresh()
        session.listen(change=self.refresh, rest=self.forget)

    def refresh(self) -> None:
        """Decide anew what is captured: collections have changed."""
        may_capture = self._session.may_capture
        self._has_updates = may_capture(Role.UPDATE)
        self._has_states = may_capture(Role.OPTIMIZER_STATE)
        self.has_scalars = may_capture(Role.SCALAR)
        self.has_unclipped = may_capture(Role.GRADIENT_UNCLIPPED)
        self._updates.refresh()
        self._states.refresh()
        for each in self._scalars.values():
            each.refresh()
        if self.has_unclipped:
            self._unclipped.refresh()
        else:
            self._unclipped.remove()

    def forward_begins(self, mode: Callable[[], ModeKeys]) -> None:
        """Prepare for a forward in training, in the mode that *mode* returns."""
        session = self._session
        if self.contexts and not session.is_in_closure:
            self.contexts.clear()  # An optimizer raised, and its step never ended.
            self._updates.forget()
        if self.has_unclipped and session.training is None:
            self._unclipped.prepare(session.next_plan(mode()))

    def prepare(
        self,
        key: int,
        context: StepContext | None,
        optimizer: Optimizer,
        *,
        has_closure: bool,
    ) -> None:
        """Note what to capture around the step, before parameters are captured."""
        if self._has_updates and context is not None and context.step_plan.is_active:
            self._updates.optimizer_will_begin(
                key, context, optimizer, has_closure=has_closure
            )

    def begin(
        self, key: int, context: StepContext | None, optimizer: Optimizer
    ) -> None:
        """Capture before the optimizer steps, after parameters were captured."""
        if context is None:
            return
        self.take_scalars(key, context, optimizer.param_groups)
        if context.step_plan.is_light or not context.step_plan.is_active:
            return
        if self._has_states or self._has_updates:
            self.contexts[key] = context
        if self._has_updates:
            self._updates.begin(key, context)

    def take_scalars(
        self, key: int, context: StepContext, groups: Sequence[Any]
    ) -> None:
        """Record numbers of an optimizer's groups that have changed."""
        if self.has_scalars:
            scalars = self._scalars.get(key) or self._scalars_of(key)
            scalars.take(context, groups)

    def has_news(self, key: int, optimizer: Optimizer) -> bool:
        """Return whether numbers of the optimizer have changed and must be recorded."""
        scalars = self._scalars.get(key)
        return scalars is not None and scalars.has_news(optimizer.param_groups)

    def gradients(
        self,
        context: StepContext,
        scale: Any,
        only: AbstractSet[int] | None,
    ) -> None:
        """Capture the unclipped gradients of these parameters."""
        if self.has_unclipped:
            self._unclipped.take(context, scale=scale, only=only)

    def end(self, key: int, optimizer: Optimizer, *, skipped: bool) -> None:
        """Capture after the optimizer, one of ``contexts``, has stepped."""
        context = self.contexts.pop(key)
        if skipped:
            self._updates.forget(key)
            return
        if self._has_updates:
            self._updates.end(key, context)
        if self._has_states:
            self._states.take(context, optimizer)

    def optimizer_gone(self, key: int) -> None:
        """Forget an optimizer that no longer exists."""
        self._scalars.pop(key, None)

    def forget(self) -> None:
        """Free copies and steps: nothing more is captured."""
        self.contexts.clear()
        self._updates.forget()
        self._unclipped.forget()

    def remove(self) -> None:
        """Forget everything and take all hooks off."""
        self.forget()
        self._unclipped.remove()

    def _scalars_of(self, key: int) -> GroupScalars:
        """Make the recorder of an optimizer's numbers."""
        scalars = self._scalars[key] = GroupScalars(
            self._session,
            self._n_optimizers,
            read_number=lambda value: number_of(value, self._remote),
            tensor_type=torch.Tensor,
            version=_version,
            not_numbers=_PARAMETERS,
        )
        self._n_optimizers += 1
        return scalars


# ---- after the step ------------------------------------------------------------------


class OptimizerStates:
    """Capture the tensors that an optimizer keeps for parameters, in one call.

    These are the tensors directly in ``optimizer.state[parameter]``, apart from single
    numbers like the count of steps.

    Args:
        session: Where they go.
        tables: The parameters of the registered modules; grows.
    """

    def __init__(self, session: Session, tables: Sequence[ParameterTable]) -> None:
        self._session = session
        self._tables = tables
        # By kind and parameter; None: it is not captured.
        self._entries: dict[tuple[str, TensorEntry], TensorEntry | None] = {}
        # The number of parameters with a state when a step of this plan had found
        # nothing to capture.
        self._found_nothing: weakref.WeakKeyDictionary[
            Optimizer, dict[StepPlan, int]
        ] = weakref.WeakKeyDictionary()

    def refresh(self) -> None:
        """Decide anew what is captured: collections have changed."""
        self._entries.clear()
        self._found_nothing.clear()

    def take(self, context: StepContext, optimizer: Optimizer) -> None:
        """Capture the state as it is now, as far as the step needs it."""
        states = optimizer.state
        found_nothing = self._found_nothing.setdefault(optimizer, {})
        if found_nothing.get(context.step_plan) == len(states):
            return
        entries: list[TensorEntry] = []
        tensors: list[torch.Tensor] = []
        requested: list[int] = []
        finds_nothing, done, of_entry = True, context.done, context.step_plan.of_entry
        for table in self._tables:
            for tracked in table.tracked_parameters():
                parameter = tracked.parameter()
                state = None if parameter is None else states.get(parameter)
                if not isinstance(state, dict):
                    continue
                for kind, value in state.items():
                    if not isinstance(value, torch.Tensor) or value.dim() == 0:
                        continue
                    entry = self._entry(str(kind), tracked.weight)
                    flags = 0 if entry is None else of_entry(entry)
                    if entry is None or not flags:
                        continue
                    finds_nothing = False
                    if entry not in done:
                        entries.append(entry)
                        tensors.append(value)
                        requested.append(flags)
        if finds_nothing:
            found_nothing[context.step_plan] = len(states)
        elif entries:
            done.update(entries)
            self._session.take(context, entries, tensors, requested)

    def _entry(self, kind: str, weight: TensorEntry) -> TensorEntry | None:
        key = (kind, weight)
        if key not in self._entries:
            name, role = optimizer_state_name(kind, weight.name), Role.OPTIMIZER_STATE
            entry = None
            if self._session.captures(name, role):
                aliases = [optimizer_state_name(kind, each) for each in weight.aliases]
                entry = self._session.entry(name, role, tuple(aliases))
            self._entries[key] = entry
        return self._entries[key]


class OptimizerUpdates(Updates):
    """Capture the updates of optimizers that step.

    Args:
        session: Where they go.
        tables: The parameters of the registered modules; grows.
    """

    def __init__(self, session: Session, tables: Sequence[ParameterTable]) -> None:
        super().__init__(session, _copy, _difference)
        self._tables = tables
        self._entries: DerivedEntries[ParameterPlace] = DerivedEntries(
            session, Role.UPDATE, update_name
        )

    def refresh(self) -> None:
        """Decide anew what is captured: collections have changed."""
        self._entries.refresh()

    def optimizer_will_begin(
        self,
        key: Hashable,
        context: StepContext,
        optimizer: Optimizer,
        *,
        has_closure: bool,
    ) -> None:
        """Note the parameters whose updates the step captures, to be copied.

        Args:
            key: The key of the optimizer.
            context: The step.
            optimizer: The optimizer that is about to step.
            has_closure: Whether the gradients arise only within its step.
        """
        chosen = [
            each
            for table in self._tables
            for each in self._entries.requested(table, context.step_plan)
        ]
        if not chosen:
            self.forget(key)
            return
        held = held_ids(optimizer)
        found = []
        for tracked, entry, requested in chosen:
            parameter = tracked.parameter()
            if parameter is None or id(parameter) not in held:
                continue
            # Optimizers leave a parameter without a gradient alone.
            if has_closure or gradient_of(parameter) is not None:
                found.append((entry, parameter, requested))
        self.prepare(key, context, found)


def _copy(parameter: torch.Tensor) -> torch.Tensor | None:
    try:
        return parameter.detach().clone()
    except (RuntimeError, NotImplementedError):
        return None


def _difference(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor | None:
    """Subtract, in the memory of *before* if possible."""
    after = after.detach()
    if after.shape != before.shape or after.device != before.device:
        return None
    try:
        if type(before) in TYPES:
            return torch.sub(after, before, out=before)
        return after - before
    except (RuntimeError, NotImplementedError):
        return None
