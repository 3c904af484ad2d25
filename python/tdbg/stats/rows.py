"""Reductions: from statistics rows to what NumPy would return for the whole tensor.

A row counts NaN and infinities and keeps them out of its moments.  A reduction takes
them into account again: it is NaN if any element is, and infinities enter it by the
rules of float64.  docs/statistics.md, "Reductions", has the formulas.

Thread safety: pure functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import ConfigurationError

__all__ = ["REDUCTIONS", "reduction_column", "reduction_value", "reduction_values"]

Column = NDArray[np.float64]
Extremes = tuple[Any, Any]


def reduction_value(
    row: Any, name: str, absolute: bool = False, *, extremes: Extremes | None = None
) -> float:
    """Compute one reduction of one row.

    Args:
        row: A record with the fields of a row.
        name: One of ``REDUCTIONS``.
        absolute: Whether to reduce the absolute values of the elements.
        extremes: Minimum and maximum of the finite elements as numbers; needed where
            the fields ``min`` and ``max`` hold the bits of integers.

    Raises:
        ConfigurationError: If there is no such reduction.
    """
    return reduction_column(row, name, absolute, extremes=extremes).item()


def reduction_values(
    row: Any, *, extremes: Extremes | None = None
) -> dict[tuple[str, bool], float]:
    """Compute all reductions of one row, by name and whether of absolute values."""
    return {
        (name, absolute): reduction_value(row, name, absolute, extremes=extremes)
        for name in REDUCTIONS
        for absolute in (False, True)
    }


def reduction_column(
    rows: Any, name: str, absolute: bool = False, *, extremes: Extremes | None = None
) -> Column:
    """Compute one reduction of many rows at once.

    Args:
        rows: A structured array, or an object whose ``[]`` returns a row's fields.
        name: One of ``REDUCTIONS``.
        absolute: Whether to reduce the absolute values of the elements.
        extremes: Columns of minima and maxima, as for ``reduction_value``.

    Returns:
        A float64 array with one number for each row.

    Raises:
        ConfigurationError: If there is no such reduction.
    """
    if name not in REDUCTIONS:
        msg = f"unknown reduction {name!r}: use one of {', '.join(REDUCTIONS)}"
        raise ConfigurationError(msg)
    row = _Rows(rows, extremes)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        result = np.asarray(getattr(row, f"{name}_of")(absolute), np.float64)
    return np.where(row.has_nan, np.nan, result)


class _Rows:
    """Columns of rows; each method ``NAME_of`` is the reduction NAME, without NaN."""

    def __init__(self, rows: Any, extremes: Extremes | None) -> None:
        self._rows = rows
        self._extremes = extremes
        self._count = _float(rows["count"])
        self._positive = _float(rows["positive_infinity"]) > 0
        self._negative = _float(rows["negative_infinity"]) > 0
        self._infinite = self._positive | self._negative
        nan = _float(rows["nan"])
        self.has_nan = nan > 0
        self._finite = (
            self._count
            - nan
            - _float(rows["positive_infinity"])
            - _float(rows["negative_infinity"])
        )

    def _extreme(self, index: int) -> Column:
        if self._extremes is not None:
            return _float(self._extremes[index])
        values = np.asarray(self._rows[("min", "max")[index]])
        if values.dtype == np.uint64:  # Bits, as the core lays a row out.
            values = values.view(np.float64)
        return _float(values) + 0.0  # A zero has no sign.

    def min_of(self, absolute: bool) -> Column:
        low = _float(self._rows["abs_min"]) if absolute else self._extreme(0)
        low = np.where(self._finite > 0, low, np.inf)
        if not absolute:
            low = np.where(self._negative, -np.inf, low)
        return np.where(self._count > 0, low, np.nan)

    def max_of(self, absolute: bool) -> Column:
        high = self._extreme(1)
        if absolute:
            high = np.maximum(np.abs(high), np.abs(self._extreme(0)))
        high = np.where(self._finite > 0, high, -np.inf)
        high = np.where(self._infinite if absolute else self._positive, np.inf, high)
        return np.where(self._count > 0, high, np.nan)

    def mean_of(self, absolute: bool) -> Column:
        mean = _float(self._rows["mean"])
        if absolute:
            mean = _float(self._rows["l1"]) / self._finite
        mean = np.where(self._finite > 0, mean, np.nan)
        return self._with_infinities(mean, absolute)

    def sum_of(self, absolute: bool) -> Column:
        total = _float(self._rows["l1"])
        if not absolute:
            total = _float(self._rows["mean"]) * self._finite
        return self._with_infinities(total, absolute)

    def _with_infinities(self, finite: Column, absolute: bool) -> Column:
        if absolute:
            return np.where(self._infinite, np.inf, finite)
        signs = np.where(self._positive, np.inf, -np.inf)
        signs = np.where(self._positive & self._negative, np.nan, signs)
        return np.where(self._infinite, signs, finite)

    def variance_of(self, absolute: bool) -> Column:
        m2 = _float(self._rows["m2"])
        variance = np.where(m2 >= 0, m2, np.nan) / self._finite
        if absolute:
            # The variance of |x| is that of x where no sign changes.  Elsewhere the
            # mean square is the same, and the means differ.
            mean = _float(self._rows["mean"])
            mean_abs = _float(self._rows["l1"]) / self._finite
            shifted = variance + (mean - mean_abs) * (mean + mean_abs)
            one_sign = (self._extreme(0) >= 0) | (self._extreme(1) <= 0)
            variance = np.where(one_sign, variance, np.maximum(shifted, 0.0))
        some = (self._finite > 0) & ~self._infinite
        return np.where(some, variance, np.nan)

    def std_of(self, absolute: bool) -> Column:
        return np.sqrt(self.variance_of(absolute))

    def l1_of(self, absolute: bool) -> Column:
        del absolute  # A norm has absolute values in any case.
        return np.where(self._infinite, np.inf, _float(self._rows["l1"]))

    def l2_of(self, absolute: bool) -> Column:
        del absolute
        return np.where(self._infinite, np.inf, _float(self._rows["l2"]))

    def rms_of(self, absolute: bool) -> Column:
        return self.l2_of(absolute) / np.sqrt(self._count)


#: The names of all reductions.
REDUCTIONS = tuple(
    name.removesuffix("_of") for name in vars(_Rows) if name.endswith("_of")
)


def _float(values: Any) -> Column:
    return np.asarray(values).astype(np.float64)
