"""Gradients as the last backward of a step left them: before they are clipped.

Between the backward and the optimizer's step a training may change its gradients, and
nobody says when.  So, only where these are asked for, each parameter's accumulation is
watched, and when a backward is over, what it added to is copied; the copies are taken
when the optimizer steps.  A further backward in the same step replaces them.

Thread safety: backward passes call from autograd's threads, one at a time.

Errors: none of its own; a gradient for whose copy there is no memory is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.autograd import Variable
from torch.compiler import is_compiling

from tdbg.capture.naming import unclipped_gradient_name
from tdbg.capture.plans import TensorPlan
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.steps import Step
from tdbg.capture.wants import StepWants
from tdbg.collections import Role
from tdbg.hooks.pytorch.derived import DerivedPlans
from tdbg.hooks.pytorch.modules import ModuleTap
from tdbg.hooks.pytorch.tensors import TYPES

__all__ = ["UnclippedGradients"]


class UnclippedGradients:
    """Keeps copies of gradients from the end of a backward to the optimizer's step.

    Args:
        session: Where they go.
        taps: The registered modules; grows.
    """

    def __init__(self, session: Session, taps: Sequence[ModuleTap]) -> None:
        self._session = session
        self._taps = taps
        self._plans = DerivedPlans(
            session.recorder, Role.GRADIENT_UNCLIPPED, unclipped_gradient_name
        )
        # The parameters that are watched, by identity, and their hooks.
        self._handles: dict[int, Any] = {}
        # The training step of which the wants were looked at, and whether it wants any.
        self._step: Step | None = None
        self._wants_any = False
        self._is_queued = False
        self._copies: dict[TensorPlan, torch.Tensor] = {}

    @property
    def has_copies(self) -> bool:
        """Whether copies wait for an optimizer."""
        return bool(self._copies)

    def refresh(self) -> None:
        """Think again after a change of collections."""
        self._plans.refresh()
        self._step = None
        self.watch()

    def prepare(self, wants: StepWants) -> None:
        """A step begins: watch what has come since, if the step wants any."""
        if self._wants_some(wants):
            self.watch()

    def watch(self) -> None:
        """Watch the parameters that are not watched yet; let go of all others."""
        found = set()
        for tap in self._taps:
            for entry, _ in self._plans.of(tap.parameters):
                parameter = entry.parameter()
                if parameter is None or not parameter.requires_grad:
                    continue
                if not parameter.is_leaf:
                    continue
                found.add(id(parameter))
                if id(parameter) not in self._handles:
                    register: Any = parameter.register_post_accumulate_grad_hook
                    handle = register(_mark(weakref.ref(self)))
                    self._handles[id(parameter)] = handle
                    # The number may be another parameter's when this one is gone.
                    gone = weakref.finalize(
                        parameter, self._handles.pop, id(parameter), None
                    )
                    gone.atexit = False
        for identity in self._handles.keys() - found:
            self._handles.pop(identity).remove()

    def take(
        self,
        context: StepContext,
        *,
        scale: Any = 1.0,
        only: AbstractSet[int] | None = None,
    ) -> None:
        """An optimizer is about to step: take what was copied.

        Args:
            context: The step.
            scale: As for ``Recorder.take``: undoes the scale of the loss.
            only: Ids of its parameters; None takes all.
        """
        if not self._copies:
            self.prepare(context.wants)  # Whatever came before is for the next step.
            return
        plans, tensors, wanted = [], [], []
        for tap in self._taps:
            for entry, plan, flags in self._plans.wanted(tap.parameters, context.wants):
                parameter = entry.parameter()
                if parameter is None or (
                    only is not None and id(parameter) not in only
                ):
                    continue
                copy = self._copies.pop(plan, None)
                if copy is None or parameter.grad is None or plan in context.done:
                    continue
                plans.append(plan)
                tensors.append(copy)
                wanted.append(flags)
        if plans:
            context.done.update(plans)
            self._session.recorder.take(context, plans, tensors, wanted, scale=scale)

    def forget(self) -> None:
        """No optimizer will step: free the copies."""
        self._copies.clear()

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._copies.clear()

    # ---- called by autograd ------------------------------------------------------

    def mark(self) -> None:
        """A backward has added to a gradient."""
        step = self._session.machine.training
        if step is not self._step:
            self._session.run(self._look, step)
        if self._wants_any and not self._is_queued and not is_compiling():
            self._is_queued = True
            self._session.run(_at_the_end, self._passed)

    def _look(self, step: Step | None) -> None:
        """The first gradient of a step."""
        self._step = step
        self._is_queued = False
        context: StepContext | None = None if step is None else step.context
        self._copies.clear()
        self._wants_any = (
            context is not None and context.takes and self._wants_some(context.wants)
        )

    def _wants_some(self, wants: StepWants) -> bool:
        return any(self._plans.wanted(tap.parameters, wants) for tap in self._taps)

    def _passed(self) -> None:
        # What others have queued meanwhile (gradients are reduced over ranks by
        # such a call) comes first.
        self._session.run(_at_the_end, self._over)

    def _over(self) -> None:
        self._is_queued = False
        self._session.run(self._copy)

    def _copy(self) -> None:
        """A backward is over."""
        step = self._step
        context: StepContext | None = None if step is None else step.context
        if context is None or not context.takes:
            return
        for tap in self._taps:
            for entry, plan, _ in self._plans.wanted(tap.parameters, context.wants):
                parameter = entry.parameter()
                if parameter is None or not parameter.requires_grad:
                    continue  # What a frozen one holds is of a backward before.
                gradient = parameter.grad
                if gradient is not None and plan not in context.done:
                    self._keep(context, plan, gradient.detach())
        if not self._session.machine.optimizers:
            self.take(context)  # Nobody else will say when.

    def _keep(
        self, context: StepContext, plan: TensorPlan, gradient: torch.Tensor
    ) -> None:
        before = self._copies.get(plan)
        try:
            with torch.no_grad():
                if before is not None and _are_alike(before, gradient):
                    before.copy_(gradient)
                else:
                    self._copies[plan] = gradient.clone()
        except (RuntimeError, NotImplementedError):
            self._copies.pop(plan, None)
            self._session.recorder.refuse(context)


def _mark(owner: weakref.ref[UnclippedGradients]) -> Callable[[torch.Tensor], None]:
    def mark(_: torch.Tensor) -> None:
        me = owner()
        if me is not None:
            me.mark()

    return mark


def _at_the_end(function: Callable[[], None]) -> None:
    """Call it when the backward that is under way is over."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(function)


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the one's memory holds what the other has."""
    return (
        type(one) in TYPES
        and one.layout is torch.strided
        and other.layout is torch.strided
        and one.shape == other.shape
        and one.dtype is other.dtype
        and one.device == other.device
    )
