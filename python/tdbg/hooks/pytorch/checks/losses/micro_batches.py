"""Find out in the first steps how micro-batches are put together.

If a step has several backward passes of the same kind, their gradients add up.  The
graph of each loss says over how many numbers it is a mean, and what it is multiplied
by.

Thread safety: the training's thread.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import SGD, Optimizer

from tdbg.hooks.pytorch.checks.graphs.graph_nodes import (
    Graph,
    factor_of,
    name_of,
    operands_of,
    saved_of,
    walk,
)
from tdbg.hooks.pytorch.checks.graphs.graph_reader import Note, StepCheck
from tdbg.hooks.pytorch.device.tensors import gradient_of
from tdbg.hooks.pytorch.functions.backward_calls import unscaled
from tdbg.hooks.pytorch.model.process_objects import held_ids
from tdbg.run.observations import Fault

__all__ = ["MicroBatches"]

# Steps that are looked at, those of a fault that prove it, and passes, at most.
_MOST_STEPS, _ENOUGH, _MOST_PASSES = 8, 4, 400
# The least number of passes that are taken for micro-batches where none says so.
_LEAST_UNDIVIDED = 3
_TWICE = 2
# Passes of a step that are a loop over batches.
_MANY = 8
# Counts of numbers that differ by less hardly matter.
_UNEQUAL = 1.25
_CLOSE = 1e-3
# Losses that PyTorch reduces, and how the graph calls a mean.
_REDUCED = frozenset(
    {
        "BinaryCrossEntropy",
        "BinaryCrossEntropyWithLogits",
        "HuberLoss",
        "MseLoss",
        "NllLoss",
        "NllLoss2D",
        "SmoothL1Loss",
    }
)
_BY_MEAN = 1
_DEEPEST = 60


class _Pass(NamedTuple):
    """A backward pass.

    Attributes:
        kind: The operation that makes the mean.
        leaf: The parameter next to the loss.
        factor: What the mean is multiplied by.
        n_numbers: The numbers that it is a mean of.
        is_first: Whether no gradient waits that it is added to.
        shares: What each operation multiplies the mean by.
    """

    kind: str
    leaf: torch.Tensor
    factor: float
    n_numbers: float
    is_first: bool = False
    shares: tuple[float, ...] = ()


class MicroBatches(StepCheck):
    """Compare the backward passes of each step.

    Args:
        note: Called with what is found out.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._n_steps = self._n_passes = 0
        self._passes: list[_Pass | None] = []
        # Of steps that have the fault: the largest count by the smallest.
        self._unequal: list[float] = []
        self._undivided: list[int] = []
        self._cleared: list[int] = []
        self._divided_twice: list[int] = []
        self._lost: list[int] = []
        self._handle: Any = None
        # The first leaf's gradient, as the latest pass left it: its version, and where
        # it is.
        self._versions = [-1, 0]

    def loss_begins(self, graph: Graph) -> None:
        """Read what a backward pass is about to add up."""
        self._n_passes += 1
        if self._n_passes > _MOST_PASSES:
            self.remove()
            return
        found = _read(graph.loss)
        if found is not None:
            found = found._replace(is_first=_is_empty(found.leaf))
        self._passes.append(found)
        if found is not None and self._handle is None:
            self._watch(found.leaf)

    def step_begins(self, optimizer: Optimizer) -> None:
        """Compare the passes since the step before."""
        passes, self._passes = self._passes, []
        known = [each for each in passes if each is not None]
        if len(known) < max(2, len(passes)):
            return  # A single pass has nothing to be compared with.
        is_alike = len({(each.kind, id(each.leaf)) for each in known}) == 1
        if not is_alike or id(known[0].leaf) not in held_ids(optimizer):
            return
        if _are_averaged(known):
            self._compare(known)
        elif len(known) >= _MANY and self._is_last_alone(known):
            self._lost.append(len(known))
        elif _are_divided_twice(known) and not known[-1].is_first:
            self._divided_twice.append(len(known))
        if not known[-1].is_first and self._add_up(known, optimizer):
            self._undivided.append(len(known))

    def step_ends(self, optimizer: Optimizer) -> None:
        """Count a step, and say what was found out."""
        self._n_steps += 1
        if len(self._unequal) >= _ENOUGH:
            times = sorted(self._unequal)[len(self._unequal) // 2]
            self._note(Fault.MEAN_OF_MEANS, {"times": times}, {})
            self.remove()
        elif len(self._cleared) >= _ENOUGH:
            passes = {"passes": float(max(self._cleared))}
            self._note(Fault.MICRO_BATCHES_CLEARED, passes, {})
            self.remove()
        elif len(self._lost) >= _ENOUGH:
            passes = {"passes": float(max(self._lost)), "undivided": 1.0}
            self._note(Fault.MICRO_BATCHES_CLEARED, passes, {})
            self.remove()
        elif len(self._divided_twice) >= _ENOUGH:
            passes = {"passes": float(max(self._divided_twice))}
            words = {"optimizer": type(optimizer).__name__}
            self._note(Fault.MICRO_BATCHES_DIVIDED_TWICE, passes, words)
            self.remove()
        elif len(self._undivided) >= _ENOUGH and len(set(self._undivided)) == 1:
            passes = {"passes": float(self._undivided[0])}
            self._note(Fault.MICRO_BATCHES_ADD_UP, passes, {})
            self.remove()
        elif self._n_steps >= _MOST_STEPS:
            self.remove()

    def remove(self) -> None:
        """Look at no more."""
        super().remove()
        self._passes.clear()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _compare(self, passes: Sequence[_Pass]) -> None:
        """Note how passes whose losses are divided by their number count.

        Programs that compare the gradients of tasks clear them on purpose, and do not
        divide the losses.
        """
        if all(each.is_first for each in passes):
            self._cleared.append(len(passes))
            return
        counts = [each.n_numbers for each in passes]
        if max(counts) >= _UNEQUAL * min(counts) > 0:
            self._unequal.append(max(counts) / min(counts))

    def _watch(self, leaf: torch.Tensor) -> None:
        """Note each version of a gradient that a pass leaves."""
        register: Any = leaf.register_post_accumulate_grad_hook
        versions = self._versions

        def accumulated(parameter: torch.Tensor) -> None:
            versions[:] = _version_of(gradient_of(parameter)) or (-1, 0)

        self._handle = register(accumulated)

    def _add_up(self, passes: Sequence[_Pass], optimizer: Optimizer) -> bool:
        """Return whether an optimizer is to use the sum of several means as it is.

        Adam and its like make the same of a gradient and of a multiple of it.
        """
        counts = {each.n_numbers for each in passes}
        if len(passes) < _LEAST_UNDIVIDED or type(optimizer) is not SGD:
            return False
        if len(counts) > 1 or min(counts) < 2 or self._handle is None:
            return False
        is_whole = all(_is_close(each.factor, 1.0) for each in passes)
        return is_whole and self._is_untouched(passes[0].leaf)

    def _is_last_alone(self, passes: Sequence[_Pass]) -> bool:
        """Return whether all gradients but the last ones are cleared and lost.

        Programs that compare gradients of tasks make another one of them.
        """
        is_whole = all(each.is_first and _is_close(each.factor, 1.0) for each in passes)
        return is_whole and self._is_untouched(passes[0].leaf)

    def _is_untouched(self, leaf: torch.Tensor) -> bool:
        """Return whether a gradient is as the latest pass has left it."""
        version = _version_of(gradient_of(leaf))
        return version is not None and [*version] == self._versions


def _version_of(gradient: torch.Tensor | None) -> tuple[int, int] | None:
    """Return what a gradient has as long as nobody changes it; None: nobody knows."""
    if gradient is None or gradient.layout is not torch.strided:
        return None
    with contextlib.suppress(Exception):  # It runs in the backward pass.
        return gradient._version, gradient.data_ptr()
    return None


def _is_empty(leaf: torch.Tensor) -> bool:
    gradient = gradient_of(leaf)
    return gradient is None or not bool(gradient.detach().any())


def _are_averaged(passes: Sequence[_Pass]) -> bool:
    """Return whether each pass has the same share, which is one by their number."""
    return all(_is_close(each.factor * len(passes), 1.0) for each in passes)


def _are_divided_twice(passes: Sequence[_Pass]) -> bool:
    """Return whether two operations divide each pass by the number of passes.

    Of two passes nobody knows: one half is a frequent weight of a loss.
    """
    n = len(passes)
    return n >= _LEAST_UNDIVIDED and all(
        _is_close(each.factor * n * n, 1.0)
        and sum(_is_close(share * n, 1.0) for share in each.shares) == _TWICE
        for each in passes
    )


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE)


def _read(root: torch.Tensor) -> _Pass | None:
    """Return what a loss is the mean of; None: it is no multiple of a single mean."""
    node, factor = root.grad_fn, _scale_of(root)
    shares: list[float] = []
    for _ in range(_DEEPEST):
        if node is None:
            return None
        name, below = name_of(node), operands_of(node)
        if name in _REDUCED or name == "Mean":
            count, leaf = _count(node, name), _leaf(node)
            if leaf is None:
                return None
            return _Pass(name, leaf, factor, count, shares=tuple(shares))
        number = factor_of(node) if name in {"Mul", "Div"} else None
        if len(below) != 1 or not number:
            return None
        shares.append(number if name == "Mul" else 1 / number)
        factor *= shares[-1]
        node = below[0]
    return None


def _scale_of(root: torch.Tensor) -> float:
    """Return what undoes the scale of a scaler."""
    before = unscaled(root)
    if before is root or before.data_ptr() == root.data_ptr():
        return 1.0
    scaled = float(root.detach())
    return float(before) / scaled if scaled else math.nan


def _count(node: Any, name: str) -> float:
    """Return the number of numbers, or of labels, that a mean is of."""
    if name == "Mean":
        return float(getattr(node, "_saved_self_sym_numel", 0))
    if getattr(node, "_saved_reduction", None) != _BY_MEAN:
        return math.nan
    weight = saved_of(node, "total_weight")
    if weight is not None:
        return float(weight)
    return float(saved_of(node, "self").numel())


def _leaf(node: Any) -> torch.Tensor | None:
    """Return the first parameter below an operation."""
    leaves = (getattr(each, "variable", None) for each in walk(node, _DEEPEST))
    return next((leaf for leaf in leaves if leaf is not None), None)
