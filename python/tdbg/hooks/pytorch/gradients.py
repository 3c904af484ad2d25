"""Gradients of a training that has no optimizer of PyTorch's.

Such a training updates its weights by hand, and nobody but autograd says when a
gradient is ready.  As soon as an optimizer is known, its steps are the better
moment, and these hooks go.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tdbg.capture.recorder import TensorPlan
from tdbg.capture.session import Session
from tdbg.capture.wants import StepWants
from tdbg.hooks.pytorch.modules import ModuleTap
from tdbg.hooks.pytorch.paths import is_fully_sharded
from tdbg.modes import ModeKeys

__all__ = ["AccumulatedGradients"]


class AccumulatedGradients:
    """Captures each gradient when its first backward of the step has added to it.

    Args:
        session: Where they go.
        tap: The module.
    """

    def __init__(self, session: Session, tap: ModuleTap) -> None:
        self._session = session
        self.tap = tap
        self._handles: Any = WeakIdKeyDictionary()

    def watch(self, wants: StepWants) -> None:
        """A step begins: if it wants any, watch what is not watched yet."""
        root = self.tap.module
        if root is None or is_fully_sharded(root):
            return  # As a forward begins it holds others than get the gradients.
        for parameter, plan in self.tap.parameters.parameters():
            if not wants.of_plan(plan) or parameter in self._handles:
                continue
            if parameter.requires_grad and parameter.is_leaf:
                register: Any = parameter.register_post_accumulate_grad_hook
                self._handles[parameter] = register(self._hook(plan))

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def _hook(self, plan: TensorPlan) -> Any:
        session = self._session

        def take(parameter: torch.Tensor) -> None:
            session.run(self._take, plan, parameter)

        return take

    def _take(self, plan: TensorPlan, parameter: torch.Tensor) -> None:
        session = self._session
        if session.machine.optimizers:
            return
        context = session.module_called(ModeKeys.TRAIN)
        gradient = parameter.grad
        if context is None or gradient is None or plan in context.done:
            return
        context.done.add(plan)
        wanted = context.wants.of_plan(plan)
        if wanted:
            micro_batch = context.step.micro_batch
            session.recorder.take(
                context, (plan,), (gradient,), (wanted,), micro_batch=micro_batch
            )
