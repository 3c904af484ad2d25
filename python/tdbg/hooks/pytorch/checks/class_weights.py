"""Compare the weights that a loss gives to classes with the numbers of their labels.

Thread safety: reads only.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tdbg.hooks.pytorch.checks.graph_nodes import (
    Graph,
    saved_of,
)
from tdbg.hooks.pytorch.checks.graph_reader import Note, StepCheck
from tdbg.run.observations import Fault

__all__ = ["ClassWeights"]

# Losses without weights, losses with some, and labels of one that are counted, at most.
_MOST_UNWEIGHED, _MOST_WEIGHED, _MOST_LABELS = 2, 16, 1 << 16
# Labels of all classes, and of the rarest one, at least; and how much more the most
# frequent one must have.
_ENOUGH_LABELS, _LEAST_LABELS, _UNEVEN = 256, 8, 3.0
# The power of the labels that weights are, and how exactly.
_LEAST_SLOPE, _ALIKE = 0.5, 0.9


class ClassWeights(StepCheck):
    """Compares weights of classes with the numbers of their labels.

    Weights make up for rare labels.  Those that grow as the labels do, and about as
    much, are shares of the labels, where the inverse was meant.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._n_losses = 0
        self._weights: torch.Tensor | None = None
        self._counts: torch.Tensor | None = None

    def loss_begins(self, graph: Graph) -> None:
        """Count the labels of a loss with weights."""
        self._n_losses += 1
        for weights, counts in _weighed(graph):
            if self._weights is None or self._counts is None:
                self._weights, self._counts = weights, counts
            elif torch.equal(self._weights, weights):
                self._counts = self._counts + counts
        if self._weights is None or self._counts is None:
            self.is_over = self._n_losses >= _MOST_UNWEIGHED
            return
        is_enough = int(self._counts.sum()) >= _ENOUGH_LABELS
        self.is_over = is_enough or self._n_losses >= _MOST_WEIGHED
        if is_enough and _follow(self._weights, self._counts):
            often, rare = int(self._counts.argmax()), int(self._counts.argmin())
            self._note(
                Fault.WEIGHTS_UPSIDE_DOWN,
                {
                    "often": float(often),
                    "rare": float(rare),
                    "labels": float(self._counts.sum()),
                    "often_labels": float(self._counts[often]),
                    "rare_labels": float(self._counts[rare]),
                    "often_weight": float(self._weights[often]),
                    "rare_weight": float(self._weights[rare]),
                },
                {},
            )


def _weighed(graph: Graph) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the weights of classes in a loss, and how many labels each has."""
    for node in graph.named({"NllLoss", "NllLoss2D"}):
        weights, labels = saved_of(node, "weight"), saved_of(node, "target")
        if weights is not None and labels is not None:
            some = labels.flatten()[:_MOST_LABELS]
            known = some[(some >= 0) & (some < len(weights))]
            counts = torch.bincount(known, minlength=len(weights))
            yield weights.detach().double().cpu(), counts.cpu()
    for node in graph.named({"BinaryCrossEntropyWithLogits"}):
        weight, labels = saved_of(node, "pos_weight"), saved_of(node, "target")
        if weight is not None and labels is not None and weight.numel() == 1:
            some = labels.detach().flatten()[:_MOST_LABELS]
            counts = torch.stack([(some == 0).sum(), (some == 1).sum()])
            weights = torch.stack([torch.ones(()), weight.detach().flatten()[0].cpu()])
            yield weights.double(), counts.cpu()


def _follow(weights: torch.Tensor, counts: torch.Tensor) -> bool:
    """Return whether weights grow as numbers of labels do, and nearly as much."""
    if float(weights.min()) <= 0 or int(counts.min()) < _LEAST_LABELS:
        return False
    if float(counts.max()) < _UNEVEN * float(counts.min()):
        return False
    x, y = counts.double().log(), weights.log()
    x, y = x - x.mean(), y - y.mean()
    slope = float((x * y).sum() / (x * x).sum())
    likeness = float((x * y).sum() / ((x * x).sum() * (y * y).sum()).sqrt())
    return _LEAST_SLOPE <= slope <= 1 / _LEAST_SLOPE and likeness >= _ALIKE
