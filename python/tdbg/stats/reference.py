"""The reference of the statistics: their definition as code that is easy to read.

It uses NumPy and float64, reads each tensor twice and has no tricks for speed.  Tests
compare the kernels in ``cpp/reducers`` with it; docs/statistics.md says it in words.

Arrays may have any real type: integers, bool, floats, and the bfloat16 and float8 types
of ``ml_dtypes``.  All but 64-bit integers convert to float64 exactly.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.stats.row_fields import COUNTS, MOMENTS, RowFields

__all__ = ["Row", "histogram", "row", "unit_counts"]


# The row of no elements.
_EMPTY: dict[str, Any] = {
    **dict.fromkeys(COUNTS, 0),
    **dict.fromkeys(MOMENTS, 0.0),
    "min": math.inf,
    "max": -math.inf,
    "abs_min": math.inf,
}


@dataclass(frozen=True, slots=True)
class Row(RowFields[int, float | int, float]):
    """The statistics row of one tensor."""

    @classmethod
    def of(cls, **fields: float) -> Row:
        """Make a row; fields that are left out are those of no elements.

        Example:
            >>> Row.of(count=3, nan=3).max
            -inf
        """
        return cls(**_EMPTY | fields)


def row(x: Any, scale: float = 1.0) -> Row:
    """Compute the row of all elements of *x*, each times *scale*.

    Args:
        x: An array of any shape.
        scale: The factor that each element is multiplied by first, in float64.
    """
    elements = np.asarray(x).reshape(-1)
    if scale == 1.0 and elements.dtype.kind in "biu":
        return _integer_row(elements)
    values = _to_float64(elements)
    # A product may be infinite, or zero, where its element is not.
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        values = values * scale
    finite = values[np.isfinite(values)]
    counts = {
        "count": values.size,
        "nan": int(np.isnan(values).sum()),
        "positive_infinity": int(np.isposinf(values).sum()),
        "negative_infinity": int(np.isneginf(values).sum()),
        "zero": int((values == 0).sum()),
    }
    if finite.size == 0:
        return Row.of(**counts)
    return Row.of(
        **counts,
        min=float(finite.min()),
        max=float(finite.max()),
        **_moments(finite),
    )


def _integer_row(elements: NDArray[Any]) -> Row:
    """The row of integers: exact extremes, and moments of the nearest float64."""
    counts = {"count": elements.size, "zero": int((elements == 0).sum())}
    if elements.size == 0:
        return Row.of()
    return Row.of(
        **counts,
        min=int(elements.min()),
        max=int(elements.max()),
        **_moments(_to_float64(elements)),
    )


def _to_float64(x: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # Signalling NaN would warn.
        return x.astype(np.float64)


def _moments(values: NDArray[np.float64]) -> dict[str, Any]:
    """Compute the moments of at least one finite value.

    The values are divided by a power of two that brings the greatest near one, so that
    squares neither overflow nor underflow.  The second pass corrects the mean of the
    first one, and m2 by the error of that mean (Chan, Golub, LeVeque 1983, equation
    1.7).
    """
    greatest = float(np.abs(values).max())
    exponent = min(max(math.frexp(greatest)[1], -1000), 1000) if greatest else 0
    scaled = np.ldexp(values, -exponent)
    n = values.size
    first_mean = scaled.sum() / n
    deviations = scaled - first_mean
    correction = deviations.sum() / n
    constant = values.min() == values.max()
    with np.errstate(over="ignore"):
        m2 = (deviations * deviations).sum() - n * correction * correction
        return {
            "abs_min": float(np.abs(values).min()),
            "mean": float(np.ldexp(first_mean + correction, exponent)),
            "m2": 0.0 if constant else float(np.ldexp(m2, 2 * exponent)),
            "l1": float(np.ldexp(np.abs(scaled).sum(), exponent)),
            "l2": float(np.ldexp(np.sqrt((scaled * scaled).sum()), exponent)),
        }


def unit_counts(x: Any, axis: int, low: float, high: float) -> NDArray[np.uint64]:
    """Count the elements of each unit of *x*.

    Args:
        x: An array of at least one dimension.
        axis: The dimension whose indices are the units.
        low: Lower end of the range.
        high: Upper end of the range.

    Returns:
        An array of shape (3, units): the numbers of elements greater than zero, of
        elements outside of the range or NaN, and of all elements.
    """
    values = np.moveaxis(_to_float64(np.asarray(x)), axis, 0)
    others = tuple(range(1, values.ndim))
    active = values > 0
    out_of_range = (values < low) | (values > high) | np.isnan(values)
    every = np.ones(values.shape, np.bool_)
    counts = [which.sum(axis=others) for which in (active, out_of_range, every)]
    return np.stack(counts).astype(np.uint64)


def histogram(
    x: Any, scale: float = 1.0
) -> tuple[NDArray[np.uint16], NDArray[np.uint64]]:
    """Count the elements of *x*, each times *scale*, in log-linear bins.

    Args:
        x: An array of any shape.
        scale: The factor that each element is multiplied by first, in float64.

    Returns:
        The keys of the bins that have elements, ascending, and their counts.
    """
    elements = np.asarray(x).reshape(-1)
    if elements.dtype.kind in "iu":
        values = _towards_zero(elements)
    else:
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            values = _to_float64(elements) * scale
    keys, counts = np.unique(_keys(values), return_counts=True)
    return keys, counts.astype(np.uint64)


def _towards_zero(x: NDArray[Any]) -> NDArray[np.float64]:
    """Integers as float64; those beyond 2^53 rounded so that their key is right."""
    negative = x < 0
    bits = x.astype(np.uint64)
    magnitude = np.where(negative, np.uint64(0) - bits, bits)
    low = np.where(magnitude >> np.uint64(53) > 0, np.uint64(4095), np.uint64(0))
    return np.where(negative, -1.0, 1.0) * (magnitude & ~low).astype(np.float64)


def _keys(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Compute the key of each number: docs/statistics.md, "The histogram"."""
    magnitude = np.abs(values)
    finite = np.isfinite(values)
    mantissa, exponent = np.frexp(np.where(finite, magnitude, 1.0))
    # frexp's mantissa is between 1/2 and 1.
    normal = 128 * (exponent + 126) + np.floor((2 * mantissa - 1) * 128)
    small = np.floor(np.ldexp(np.minimum(magnitude, 1.0), 133))
    keys = np.where(magnitude < 2.0**-126, np.maximum(small, 1.0), normal)
    keys = np.where(magnitude >= 2.0**128, 0x7F7F, keys)
    keys = np.where(np.isinf(values), 0x7F80, keys)
    keys = np.where(values < 0, keys + 0x8000, keys)
    keys = np.where(np.isnan(values), 0x7FC0, keys)
    return np.where(values == 0, 0, keys).astype(np.uint16)
