"""What a program counts in its evaluations, and what it keeps as the best of them.

Right answers are counted as the program counts them, so it is known what its accuracy
must be.

Thread safety: the training's thread.  Errors: those of names that are odd.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import torch

from tdbg.hooks.pytorch.checks.data.evaluation_loops import Found
from tdbg.hooks.pytorch.checks.data.program_loops import KEPT, is_never_set
from tdbg.hooks.pytorch.model.variables import best_values, named_numbers
from tdbg.run.observations import Fault

__all__ = ["MetricSums"]

# Evaluations, how far apart their accuracies must be, how exactly numbers are equal.
_LEAST_PASSES, _APART, _EQUAL = 4, 0.02, 1e-6
_LEAST_COUNTED = 3
# What a program calls an accuracy; what the best begins with.
_ACCURACY = re.compile(
    r"^(?!.*(best|run|mean|avg|ema|cum|total|all))(.*_)?acc(s|uracy|uracies)?(_|$)",
    re.IGNORECASE,
)
_BEGINS, _FAR = frozenset({0.0, -1.0}), 1e4


class _Pass(NamedTuple):
    """Counts in one evaluation: right answers, all, and the sum of labels."""

    right: int
    n: int
    labels: float


class MetricSums:
    """Counts in the first evaluations of a training."""

    def __init__(self) -> None:
        self._right = self._n = 0
        self._labels = 0.0
        self._passes: list[_Pass] = []
        # What programs call an accuracy, and the best, after each evaluation.
        self._called: dict[str, list[float]] = {}
        self._kept: dict[str, list[float]] = {}

    def count(self, equal: torch.Tensor, labels: torch.Tensor) -> None:
        """Count right answers."""
        self._right += int(equal.sum())
        self._n += equal.numel()
        self._labels += float(labels.sum())

    def pass_ends(self) -> list[Found]:
        """Return what is wrong with an evaluation that is over."""
        if self._n:
            self._passes.append(_Pass(self._right, self._n, self._labels))
        self._right = self._n = 0
        self._labels = 0.0
        frame = sys._getframe(1)
        found = [*self._of_best(frame)]
        if self._n_counted:
            found += _lowest_of(self._passes, frame)
            found += self._of_accuracy(frame)
        return found

    @property
    def _n_counted(self) -> int:
        return len(self._passes)

    def _of_accuracy(self, frame: FrameType) -> Iterator[Found]:
        """Yield that what is called an accuracy has another count below the line."""
        now = dict(named_numbers(frame, _ACCURACY))
        for name, value in now.items():
            self._called.setdefault(name, []).append(value)
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return
        for name, values in self._called.items():
            if name in now and len(values) == self._n_counted >= _LEAST_COUNTED:
                found = _of_counts(values, self._passes)
                if found is not None:
                    fault, numbers = found
                    yield fault, name, numbers, {}

    def _of_best(self, frame: FrameType) -> Iterator[Found]:
        """Yield that a number that is compared as the best one never changes."""
        now = dict(named_numbers(frame, KEPT))
        for name, value in now.items():
            self._kept.setdefault(name, []).append(value)
        for name, values in self._kept.items():
            first = values[0]
            is_begin = first in _BEGINS or abs(first) >= _FAR
            if name not in now or len(values) != _LEAST_PASSES or not is_begin:
                continue
            if {*values} == {first} and is_never_set(name, frame):
                yield Fault.BEST_NEVER_MOVES, name, {}, {"value": f"{first:g}"}


def _lowest_of(passes: list[_Pass], frame: FrameType) -> Iterator[Found]:
    """Yield that the program calls the lowest accuracy the best."""
    accuracies = [each.right / each.n for each in passes]
    if len(accuracies) < _LEAST_PASSES:
        return
    low, high = min(accuracies), max(accuracies)
    if sum(each < low + _APART for each in accuracies) > 1:
        return
    for name, value in best_values(frame):
        # In percent, too.
        if any(abs(value - each * low) < _EQUAL * each for each in (1.0, 100.0)):
            numbers = {"low": low, "high": high, "passes": float(len(passes))}
            yield Fault.LOWEST_IS_BEST, name, numbers, {}
            return


def _of_counts(
    values: list[float], passes: list[_Pass]
) -> tuple[Fault, dict[str, float]] | None:
    """Return what is wrong with an accuracy after each evaluation; None: nothing."""
    rights, sizes = [each.right for each in passes], {each.n for each in passes}
    is_known = len({*rights}) > 1 and len(sizes) == 1 and min(rights) > 0
    if not is_known or min(values) <= 0 or not all(map(math.isfinite, values)):
        return None
    n = passes[0].n
    counts = [right / value for right, value in zip(rights, values, strict=True)]
    for scale in (1.0, 100.0):
        count = round(scale * counts[0])
        if all(abs(scale * each - count) < _EQUAL * count for each in counts):
            numbers = {"count": float(count), "samples": float(n)}
            is_wrong = count not in {0, 1, 100, n, n / 100, n * 100}
            return (Fault.DIVIDED_BY_OTHER_COUNT, numbers) if is_wrong else None
    # Of other samples, a mean over all so far may be meant.
    if len({each.labels for each in passes}) == 1 and _are_means(values, rights, n):
        numbers = {"last": rights[-1] / n, "said": sum(rights) / (n * len(rights))}
        return Fault.COUNTS_GO_ON, numbers | {"passes": float(len(passes))}
    return None


def _are_means(values: list[float], rights: list[int], n: int) -> bool:
    """Return whether values are the means over all evaluations so far."""
    means = [sum(rights[: i + 1]) / (n * (i + 1)) for i in range(len(rights))]
    apart = [
        max(
            abs(value - scale * mean) for value, mean in zip(values, means, strict=True)
        )
        for scale in (1.0, 100.0)
    ]
    return apart[0] < _EQUAL or apart[1] < 100.0 * _EQUAL
