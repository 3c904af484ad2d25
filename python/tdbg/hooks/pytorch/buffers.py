"""The buffers of a module: running statistics, masks, counters."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from tdbg.capture.naming import buffer_name
from tdbg.capture.recorder import StepContext, TensorPlan
from tdbg.capture.session import Session
from tdbg.capture.wants import StepWants
from tdbg.collections import Role
from tdbg.hooks.pytorch.parameters import LOOK_AGAIN
from tdbg.hooks.pytorch.paths import places_of

__all__ = ["BufferTable"]

# Sets of wants that are remembered: more than a schedule has.
_MAX_WANTS = 64


class _Entry(NamedTuple):
    """A buffer by its place, so that a new one put there is found."""

    owner: weakref.ref[nn.Module]
    key: str
    plan: TensorPlan

    def buffer(self) -> torch.Tensor | None:
        owner = self.owner()
        return None if owner is None else owner._buffers.get(self.key)


class BufferTable:
    """Captures buffers, persistent or not, named as ``named_buffers`` names them.

    A buffer at several places is one tensor with aliases.  Nothing is looked for
    unless buffers are asked for.

    Args:
        session: Where they go.
        module: Whose buffers they are; not kept alive.
        prefix: Goes before the names.
    """

    def __init__(self, session: Session, module: nn.Module, prefix: str) -> None:
        self._session = session
        self._module = weakref.ref(module)
        self._prefix = prefix
        self._countdown = LOOK_AGAIN
        self._entries: list[_Entry] | None = None
        self._taken = -1
        self.refresh()

    def refresh(self) -> None:
        """Think again after a change of collections."""
        self._selected: dict[StepWants, list[tuple[_Entry, int]]] = {}
        self._is_wanted = self._session.policy.may_capture(Role.BUFFER)

    def look_again(self) -> None:
        """Modules were added or replaced: find their buffers."""
        self._countdown = LOOK_AGAIN
        self._entries = None
        self._selected.clear()

    def capture(self, context: StepContext) -> None:
        """Take them as they are now, once in a step, in one call of the core."""
        if not self._is_wanted or self._taken == context.step.number:
            return
        selected = self._selected.get(context.wants)
        if selected is None:
            selected = self._select(context.wants)
        if not selected:
            return
        self._taken = context.step.number
        self._countdown -= 1
        if self._countdown <= 0:
            self.look_again()
            selected = self._select(context.wants)
        plans, tensors, wanted = [], [], []
        for entry, flags in selected:
            buffer = entry.buffer()
            if buffer is not None:
                plans.append(entry.plan)
                tensors.append(buffer)
                wanted.append(flags)
        if plans:
            self._session.recorder.take(context, plans, tensors, wanted)

    def _select(self, wants: StepWants) -> list[tuple[_Entry, int]]:
        """The entries of which something is wanted, kept for the next time."""
        if self._entries is None:
            self._entries = self._find()
        found = [(entry, wants.of_plan(entry.plan)) for entry in self._entries]
        if len(self._selected) > _MAX_WANTS:
            self._selected.clear()
        selected = [each for each in found if each[1]]
        self._selected[wants] = selected
        return selected

    def _find(self) -> list[_Entry]:
        module = self._module()
        if module is None:
            return []
        plan = self._session.recorder.plan
        entries = []
        for owner, key, paths in places_of(module, _buffers_of):
            first, *others = (buffer_name(self._prefix + path) for path in paths)
            entries.append(_Entry(owner, key, plan(first, Role.BUFFER, tuple(others))))
        return entries


def _buffers_of(module: nn.Module) -> Mapping[str, torch.Tensor | None]:
    return module._buffers
