"""Updates: the changes that a step of an optimizer makes to parameters.

Thread safety: the training's thread.

Errors: none of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch.optim import Optimizer

from tdbg.capture.naming import update_name
from tdbg.capture.recorder import StepContext
from tdbg.capture.session import Session
from tdbg.capture.updates import DerivedEntries, Updates
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.capture.parameters_and_gradients import (
    ParameterPlace,
    ParameterTable,
)
from tdbg.hooks.pytorch.device.tensors import TYPES, gradient_of
from tdbg.hooks.pytorch.model.process_objects import held_ids

__all__ = ["OptimizerUpdates"]


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
