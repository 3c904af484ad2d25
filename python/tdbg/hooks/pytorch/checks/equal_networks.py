"""Find networks that begin equal, learn the same, and stay equal.

Members of an ensemble, or two critics, that begin with the same weights, and learn the
same of the same inputs, never differ: they are one network that is paid for twice.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from tdbg.hooks.pytorch.checks.graph_reader import StepCheck
from tdbg.hooks.pytorch.device.tensors import sample_of
from tdbg.hooks.pytorch.model.module_tree import named_modules
from tdbg.hooks.pytorch.model.process_objects import held_ids
from tdbg.run.observations import Fault, Observation

__all__ = ["EqualNetworks"]

# Steps after which networks that learn have become different; networks of one group,
# groups, and parameters of each that are compared, at most.
_TO_DIFFER, _MOST_MEMBERS, _MOST_GROUPS, _MOST_PARAMETERS = 5, 8, 16, 16


_DIGITS = re.compile(r"\d+")


class _Table(Protocol):
    """The parameters of a registered module, which a ``ParameterTable`` is."""

    @property
    def module(self) -> nn.Module | None: ...


class _Group(NamedTuple):
    """Networks that began with the same weights, and these."""

    names: tuple[str, ...]
    members: tuple[weakref.ref[nn.Module], ...]
    first: tuple[torch.Tensor, ...]


class EqualNetworks(StepCheck):
    """Watch networks that begin equal.

    Args:
        tables: The parameters of the registered modules; grows.
        step: Returns the global step of training.
        observe: Writes an observation.
    """

    def __init__(
        self,
        tables: Sequence[_Table],
        step: Callable[[], int],
        observe: Callable[[Observation], None],
    ) -> None:
        self._tables = tables
        self._step = step
        self._observe = observe
        self._groups: list[_Group] | None = None
        self._held = set[int]()
        self._n_steps = 0

    def step_begins(self, optimizer: Optimizer) -> None:
        """Find the networks before the first step."""
        self._held |= held_ids(optimizer)
        if self._groups is None:
            found = [each.module for each in self._tables]
            self._groups = [
                group
                for root in found
                if root is not None
                for group in _groups_in(root)
            ][:_MOST_GROUPS]

    def step_ends(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Compare them after some steps."""
        self._n_steps += 1
        if not self._groups:
            self.remove()
        elif self._n_steps >= _TO_DIFFER:
            for group in self._groups:
                if self._is_one(group):
                    step, numbers = self._step(), {"steps": float(self._n_steps)}
                    fault = Fault.NETWORKS_STAY_EQUAL
                    self._observe(
                        Observation(fault, max(0, step), group.names, numbers)
                    )
            self.remove()

    def remove(self) -> None:
        """Look at no more."""
        super().remove()
        self._groups = []

    def _is_one(self, group: _Group) -> bool:
        """Return whether all members have moved, and by the same."""
        members = [each() for each in group.members]
        parts = [_some(each) for each in members if each is not None]
        if len(parts) < len(members):
            return False
        if not all(id(each) in self._held for part in parts for each in part):
            return False
        present = [tuple(map(sample_of, part)) for part in parts]
        is_moved = not _are_same(present[0], group.first)
        return is_moved and all(_are_same(each, present[0]) for each in present[1:])


def _groups_in(root: nn.Module) -> Iterator[_Group]:
    """Yield networks that stand in a list, or under numbered names, and are equal."""
    found: dict[tuple[str, str, type], dict[int, tuple[str, nn.Module]]] = {}
    for path, module in named_modules(root):
        parent, _, key = path.rpartition(".")
        if path and _DIGITS.search(key) and _is_network(module):
            place = parent, _DIGITS.sub("", key), type(module)
            found.setdefault(place, {}).setdefault(id(module), (path, module))
    parts = set[int]()
    for several in found.values():
        named = [*several.values()][:_MOST_MEMBERS]
        if len(named) < 2 or any(id(module) in parts for _, module in named):
            continue
        first = tuple(map(sample_of, _some(named[0][1])))
        others = [tuple(map(sample_of, _some(each))) for _, each in named[1:]]
        if all(_are_same(first, each) for each in others):
            for _, module in named:
                parts.update(map(id, module.modules()))
            yield _Group(
                tuple(path for path, _ in named),
                tuple(weakref.ref(module) for _, module in named),
                first,
            )


def _is_network(module: nn.Module) -> bool:
    """Return whether a module has weights that do not begin alike by themselves."""
    some = _some(module)
    samples = map(sample_of, some)
    return any(bool((each != each[:1]).any()) for each in samples if len(each))


def _some(module: nn.Module) -> list[nn.Parameter]:
    every = list(module.parameters())
    return every[:: max(1, len(every) // _MOST_PARAMETERS)]


def _are_same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        mine.shape == theirs.shape and torch.equal(mine, theirs)
        for mine, theirs in zip(one, other, strict=True)
    )
