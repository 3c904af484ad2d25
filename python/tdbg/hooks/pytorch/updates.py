"""What optimizers do to parameters: W after a step, less W before it.

At a step that wants it the parameters of the optimizer are copied before it steps,
and the differences are taken, in the memory of the copies, as soon as it has stepped:
no copy outlives the optimizer's step.

Thread safety: the training's thread.

Errors: none of its own; a parameter for whose copy there is no memory, or that has
another shape afterwards, is refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from tdbg.capture.naming import update_name
from tdbg.capture.plans import TensorPlan
from tdbg.capture.recorder import Recorder, StepContext
from tdbg.collections import Role
from tdbg.hooks.pytorch.derived import DerivedPlans
from tdbg.hooks.pytorch.modules import ModuleTap
from tdbg.hooks.pytorch.tensors import TYPES

__all__ = ["Updates"]


class _Copy(NamedTuple):
    plan: TensorPlan
    parameter: torch.Tensor
    before: torch.Tensor
    wanted: int


class Updates:
    """Takes the updates of the optimizers that step.

    Args:
        recorder: Where they go.
        taps: The registered modules; grows.
    """

    def __init__(self, recorder: Recorder, taps: Sequence[ModuleTap]) -> None:
        self._recorder = recorder
        self._taps = taps
        self._plans = DerivedPlans(recorder, Role.UPDATE, update_name)
        self._copies: dict[Hashable, list[_Copy]] = {}

    @property
    def has_copies(self) -> bool:
        """Whether an optimizer is stepping whose updates are to be taken."""
        return bool(self._copies)

    def refresh(self) -> None:
        """Think again after a change of collections."""
        self._plans.refresh()

    def begin(
        self,
        key: Hashable,
        context: StepContext,
        optimizer: Optimizer,
        *,
        has_closure: bool,
    ) -> None:
        """The optimizer is about to step: copy what the step wants updates of.

        Args:
            key: Of the optimizer.
            context: The step.
            optimizer: It.
            has_closure: Whether gradients come into being only within its step.
        """
        self._copies.pop(key, None)
        chosen = [
            each
            for tap in self._taps
            for each in self._plans.wanted(tap.parameters, context.wants)
        ]
        if not chosen:
            return
        ours = {
            id(item) for group in optimizer.param_groups for item in group["params"]
        }
        # What an optimizer within another one does is part of the outer one's update.
        others = {copy.plan for copies in self._copies.values() for copy in copies}
        copies = []
        for entry, plan, wanted in chosen:
            parameter = entry.parameter()
            if parameter is None or id(parameter) not in ours:
                continue
            if plan in context.done or plan in others:
                continue
            if parameter.grad is None and not has_closure:
                continue  # Optimizers leave it alone.
            try:
                before = parameter.detach().clone()
            except (RuntimeError, NotImplementedError):
                self._recorder.refuse(context)
                continue
            copies.append(_Copy(plan, parameter, before, wanted))
        if copies:
            self._copies[key] = copies

    def end(self, key: Hashable, context: StepContext) -> None:
        """The optimizer has stepped: take its updates."""
        copies = self._copies.pop(key, None)
        if copies is None:
            return
        plans, tensors, wanted = [], [], []
        for plan, parameter, before, flags in copies:
            update = _difference(parameter, before)
            if update is None:
                self._recorder.refuse(context)
                continue
            plans.append(plan)
            tensors.append(update)
            wanted.append(flags)
        del copies, before
        if plans:
            context.done.update(plans)
            self._recorder.take(context, plans, tensors, wanted)

    def forget(self, key: Hashable | None = None) -> None:
        """The optimizer, or any, will not end its step: free the copies."""
        if key is None:
            self._copies.clear()
        else:
            self._copies.pop(key, None)


def _difference(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor | None:
    """In the memory of *before*, where that is possible."""
    after = after.detach()
    if after.shape != before.shape or after.device != before.device:
        return None
    try:
        if type(before) in TYPES:
            return torch.sub(after, before, out=before)
        return after - before
    except (RuntimeError, NotImplementedError):
        return None
