"""How far two tensors are apart, by their values or by their statistics.

A deviation is relative: 0 is the same, 1 is as far apart as the tensors are large.  It
is infinite where only one of two elements is NaN, or where infinities differ.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.stats.row_fields import NOT_FINITE_COUNTS
from tdbg.trial import Columns

__all__ = [
    "ELEMENT",
    "ROW_MEASURES",
    "Deviation",
    "of_numbers",
    "of_rows",
    "of_values",
    "sizes_of",
]

# Of one element as many times the deviation is allowed that is allowed of a tensor:
# the largest of a million normal errors is 5 times their root mean square.
ELEMENT = 10.0
# Elements that are compared at a time, 8 MB of float64.
CHUNK = 1 << 20
# How exact rows are, where ranks or micro-batches have been merged: docs/statistics.md.
EXACTNESS = 2e-7
#: What rows are compared by, in the order of what ``of_rows`` returns.
ROW_MEASURES = ("rms", "mean", "max", "min", "zeros", "NaN and Inf", "elements")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far two values are apart.

    Attributes:
        size: The relative deviation that is compared with a tolerance: the larger one
            of that of the norms, and of a tenth of that of the worst element.
        norm: The norm of the difference, relative to that of the larger value.
        index: Where the worst element is; None if the values are the same.
    """

    size: float
    norm: float
    index: tuple[int, ...] | None


SAME = Deviation(0.0, 0.0, None)


def of_values(one: NDArray[Any], other: NDArray[Any], floor: float = 0.0) -> Deviation:
    """Return how far two arrays of one shape are apart.

    Args:
        one: An array.
        other: Another one; integers and bool count as different by any bit.
        floor: A root mean square: smaller tensors are taken to be as large as this.
    """
    if one.size == 0 or _is_identical(one, other):
        return SAME
    if one.dtype.kind in "biu" and other.dtype.kind in "biu":
        return _exact(one, other)
    squares, spread, strange = np.zeros(2), 0.0, -1
    for at, a, b in _chunks(one, other):
        is_same, finite = _same(a, b), np.isfinite(a) & np.isfinite(b)
        if strange < 0 and not (is_same | finite).all():
            strange = at + int((~(is_same | finite)).argmax())
        squares += [(each[finite] ** 2).sum() for each in (a, b)]
        spread += float(((a[finite] - b[finite]) ** 2).sum())
    if strange >= 0:
        return Deviation(math.inf, math.inf, _index(strange, one.shape))
    rms = max(floor, math.sqrt(float(squares.max()) / one.size))
    if rms == 0.0 or spread == 0.0:
        return SAME
    norm = math.sqrt(spread / one.size) / rms
    worst, where = _worst(one, other, rms)
    return Deviation(max(norm, worst / ELEMENT), norm, _index(where, one.shape))


def _is_identical(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.dtype == other.dtype and bool(np.array_equal(one, other))


def _exact(one: NDArray[Any], other: NDArray[Any]) -> Deviation:
    differs = (one != other).ravel()
    if not differs.any():
        return SAME
    # As far apart as can be: no rounding makes one whole number of another.
    share = math.sqrt(float(differs.mean()))
    return Deviation(math.inf, share, _index(int(differs.argmax()), one.shape))


def _chunks(
    one: NDArray[Any], other: NDArray[Any]
) -> Iterator[tuple[int, Floats, Floats]]:
    a, b = one.reshape(-1), other.reshape(-1)
    for at in range(0, len(a), CHUNK):
        part = slice(at, at + CHUNK)
        yield at, a[part].astype(np.float64), b[part].astype(np.float64)


def _same(a: Floats, b: Floats) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (a == b) | (np.isnan(a) & np.isnan(b))
    return found


def _worst(one: NDArray[Any], other: NDArray[Any], rms: float) -> tuple[float, int]:
    """Return the largest difference of elements, relative to them and to the tensor."""
    worst, where = 0.0, 0
    for at, a, b in _chunks(one, other):
        with np.errstate(invalid="ignore"):
            found = np.abs(a - b) / (np.maximum(np.abs(a), np.abs(b)) + rms)
        found[_same(a, b)] = 0.0
        if found.max() > worst:
            worst, where = float(found.max()), at + int(found.argmax())
    return worst, where


def _index(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(at, shape)) if shape else ()


def sizes_of(columns: Columns) -> Floats:
    """Return the root mean squares of rows; NaN where there is none."""
    finite = columns.column("count") - sum(
        columns.column(name) for name in NOT_FINITE_COUNTS
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return columns.column("l2") / np.sqrt(finite)


def of_rows(one: Columns, other: Columns, floor: Floats | None = None) -> Floats:
    """Return how far the rows of two runs are apart, by each of ``ROW_MEASURES``.

    Args:
        one: Rows of n tensors at m steps.
        other: As many rows of another run.
        floor: Root mean squares (n, m): a smaller tensor is taken to be as large.

    Returns:
        float64 (measures, n, m): relative deviations, those of extremes and zeros
        divided by ``ELEMENT`` as those of elements are; 0 where one has no row.
    """
    rms = sizes_of(one), sizes_of(other)
    scale = np.fmax(rms[0], rms[1])
    scale = np.nan_to_num(scale if floor is None else np.fmax(scale, floor))
    found = np.zeros((len(ROW_MEASURES), *scale.shape))
    found[0] = _over(np.abs(rms[0] - rms[1]), scale)
    found[1] = _over(np.abs(one.column("mean") - other.column("mean")), scale)
    for i, name in ((2, "max"), (3, "min")):
        a, b = one.column(name), other.column(name)
        size = np.maximum(np.abs(a), np.abs(b)) + scale
        # Of a row without a finite element they are infinite.
        with np.errstate(invalid="ignore"):
            found[i] = _over(np.abs(a - b), size) / ELEMENT
    found[found < EXACTNESS] = 0.0
    found[4] = _zeros(one, other) / ELEMENT
    different = np.zeros(scale.shape, bool)
    for name in NOT_FINITE_COUNTS:
        different |= (one.column(name) > 0) != (other.column(name) > 0)
    found[5][different] = np.inf
    found[6][one.column("count") != other.column("count")] = np.inf
    found[:, ~(one.present & other.present)] = 0.0
    return found


def _over(difference: Floats, scale: Floats) -> Floats:
    """Relative differences; 0 where nothing is finite in either."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(difference > 0, difference / scale, 0.0)
    return np.where(np.isnan(found), 0.0, found)


def _zeros(one: Columns, other: Columns) -> Floats:
    """The difference of the shares of zeros: a few may come or go by rounding."""
    count = np.maximum(one.column("count"), 1.0)
    few = 2.0 + np.sqrt(np.fmax(one.column("zero"), other.column("zero")))
    zeros = (
        one.column("zero") / count,
        other.column("zero") / np.maximum(other.column("count"), 1.0),
    )
    found = np.abs(zeros[0] - zeros[1]) - few / count
    return np.nan_to_num(np.maximum(found, 0.0))


def of_numbers(one: Floats, other: Floats) -> Floats:
    """Return relative differences of numbers: 0 for two NaN, infinite for one."""
    is_same = (one == other) | (np.isnan(one) & np.isnan(other))
    size = np.maximum(np.abs(one), np.abs(other))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(is_same, 0.0, np.abs(one - other) / size)
    return np.where(np.isnan(found), np.inf, found)
