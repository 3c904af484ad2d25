"""What is taken around the step of an optimizer, beside parameters and gradients.

Before it: the numbers of its parameter groups, the gradients as they were before they
were clipped, and copies of parameters.  After it: its state and the updates.  Of a step
that is skipped there is nothing afterwards.

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from torch.optim import Optimizer

from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.collections import Role
from tdbg.hooks.pytorch.cuda import CudaTensors
from tdbg.hooks.pytorch.group_scalars import GroupScalars
from tdbg.hooks.pytorch.modules import ModuleTap
from tdbg.hooks.pytorch.optimizer_state import OptimizerStates
from tdbg.hooks.pytorch.unclipped import UnclippedGradients
from tdbg.hooks.pytorch.updates import Updates
from tdbg.modes import ModeKeys

__all__ = ["AroundStep"]


class AroundStep:
    """Takes, around the steps of all optimizers, what the collections ask for.

    Args:
        session: Where it goes.
        taps: The registered modules; grows.
        remote: Reads what optimizers hold on devices.

    Attributes:
        contexts: The step that each optimizer, by its key, is stepping for.
        has_scalars: Whether numbers of parameter groups may be captured.
        has_unclipped: The same of gradients before clipping.
    """

    def __init__(
        self, session: Session, taps: Sequence[ModuleTap], remote: CudaTensors
    ) -> None:
        recorder = session.recorder
        self._session = session
        self._remote = remote
        self._updates = Updates(recorder, taps)
        self._states = OptimizerStates(recorder, taps)
        self._unclipped = UnclippedGradients(session, taps)
        self._scalars: weakref.WeakKeyDictionary[Optimizer, GroupScalars] = (
            weakref.WeakKeyDictionary()
        )
        self._n_optimizers = 0
        self.contexts: dict[int, StepContext] = {}
        self.refresh()
        session.on_change.append(self.refresh)
        session.on_rest.append(self.forget)

    def refresh(self) -> None:
        """Think again after a change of collections."""
        may_capture = self._session.policy.may_capture
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
        """A forward in training is about to begin, in this mode."""
        machine = self._session.machine
        if self.contexts and not machine.is_in_closure:
            self.contexts.clear()  # An optimizer raised: its step never ended.
            self._updates.forget()
        if self.has_unclipped and machine.training is None:
            training = mode()
            number = machine.following(training)
            self._unclipped.prepare(self._session.policy.wants(training, number))

    def begin(
        self,
        key: int,
        context: StepContext | None,
        optimizer: Optimizer,
        *,
        has_closure: bool,
    ) -> None:
        """The optimizer is about to step, and the step has its parameters."""
        if context is None:
            return
        if self.has_scalars:
            self._follow(context, optimizer)
        if not context.wants.is_active:
            return
        if self._has_states or self._has_updates:
            self.contexts[key] = context
        if self._has_updates:
            self._updates.begin(key, context, optimizer, has_closure=has_closure)

    def gradients(
        self,
        context: StepContext,
        scale: Any,
        only: AbstractSet[int] | None,
    ) -> None:
        """The step takes the gradients of these parameters now."""
        if self.has_unclipped:
            self._unclipped.take(context, scale=scale, only=only)

    def end(self, key: int, optimizer: Optimizer, *, skipped: bool) -> None:
        """The optimizer of ``contexts`` has stepped."""
        context = self.contexts.pop(key)
        if skipped:
            self._updates.forget(key)
            return
        if self._has_updates:
            self._updates.end(key, context)
        if self._has_states:
            self._states.take(context, optimizer)

    def forget(self) -> None:
        """Nothing more is captured: free what is held."""
        self.contexts.clear()
        self._updates.forget()
        self._unclipped.forget()

    def remove(self) -> None:
        """Take all hooks off, too."""
        self.forget()
        self._unclipped.remove()

    def _follow(self, context: StepContext, optimizer: Optimizer) -> None:
        scalars = self._scalars.get(optimizer)
        if scalars is None:
            number, recorder = self._n_optimizers, self._session.recorder
            scalars = GroupScalars(recorder, number, self._remote)
            self._scalars[optimizer] = scalars
            self._n_optimizers += 1
        scalars.take(context, optimizer)
