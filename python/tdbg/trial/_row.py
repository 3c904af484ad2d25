"""One statistics row as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tdbg import _core
from tdbg.trial import _merge
from tdbg.trial._statistics import Statistics

__all__ = ["TensorStatistics", "as_row", "extremes_of"]


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """The statistics of one tensor at one step (docs/statistics.md).

    Counts cover all elements, everything else the finite ones.

    Attributes:
        count: Number of elements.
        nan: How many are NaN.
        positive_infinity: How many are +Inf.
        negative_infinity: How many are -Inf.
        zero: How many are zero.
        min: The least; an exact int for integers and bool; +inf if none is finite.
        max: The greatest; likewise; -inf if none is finite.
        abs_min: The least absolute value; +inf if none is finite.
        mean: The mean.
        m2: Sum of squared deviations from the mean.
        l1: Sum of absolute values.
        l2: Square root of the sum of squares.
    """

    count: int
    nan: int
    positive_infinity: int
    negative_infinity: int
    zero: int
    min: float | int
    max: float | int
    abs_min: float
    mean: float
    m2: float
    l1: float
    l2: float

    @classmethod
    def of(cls, row: np.void, number: int) -> TensorStatistics:
        """Of a row of the core whose extremes are of the class *number*."""
        values = {name: row[name].item() for name in _merge.FIELDS}
        values["min"], values["max"] = extremes_of(row, number)
        return cls(**values)

    @property
    def finite(self) -> int:
        """How many elements are neither NaN nor infinite."""
        return self.count - self.nan - self.positive_infinity - self.negative_infinity

    @property
    def variance(self) -> float:
        """Population variance; NaN if no element is finite."""
        return self.m2 / self.finite if self.finite else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation."""
        return math.sqrt(self.variance)

    @property
    def rms(self) -> float:
        """Root mean square."""
        return self.l2 / math.sqrt(self.finite) if self.finite else math.nan


def extremes_of(row: np.void, number: int) -> tuple[float | int, float | int]:
    """Minimum and maximum of a row whose extremes are of the class *number*."""
    if row["abs_min"] == math.inf:
        return math.inf, -math.inf
    dtype = _merge.CLASS_DTYPES[number]
    return row["min"].view(dtype).item(), row["max"].view(dtype).item()


def as_row(merged: Statistics) -> np.void:
    """The only entry of *merged*, as the core lays a row out."""
    rows = np.zeros(1, _core.ROW_DTYPE)
    extremes = dict(zip(("min", "max"), merged.extreme_bits, strict=True))
    for name in _merge.FIELDS:
        rows[name] = extremes.get(name, getattr(merged, name))[0, 0]
    result: np.void = rows[0]
    return result
