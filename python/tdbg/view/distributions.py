"""How the elements of a tensor are distributed: its histograms over the steps.

Thread safety: functions and values; the trial's lock is held inside.

Errors: as of ``TensorHandle.histogram``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import TensorUnavailable
from tdbg.stats.histogram import Histogram
from tdbg.trial import Trial

__all__ = ["QUANTILES", "Distribution", "Histograms"]

#: The quantiles of ``Distribution.quantiles``.
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
# Merged histograms that are kept of a run, some 3 KB each.
MOST_KEPT = 4096
_kept: WeakKeyDictionary[Trial, dict[Hashable, Histogram]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Histograms over columns of steps, all in the same bins.

    Attributes:
        steps: int64 (columns,): the first step of each column.
        counts: float32 (columns, bins): elements in each bin.
        bad: float64 (columns,): elements that are NaN or infinite.
        edges: float64 (bins + 1,): edges of the bins, evenly spaced from the least to
            the greatest element.
        quantiles: float32 (columns, 7): those of ``QUANTILES``; NaN where no element is
            finite.
        n_steps: Number of histograms that the columns hold together.
    """

    steps: NDArray[np.int64]
    counts: NDArray[np.float32]
    bad: NDArray[np.float64]
    edges: NDArray[np.float64]
    quantiles: NDArray[np.float32]
    n_steps: int


class Histograms:
    """The histograms of a tensor: as they were saved, or of the values that were.

    Args:
        trial: The run.
        name: The tensor.
        worker: Those of this worker alone; None: of all together.
        with_values: Whether values count where no histogram was saved.

    Attributes:
        steps: The training steps that have one, ascending; of a tensor that was
            recorded in evaluation alone, those of evaluation.

    Raises:
        TensorUnavailable: If the name is unknown.
        InvalidWorker: If there is no such worker.

    Example:
        found = Histograms(trial, "gradient/fc.weight")
        found.at(found.steps[-1]).quantile([0.5])
    """

    def __init__(
        self,
        trial: Trial,
        name: str,
        worker: str | None = None,
        *,
        with_values: bool = True,
    ) -> None:
        self._trial, self._worker = trial, worker
        self._tensor = trial.tensor(name)
        self._saved = set(self._tensor.steps(what="histograms", worker=worker))
        values = self._tensor.steps(what="values", worker=worker) if with_values else ()
        self.steps = sorted(self._saved.union(values))

    @property
    def are_saved(self) -> bool:
        """Whether all of them were saved, so that no value has to be counted."""
        return len(self._saved) == len(self.steps)

    def at(self, step: int) -> Histogram:
        """Return the histogram of one of the steps.

        Raises:
            TensorUnavailable: If the values of that step are no numbers.
        """
        if step in self._saved:
            return self._tensor.histogram(step, worker=self._worker)
        value = self._tensor.value(step, worker=self._worker)
        try:
            return Histogram.of(value)
        except TypeError as error:
            raise TensorUnavailable(str(error)) from error

    def stretches(
        self, most: int, start: int | None = None, stop: int | None = None
    ) -> list[list[int]]:
        """Return all of the steps in at most *most* stretches of neighbours.

        Args:
            most: How many, at least 1.
            start: First training step; None: from the first on.
            stop: Training step before which to end; None: up to the last.
        """
        first, last = self._places(start, stop)
        steps = np.array(self.steps[first:last], np.int64)
        parts = np.array_split(steps, min(most, len(steps)) or 1)
        return [part.tolist() for part in parts if len(part)]

    def newest(self, at: int | None, most: int) -> tuple[int, Histogram] | None:
        """Return the newest histogram that has a finite element, and its step.

        Args:
            at: The last step that counts; None: the last of all.
            most: How many are looked at.
        """
        _, stop = self._places(None, None if at is None else at + 1)
        for step in reversed(self.steps[max(0, stop - most) : stop]):
            found = self.at(step)
            if found.finite:
                return step, found
        return None

    def over(
        self,
        start: int,
        stop: int,
        columns: int,
        bins: int,
        check: Callable[[], None] = lambda: None,
    ) -> Distribution:
        """Return all histograms of some steps; none is left out.

        A column holds the histograms of a power of two of steps, merged, and begins at
        a multiple of it: while a run grows, only its last column is read again.

        Args:
            start: First training step.
            stop: Training step before which to end.
            columns: At most so many columns.
            bins: Number of bins.
            check: Called before each read; may raise to give up.
        """
        first, last = self._places(start, stop)
        width = 1
        while -(-last // width) - first // width > columns:
            width *= 2
        begins = range(first // width * width, last, width) if first < last else ()
        spans = [(max(first, at), min(last, at + width)) for at in begins]
        merged = [self._merged(*span, check) for span in spans]
        edges = _edges(merged, bins)
        counts = np.zeros((len(merged), bins), np.float32)
        quantiles = np.full((len(merged), len(QUANTILES)), np.nan, np.float32)
        for i, each in enumerate(merged):
            if each.finite:
                counts[i] = each.to_numpy(edges)[0]
                quantiles[i] = each.quantile(QUANTILES)
        return Distribution(
            np.array([self.steps[at] for at, _ in spans], np.int64),
            counts,
            np.array([each.count - each.finite for each in merged], np.float64),
            edges,
            quantiles,
            last - first,
        )

    def _places(self, start: int | None, stop: int | None) -> tuple[int, int]:
        """Where steps in ``start <= step < stop`` begin and end among all."""
        first = 0 if start is None else bisect_left(self.steps, start)
        last = len(self.steps) if stop is None else bisect_left(self.steps, stop)
        return first, max(first, last)

    def _merged(self, first: int, last: int, check: Callable[[], None]) -> Histogram:
        """The histograms at some places together, in aligned blocks that are kept."""
        parts = []
        while first < last:
            size = first & -first or 1 << 62
            while first + size > last:
                size //= 2
            parts.append(self._block(first, size, check))
            first += size
        return Histogram.merge(parts)

    def _block(self, first: int, size: int, check: Callable[[], None]) -> Histogram:
        """The histograms of a power of two of places that begin at a multiple of it."""
        if size == 1:
            check()
            return self.at(self.steps[first])
        kept = _kept.setdefault(self._trial, {})
        span = self.steps[first], self.steps[first + size - 1], size
        key = (self._trial.epoch, self._tensor.name, self._worker, *span)
        found = kept.get(key)
        if found is None:
            half = size // 2
            parts = [self._block(at, half, check) for at in (first, first + half)]
            if len(kept) >= MOST_KEPT:
                kept.clear()
            found = kept[key] = Histogram.merge(parts)
        return found


def _edges(histograms: list[Histogram], bins: int) -> NDArray[np.float64]:
    """Edges of bins from the least to the greatest finite element."""
    finite = [each.edges[np.isfinite(each.edges).all(axis=1)] for each in histograms]
    bounds = [each for each in finite if len(each)]
    low = min((float(each.min()) for each in bounds), default=0.0)
    high = max((float(each.max()) for each in bounds), default=1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1)
