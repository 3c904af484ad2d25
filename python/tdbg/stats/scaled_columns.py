"""Which rows a scaler was fitted on: the columns of a table show it to the last digit.

Over the rows that it was fitted on, and over no others, each column has the mean 0 and
the deviation 1, or goes from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scaled", "Scales"]

# Rows and columns without which nothing is asked; and numbers that are read, at most.
_LEAST_ROWS, _LEAST_COLUMNS, _MOST = 24, 2, 1 << 22
# How exact float32 keeps a mean and a deviation; and how far the rows of training alone
# are from it, at least.
_EXACT, _APART = 2e-6, 1e-4
# ScaledTable that reach 0 in one row, and 1 in one: pixels and shares do in many.
_LEAST_SINGLE = 4
# Parts of a table that are looked at: each patient may have a scale of its own.
_MOST_ROWS_OF_PARTS = 1 << 16

_Floats = NDArray[np.float64]


class ScaledTable(NamedTuple):
    """What a table says about the rows that its scaler was fitted on.

    Attributes:
        n: Its rows.
        total: The sum of each column.
        squares: The sum of each column's squares.
        low: The least number in each column.
        high: The largest.
        n_single: The columns that have both in one row only.
        has_parts: Whether some first rows are centred by themselves.
    """

    n: int
    total: _Floats
    squares: _Floats
    low: _Floats
    high: _Floats
    n_single: int
    has_parts: bool

    @classmethod
    def of(cls, rows: NDArray[np.floating]) -> ScaledTable | None:
        """Read a table; None: it is no table of fractions, too small or too large."""
        if rows.ndim != 2 or rows.size > _MOST or len(rows) < _LEAST_ROWS:
            return None
        x = rows.astype(np.float64)
        if x.shape[1] < _LEAST_COLUMNS or not np.isfinite(x).all():
            return None
        low, high = x.min(axis=0), x.max(axis=0)
        single = ((x == low).sum(axis=0) == 1) & ((x == high).sum(axis=0) == 1)
        return cls(
            len(x),
            x.sum(axis=0),
            np.square(x).sum(axis=0),
            low,
            high,
            int(single.sum()),
            _has_parts(x),
        )

    def joined(self, other: ScaledTable) -> ScaledTable:
        """Return what the rows of both say together."""
        return ScaledTable(
            self.n + other.n,
            self.total + other.total,
            self.squares + other.squares,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            min(self.n_single, other.n_single),
            self.has_parts or other.has_parts,
        )

    def is_like(self, other: ScaledTable) -> bool:
        """Return whether both have the same rows, as training data have themselves."""
        is_same = self.n == other.n and np.array_equal(self.low, other.low)
        return is_same and np.allclose(self.total, other.total, atol=_EXACT * self.n)

    def fitted(self) -> str:
        """Return which scaler was fitted on exactly these rows.

        Returns:
            ``"standard"``, ``"range"``, or an empty string: none was.
        """
        varies = self.high > self.low
        if varies.sum() < _LEAST_COLUMNS:
            return ""
        if self._is_standard(_EXACT)[varies].all():
            return "standard"
        reaches = (np.abs(self.low) < _EXACT) & (np.abs(self.high - 1) < _EXACT)
        is_range = self.n_single >= _LEAST_SINGLE and reaches[varies].all()
        return "range" if is_range else ""

    def _is_standard(self, exact: float) -> NDArray[np.bool_]:
        mean = self.total / self.n
        variance = self.squares / self.n - np.square(mean)
        # Some divide by the number of rows, and some by one less.
        unbiased = variance * (self.n / (self.n - 1))
        is_one = np.minimum(np.abs(variance - 1), np.abs(unbiased - 1)) < 2 * exact
        return (np.abs(mean) < exact) & is_one

    def is_apart(self, kind: str) -> bool:
        """Return whether a scaler of this kind was clearly not fitted on these rows."""
        varies = self.high > self.low
        if kind == "standard":
            return not self._is_standard(_APART)[varies].any()
        apart = (self.low > _APART) | (self.high < 1 - _APART)
        return int(apart.sum()) >= _LEAST_COLUMNS


class Scaled(NamedTuple):
    """A scaler that was fitted on rows of evaluation.

    Attributes:
        how: ``"standard"`` or ``"range"``.
        is_anew: Whether those alone were what it was fitted on, a second time.
        numbers: How many rows are trained on, evaluated, and were fitted on.
    """

    how: str
    is_anew: bool
    numbers: dict[str, float]


class Scales:
    """What the tables of a training show, as one after the other is evaluated.

    Args:
        table: The table that has the samples of training.
        rows: Which rows of it they are.
    """

    def __init__(self, table: NDArray[np.floating], rows: NDArray[np.int64]) -> None:
        self._place = _place(table)
        self._table = ScaledTable.of(table)
        has_rows = self._table is not None
        self._trained = ScaledTable.of(table[rows]) if has_rows else None
        self._evaluated: dict[int, ScaledTable] = {}

    def compare(
        self, table: NDArray[np.floating], rows: NDArray[np.int64]
    ) -> Scaled | None:
        """Compare rows of evaluation with those of training; None: nothing is wrong."""
        trained = self._trained
        if trained is None or table.ndim != 2 or not len(table):
            return None
        own = ScaledTable.of(table[rows])
        if own is None or len(own.total) != len(trained.total):
            return None
        if trained.has_parts or trained.is_like(own):
            return None
        numbers = {"rows": float(trained.n), "evaluated": float(own.n)}
        how = trained.fitted()
        if how:
            is_anew = own.fitted() == how and not own.has_parts
            return Scaled(how, True, numbers) if is_anew else None
        for each in self._together(trained, own, table, rows):
            how = each.fitted()
            if how and trained.is_apart(how):
                return Scaled(how, False, {**numbers, "all": float(each.n)})
        return None

    def _together(
        self,
        trained: ScaledTable,
        own: ScaledTable,
        table: NDArray[np.floating],
        rows: NDArray[np.int64],
    ) -> Iterator[ScaledTable]:
        """Yield what rows of training and of evaluation say together."""
        self._evaluated[hash(rows.tobytes())] = own
        yield trained.joined(own)
        of_all = trained
        for each in self._evaluated.values():
            of_all = of_all.joined(each)
        yield of_all
        if self._table is not None and _place(table) == self._place:
            yield self._table


def _place(table: NDArray[np.floating]) -> tuple[int, tuple[int, ...]]:
    return int(table.ctypes.data), table.shape


def _has_parts(x: _Floats) -> bool:
    """Return whether the first rows, up to some row, have the mean 0 by themselves."""
    if len(x) > _MOST_ROWS_OF_PARTS:
        return False
    sums = np.abs(np.cumsum(x, axis=0)[_LEAST_COLUMNS:-_LEAST_COLUMNS])
    counts = np.arange(_LEAST_COLUMNS + 1, len(x) - _LEAST_COLUMNS + 1)
    return bool((sums.max(axis=1) < _EXACT * counts).any())
