"""The buffers of a module.

Thread safety: the training's thread.  Errors: none of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from tdbg.capture.naming import buffer_name
from tdbg.capture.recorder import StepContext, TensorEntry
from tdbg.capture.schedule import StepPlan
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.hooks.pytorch.model.module_tree import SEARCH_INTERVAL, places_of

__all__ = ["BufferTable"]

# Step plans that are remembered: more than a schedule has.
_MAX_STEP_PLANS = 64


class _TrackedBuffer(NamedTuple):
    """A buffer by its place in the model, where its replacement is found, too."""

    owner: weakref.ref[nn.Module]
    key: str
    entry: TensorEntry

    def buffer(self) -> torch.Tensor | None:
        owner = self.owner()
        return None if owner is None else owner._buffers.get(self.key)


class BufferTable:
    """Capture buffers, persistent or not, by the names of ``named_buffers``.

    A buffer at several places is one tensor with aliases.  The table looks for buffers
    only if the collections ask for them.

    Args:
        session: Where they go.
        module: The module that has them; not kept alive.
        prefix: Stands before the names.
    """

    def __init__(self, session: Session, module: nn.Module, prefix: str) -> None:
        self._session = session
        self._module = weakref.ref(module)
        self._prefix = prefix
        self._countdown = SEARCH_INTERVAL
        self._tracked: list[_TrackedBuffer] | None = None
        self._taken = -1
        self.refresh()

    def refresh(self) -> None:
        """Decide anew what is captured: collections have changed."""
        self._selected: dict[StepPlan, list[tuple[_TrackedBuffer, int]]] = {}
        self._is_captured = self._session.may_capture(Role.BUFFER)

    def search_again(self) -> None:
        """Find the buffers anew: modules were added or replaced."""
        self._countdown = SEARCH_INTERVAL
        self._tracked = None
        self._selected.clear()

    def capture(self, context: StepContext) -> None:
        """Capture the buffers as they are now, once in a step, in one call."""
        if not self._is_captured or self._taken == context.step.number:
            return
        selected = self._selected.get(context.step_plan)
        if selected is None:
            selected = self._select(context.step_plan)
        if not selected:
            return
        self._taken = context.step.number
        self._countdown -= 1
        if self._countdown <= 0:
            self.search_again()
            selected = self._select(context.step_plan)
        entries, tensors, requested = [], [], []
        for tracked, flags in selected:
            buffer = tracked.buffer()
            if buffer is not None:
                entries.append(tracked.entry)
                tensors.append(buffer)
                requested.append(flags)
        if entries:
            self._session.take(context, entries, tensors, requested)

    def _select(self, step_plan: StepPlan) -> list[tuple[_TrackedBuffer, int]]:
        """Select the buffers of which the step captures something; kept for later."""
        if self._tracked is None:
            self._tracked = self._find()
        found = [
            (tracked, step_plan.of_entry(tracked.entry)) for tracked in self._tracked
        ]
        if len(self._selected) > _MAX_STEP_PLANS:
            self._selected.clear()
        selected = [each for each in found if each[1]]
        self._selected[step_plan] = selected
        return selected

    def _find(self) -> list[_TrackedBuffer]:
        module = self._module()
        if module is None:
            return []
        entry = self._session.entry
        all_tracked = []
        for owner, key, paths in places_of(module, _buffers_of):
            first, *others = (buffer_name(self._prefix + path) for path in paths)
            all_tracked.append(
                _TrackedBuffer(owner, key, entry(first, Role.BUFFER, tuple(others)))
            )
        return all_tracked


def _buffers_of(module: nn.Module) -> Mapping[str, torch.Tensor | None]:
    return module._buffers
