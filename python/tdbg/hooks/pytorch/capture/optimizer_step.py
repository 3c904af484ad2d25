"""Capture around the step of an optimizer, besides parameters and their gradients.

Before the step these are the numbers of the optimizer's parameter groups, unclipped
gradients, and copies of parameters; after it, the optimizer's state and the updates.  A
skipped step has neither state nor updates.

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.optim import Optimizer

from tdbg.capture.recorder import StepContext
from tdbg.capture.scalars import GroupScalars
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.capture.optimizer_state import OptimizerStates
from tdbg.hooks.pytorch.capture.parameters_and_gradients import ParameterTable
from tdbg.hooks.pytorch.capture.unclipped_gradients import UnclippedGradients
from tdbg.hooks.pytorch.capture.updates import OptimizerUpdates
from tdbg.hooks.pytorch.device.cuda import CudaTensors, number_of
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
