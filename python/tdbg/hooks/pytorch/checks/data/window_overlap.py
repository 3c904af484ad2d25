"""Find evaluation windows that lie between training windows of the same series.

Windows that are cut from a series overlap.  Split at random, a window of evaluation
stands between two of training that share nearly all of its values, also those that it
is to predict.  Split by time, it has training windows on one side only, and few do.  A
window is looked for by hashes of parts of it, at all shifts.

Thread safety: the training's thread.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from tdbg.stats.windows import (
    LEAST_VALUES,
    Overlap,
    are_in,
    hashes_of,
    is_varied,
    overlap_between,
)

__all__ = ["WindowOverlap"]

# Time steps of a window, and windows of evaluation, at least.
_LEAST_STEPS, _LEAST_WINDOWS = 8, 32
# Time steps of a window, and elements in each, at most.
_MOST_STEPS, _MOST_WIDTH = 512, 64
# What is kept of training and of evaluation: elements and batches.
_MOST_KEPT, _MOST_BATCHES, _MOST_COMPARED = 1 << 20, 1024, 1 << 17
# The share of windows that were trained on themselves.
_OWN = 0.02
# By how much chance is excluded: that a window would never be drawn in training, while
# its neighbours are.
_CERTAIN = math.log(1e-6)

# Batches of training that must overlap somewhere, elements of these, and shifts.
_FIRST_BATCHES, _MOST_FIRST, _SHIFTS = 32, 1 << 17, 8


class WindowOverlap:
    """The windows that a model is given, in training and evaluation.

    Attributes:
        is_over: Whether it needs no more of them.
    """

    __slots__ = ("_evaluated", "_kept", "_n_kept", "_trained", "is_over")

    def __init__(self) -> None:
        self._trained: list[torch.Tensor] = []
        self._evaluated: list[torch.Tensor] = []
        self._n_kept = 0
        self.is_over = False

    @property
    def needs_training(self) -> bool:
        """Whether to call ``train``."""
        is_full = self._n_kept > _MOST_KEPT or len(self._trained) > _MOST_BATCHES
        return not (self.is_over or is_full)

    def train(self, given: torch.Tensor) -> None:
        """Keep a batch of training."""
        if not _has_windows(given):
            self._end()
            return
        self._trained.append(given.detach().clone())
        self._n_kept += given.numel()
        if len(self._trained) == _FIRST_BATCHES and not self._are_of_series():
            self._end()

    def _are_of_series(self) -> bool:
        """Return whether windows of training overlap: rows of a table do not."""
        shape = self._trained[0].shape[1:]
        rows = torch.cat(
            [each.cpu() for each in self._trained if each.shape[1:] == shape]
        )
        rows = rows[: max(1, _MOST_FIRST // rows[0].numel())]
        return any(_overlaps_itself(rows.movedim(i, 1)) for i in range(1, rows.dim()))

    def evaluate(self, given: torch.Tensor) -> Overlap | None:
        """Keep a batch of evaluation; return what overlaps, now and then."""
        if not self._trained:
            return None
        if not _has_windows(given) or given.shape[1:] != self._trained[0].shape[1:]:
            self._end()
            return None
        self._evaluated.append(given.detach().clone())
        n = len(self._evaluated)
        n_elements = sum(each.numel() for each in self._evaluated)
        is_full = n_elements > _MOST_COMPARED
        found = self._judge() if is_full or n & (n - 1) == 0 else None
        if is_full or found is not None:
            self._end()
        return found

    def _end(self) -> None:
        self.is_over = True
        self._trained.clear()
        self._evaluated.clear()

    def _judge(self) -> Overlap | None:
        shape = self._trained[0].shape[1:]
        before = torch.cat(
            [each.cpu() for each in self._trained if each.shape[1:] == shape]
        )
        now = [each.cpu() for each in self._evaluated]
        found = (_overlap_along(before, now, i) for i in range(1, before.dim()))
        return next((each for each in found if each is not None), None)


def _overlap_along(
    trained: torch.Tensor, evaluated: list[torch.Tensor], dim: int
) -> Overlap | None:
    """Return what overlaps, if time is a dimension.

    Whoever evaluates windows that were trained on means to: such a batch does not
    count.  Among windows that are drawn at random, it must be no chance that a batch
    has none.
    """
    before = trained.movedim(dim, 1)
    own = np.sort(hashes_of(before.numpy()))
    others = [
        each.movedim(dim, 1)
        for each in evaluated
        if are_in(hashes_of(each.movedim(dim, 1).numpy()), own).mean() <= _OWN
    ]
    if not others:
        return None
    now = torch.unique(torch.cat(others), dim=0)
    n, n_steps = now.shape[:2]
    if not _LEAST_STEPS <= n_steps <= _MOST_STEPS or n < _LEAST_WINDOWS:
        return None
    is_mixed = len(others) < len(evaluated)
    return overlap_between(before.numpy(), now.numpy(), _CERTAIN, 0.5 * is_mixed)


def _has_windows(given: torch.Tensor) -> bool:
    return (
        given.dim() in {2, 3}
        and given.is_floating_point()
        and given.dtype in {torch.float32, torch.float64}
        and max(given.shape[1:]) >= _LEAST_STEPS
        and given[:1].numel() <= _MOST_STEPS * _MOST_WIDTH
    )


def _overlaps_itself(windows: torch.Tensor) -> bool:
    """Return whether a window begins a few steps later than another one."""
    n_steps = windows.shape[1]
    if n_steps < _LEAST_STEPS:
        return False
    size, rows = max(LEAST_VALUES, n_steps // 2), windows.numpy()
    first = np.sort(hashes_of(rows[:, :size]))
    for i in range(1, min(_SHIFTS, n_steps - size) + 1):
        part = rows[:, i : i + size]
        equal = are_in(hashes_of(part), first)
        if equal.any() and bool(is_varied(part[equal]).any()):
            return True
    return False
