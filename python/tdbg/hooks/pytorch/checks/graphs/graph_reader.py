"""Read the graphs of the first losses: each is walked once, for most checks.

A backward pass is about to begin at a loss.  All who watch are given its graph, which
is walked when the first of them asks for operations by name, or for the leaves.

Thread safety: the training's thread.  Errors: those of a watcher stop nobody else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Protocol

import torch
from torch.optim import Optimizer

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import Graph
from tdbg.hooks.pytorch.functions.backward_calls import BackwardRoots
from tdbg.run.observations import Fault

__all__ = ["Found", "GraphFaults", "GraphReader", "Note", "StepCheck"]

# What a check found out: a fault, numbers and words.
Found = tuple[Fault, Mapping[str, float], Mapping[str, str]]
Note = Callable[[Fault, Mapping[str, float], Mapping[str, str]], None]


class _Watcher(Protocol):
    def loss_begins(self, graph: Graph) -> None: ...


class GraphReader:
    """Gives the graph of each loss to all who watch, until nobody does."""

    def __init__(self) -> None:
        self._watchers: list[_Watcher] = []
        self._roots: BackwardRoots | None = None

    def add(self, watcher: _Watcher) -> None:
        """Tell *watcher* of the losses that come next."""
        if watcher not in self._watchers:
            self._watchers.append(watcher)
        if self._roots is None:
            self._roots = BackwardRoots(self._begins)

    def discard(self, watcher: _Watcher) -> None:
        """Tell *watcher* no longer."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)
        if not self._watchers and self._roots is not None:
            self._roots.remove()
            self._roots = None

    def _begins(self, loss: torch.Tensor) -> None:
        graph = Graph(loss)
        for each in list(self._watchers):
            with contextlib.suppress(Exception):
                each.loss_begins(graph)


class StepCheck:
    """Base class of checks of the first losses and steps; each hears what it needs.

    Attributes:
        is_over: Whether nothing more will be found out.
    """

    is_over = False

    def loss_begins(self, graph: Graph) -> None:
        """A backward pass is about to begin."""

    def step_begins(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""

    def step_ends(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""

    def remove(self) -> None:
        """Look at no more."""
        self.is_over = True


class GraphFaults(StepCheck):
    """Notes what is wrong in the graphs of the first losses, each fault once.

    Args:
        find: Yields the faults of a graph; may have an attribute ``is_over``.
        most: The number of graphs that are read.
        note: Called with what is found out.
        key: Returns what graphs have in common that have the same faults: one of them
            is read.  None: each is.
    """

    def __init__(
        self,
        find: Callable[[Graph], Iterable[Found]],
        most: int,
        note: Note,
        key: Callable[[Graph], Hashable] | None = None,
    ) -> None:
        self._find = find
        self._note = note
        self._key = key
        self._n_left = most
        self._found: set[Fault] = set()
        self._read: set[Hashable] = set()

    def loss_begins(self, graph: Graph) -> None:
        """Find the faults in the graph of a loss."""
        self._n_left -= 1
        self.is_over = self._n_left <= 0
        if self._key is not None:
            key = self._key(graph)
            if key in self._read:
                return
            self._read.add(key)
        for fault, numbers, words in self._find(graph):
            if fault not in self._found:
                self._found.add(fault)
                self._note(fault, numbers, words)
        self.is_over |= getattr(self._find, "is_over", False)
