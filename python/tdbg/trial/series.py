"""A series to be drawn: what its columns of steps hold, nothing sampled.

Thread safety: values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["SERIES_COLUMNS", "Series"]

Floats = NDArray[np.float64]

# Columns of a chart: about one a pixel of its plot.
SERIES_COLUMNS = 600


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Least, greatest and mean value of each column of steps that has rows.

    Attributes:
        label: What it is called in the legend.
        first: The first step of each column, ascending.  Shape (columns,), like all.
        last: The last step of each column.
        low: The least finite value; NaN if none is finite.
        high: The greatest, likewise.
        mean: The mean of the finite ones, likewise.
        bad: How many rows hold a NaN or an infinity.
    """

    label: str
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    low: Floats
    high: Floats
    mean: Floats
    bad: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of_points(
        cls,
        label: str,
        steps: ArrayLike,
        values: ArrayLike,
        columns: int = SERIES_COLUMNS,
    ) -> Series:
        """Points, put together to at most *columns* columns of as many points each."""
        at, found = np.asarray(steps, np.int64), np.asarray(values, np.float64)
        order = np.argsort(at, kind="stable")
        at, found = at[order], found[order]
        if not len(at):
            nothing, no_step = np.empty(0), np.empty(0, np.int64)
            return cls(label, no_step, no_step, nothing, nothing, nothing, no_step)
        width = -(-len(at) // columns)
        starts = np.arange(0, len(at), width)
        finite = np.isfinite(found)
        n = np.add.reduceat(finite.astype(np.int64), starts)
        low = np.minimum.reduceat(np.where(finite, found, np.inf), starts)
        high = np.maximum.reduceat(np.where(finite, found, -np.inf), starts)
        # Divided first: the sum of large numbers may be infinite.
        shares = np.where(finite, found, 0.0) / np.repeat(
            np.maximum(n, 1), np.diff([*starts, len(at)])
        )
        mean = np.clip(np.add.reduceat(shares, starts), low, high)
        has_none = n == 0
        return cls(
            label,
            at[starts],
            at[np.append(starts[1:], len(at)) - 1],
            low=np.where(has_none, np.nan, low),
            high=np.where(has_none, np.nan, high),
            mean=np.where(has_none, np.nan, mean),
            bad=np.add.reduceat((~finite).astype(np.int64), starts),
        )

    @property
    def centers(self) -> Floats:
        """The middle of each column, in steps."""
        return (self.first + self.last) / 2.0

    def named(self, label: str) -> Series:
        """Return this series under another name."""
        return replace(self, label=label)
