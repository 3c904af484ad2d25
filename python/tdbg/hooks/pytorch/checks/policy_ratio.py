"""Compare a policy with the older one that has chosen the actions.

Thread safety: reads only.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.optim import Optimizer

from tdbg.hooks.pytorch.checks.graph_nodes import (
    SHAPING,
    Graph,
    name_of,
    operands_of,
    saved_of,
    walk,
)
from tdbg.hooks.pytorch.checks.graph_reader import Note, StepCheck
from tdbg.hooks.pytorch.device.tensors import sample_of
from tdbg.run.observations import Fault

__all__ = ["PolicyRatio"]

# Losses without a ratio, losses with one, and operations of a loss, at most.
_MOST_IN_VAIN, _MOST_LOSSES, _MOST_OF_RATIO = 8, 200, 2000
_MOST_NEAR = 60
# Repetitions that prove it.
_ENOUGH = 2
# Rows of a batch that are compared, at most, and how many there must be.
_MOST_SAMPLES, _LEAST_SAMPLES = 256, 8
# Batches of few different samples are compared as a whole, if no sample is most of it.
_VARIED, _LARGEST_SHARE = 0.5, 0.75
# First layers, and where their operations keep the inputs.
_INPUTS = {
    "Addmm": "mat1",
    "Mm": "self",
    "Convolution": "input",
    "Embedding": "indices",
}
_BETWEEN = SHAPING | {"Clamp", "Sum", "Mul"}


class PolicyRatio(StepCheck):
    """Find ratios of probabilities that are one although the policy has changed.

    Proximal policy optimization (PPO) divides a probability by the one that the action
    had when it was chosen.  The first update of new samples finds a ratio of exactly
    one.  If the same samples come again after an update, the ratio must differ from
    one, or the program computes the old probabilities anew.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._n_losses = self._n_in_vain = self._n_steps = self._n_repeated = 0
        # The step at which a sample, or a batch, was met first.
        self._met: dict[int, int] = {}
        # Some weights at the latest loss.
        self._weights: torch.Tensor | None = None

    def loss_begins(self, graph: Graph) -> None:
        """Look at the ratio in the loss at which a backward pass begins."""
        ratio = _ratio(graph.root) if graph.named(["Exp"]) else None
        if ratio is None:
            self._n_in_vain += 1
            if self._n_in_vain >= _MOST_IN_VAIN:
                self.remove()
            return
        self._n_losses += 1
        if self._n_losses > _MOST_LOSSES or not bool((ratio == 1.0).all()):
            self.remove()  # Some samples were chosen by an older policy.
            return
        self._look_at_samples(graph.root)

    def step_ends(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Note that the policy has changed."""
        self._n_steps += 1

    def remove(self) -> None:
        """Look at no more."""
        super().remove()
        self._met.clear()
        self._weights = None

    def _look_at_samples(self, root: Any) -> None:
        """Note a ratio of one of samples that an earlier step has used."""
        parts, weights = _samples_of(root)
        keys = _keys(parts)
        has_changed = self._weights is not None and not (
            weights is not None and torch.equal(weights, self._weights)
        )
        self._weights = weights
        steps = [self._met.setdefault(key, self._n_steps) for key in keys]
        if keys and has_changed and max(steps) < self._n_steps:
            self._n_repeated += 1
        if self._n_repeated >= _ENOUGH:
            self.remove()
            self._note(Fault.RATIO_ALWAYS_ONE, {}, {})


def _ratio(root: Any) -> torch.Tensor | None:
    """Return the exponential of a difference near the end of a loss; None: no such."""
    for node in walk(root, _MOST_NEAR):
        result = saved_of(node, "result") if name_of(node) == "Exp" else None
        if result is None or result.numel() < _LEAST_SAMPLES:
            continue
        below = operands_of(node)
        while len(below) == 1 and name_of(below[0]) in _BETWEEN:
            below = operands_of(below[0])
        if len(below) == 1 and name_of(below[0]) == "Sub":
            return result.detach()  # type: ignore[no-any-return]
    return None


def _samples_of(root: Any) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Return the inputs of the first layer, the chosen actions, and some weights."""
    parts: dict[str, torch.Tensor] = {}
    weights = None
    for node in walk(root, _MOST_OF_RATIO):
        name = name_of(node)
        leaf = getattr(node, "variable", None)
        if weights is None and leaf is not None:
            weights = sample_of(leaf)
        kept = saved_of(node, _INPUTS.get(name, ""))
        if isinstance(kept, torch.Tensor) and not kept.requires_grad:
            parts.setdefault("input", kept.detach())
        if name == "Gather":
            parts.setdefault("choice", saved_of(node, "index").detach())
    return (list(parts.values()) if "input" in parts else []), weights


def _keys(parts: list[torch.Tensor]) -> list[int]:
    """Return what tells samples apart, or batches; nothing if these are too alike."""
    n = min((len(each) for each in parts if each.ndim), default=0)
    if n < _LEAST_SAMPLES or any(len(each) != n for each in parts):
        return []
    arrays = [
        each[:_MOST_SAMPLES].reshape(min(n, _MOST_SAMPLES), -1).cpu() for each in parts
    ]
    rows = [
        b"".join(each.contiguous().numpy().tobytes() for each in row)
        for row in zip(*arrays, strict=True)
    ]
    counted = Counter(rows)
    if len(counted) >= _VARIED * len(rows):
        return [hash(row) for row in counted]
    if max(counted.values()) <= _LARGEST_SHARE * len(rows):
        return [hash(tuple(rows))]
    return []
