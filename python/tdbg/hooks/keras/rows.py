"""Facts of arrays: rows that two sets share, windows, scales, and columns of labels.

Two parts of one set, each standardized by its own statistics, have means of 0 to the
last digits, which parts of one standardized set never have.  Windows of a series that
is split at random lie between windows that were trained on.

Thread safety: pure functions.  Errors: none; doubtful cases stay open.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.stats.windows import Overlap, are_in, hashes_of, overlap_between

__all__ = [
    "Rows",
    "classes_of",
    "factor_between",
    "is_same",
    "label_column",
    "overlap_of",
    "own_scale_of",
    "rows_of",
    "shared_rows",
]

Rows = NDArray[Any]

# Labels that are read.
_MOST_LABELS = 1 << 22
# Elements of data that are compared, different ones that make a row no code, and the
# share of rows of which this must hold.
_MOST_COMPARED, _OF_NUMBERS, _NEARLY_ALL = 1 << 24, 6, 0.9
# Rows that a scale is judged by, at least; how exactly a mean is 0; how exactly a range
# is that from 0 to 1; columns that have it; and how unlikely it is by chance.
_LEAST_ROWS, _ZERO, _EXACT, _LEAST_COLUMNS = 24, 2e-5, 1e-6, 4
_UNLIKELY = math.log(1e-9)
# Deviations that differ by a factor: how large, and how alike it is for all columns.
_SCALED, _ALIKE = 3.0, 0.3
# The share of rows that differ from the first, in a column that is judged.
_COMMON = 0.2
# Windows: steps of one, windows, elements of all parts that are compared, and the
# share that was trained on.
_LEAST_STEPS, _MOST_STEPS, _LEAST_WINDOWS = 8, 512, 32
_MOST_OF_PARTS, _OWN = 1 << 22, 0.02
# Values of a label that make it a number, and labels of each class that it needs.
_LEAST_LABELS, _LEAST_NUMBERS, _LEAST_OF_CLASS = 32, 8, 8
_ROUNDED = 1e-7


def rows_of(given: Any) -> NDArray[Any] | None:
    """Return samples of numbers, a row each; None: they are something else, or many."""
    if not hasattr(given, "__array__") or not hasattr(given, "shape"):
        return None
    shape = tuple(given.shape)
    if len(shape) < 2 or not 0 < math.prod(shape) <= _MOST_COMPARED:
        return None
    array = np.asarray(given)
    return array.reshape(len(array), -1) if array.dtype.kind in "biuf" else None


def is_same(one: NDArray[Any], other: NDArray[Any] | None) -> bool:
    """Return whether two sets of rows are equal."""
    return other is not None and one.shape == other.shape and bool((one == other).all())


def shared_rows(one: NDArray[Any], other: NDArray[Any]) -> tuple[int, int]:
    """Return how many rows of the other are among the one, and the reverse.

    Codes repeat by nature: most rows must have different elements.
    """
    if one.dtype != other.dtype or one.shape[1] != other.shape[1]:
        return 0, 0
    some = other[:: max(1, len(other) // 64)]
    if np.mean([len(set(each.tolist())) >= _OF_NUMBERS for each in some]) < _NEARLY_ALL:
        return 0, 0
    known, asked = ([each.tobytes() for each in rows] for rows in (one, other))
    trained, evaluated = set(known), set(asked)
    return sum(each in trained for each in asked), sum(
        each in evaluated for each in known
    )


def classes_of(given: Any) -> Rows | None:
    """Return labels as classes; None: they are none, or nobody knows."""
    if not hasattr(given, "__array__") or not hasattr(given, "shape"):
        return None
    if math.prod(given.shape) > _MOST_LABELS:
        return None
    labels = np.asarray(given)
    if labels.dtype.kind not in "biuf" or not labels.size:
        return None
    if labels.ndim == 2 and labels.shape[1] > 1:
        if not np.isin(labels, (0, 1)).all() or (labels.sum(1) != 1).any():
            return None
        return np.asarray(labels.argmax(1))
    if labels.ndim > 2 or (labels.ndim == 2 and labels.shape[1] != 1):
        return None
    labels = labels.ravel()
    is_whole = np.isfinite(labels).all() and (labels == np.floor(labels)).all()
    return labels.astype(np.int64) if is_whole else None


def own_scale_of(trained: Rows, evaluated: Rows) -> str:
    """Return how each of two sets was scaled by itself; empty: it was not.

    Returns:
        ``mean``: to mean 0 and deviation 1; ``range``: to the range from 0 to 1.
    """
    if min(len(trained), len(evaluated)) < _LEAST_ROWS:
        return ""
    one, other = (np.asarray(each, np.float64) for each in (trained, evaluated))
    is_varied = (one != one[0]).any(0) & (other != other[0]).any(0)
    one, other = one[:, is_varied], other[:, is_varied]
    if not is_varied.any() or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return ""
    if _is_standard(one) and _is_standard(other):
        # By chance, the part of a standardized set would be as exact in each column.
        chance = math.log(min(1.0, 2 * _ZERO * math.sqrt(len(other))))
        return "mean" if 2 * chance * one.shape[1] < _UNLIKELY else ""
    return "range" if _fills_range(one) and _fills_range(other) else ""


def _is_standard(columns: Rows) -> bool:
    n = len(columns)
    # Some divide the squares by one less than there are rows.
    deviations = columns.std(0)[:, np.newaxis] * [1.0, math.sqrt(n / (n - 1))]
    is_one = (np.abs(deviations - 1) < _ZERO).all(0).any()
    return bool(is_one and (np.abs(columns.mean(0)) < _ZERO).all())


def _fills_range(columns: Rows) -> bool:
    """Return whether columns of continuous numbers reach from 0 to 1, all of them."""
    is_at_end = (np.abs(columns) < _EXACT), (np.abs(columns - 1) < _EXACT)
    if not all(each.any(0).all() for each in is_at_end):
        return False
    ordered = np.sort(columns, axis=0)
    n_values = 1 + (ordered[1:] != ordered[:-1]).sum(0)
    is_continuous = n_values > len(columns) // 2
    is_continuous &= (is_at_end[0].sum(0) == 1) & (is_at_end[1].sum(0) == 1)
    return int(is_continuous.sum()) >= _LEAST_COLUMNS


def factor_between(trained: Rows, evaluated: Rows) -> float | None:
    """Return how many times as large all columns are in evaluation, if much so."""
    if min(len(trained), len(evaluated)) < _LEAST_ROWS:
        return None
    one, other = (np.asarray(each, np.float64) for each in (trained, evaluated))
    if one.shape[1] != other.shape[1]:
        return None
    before, now = one.std(0), other.std(0)
    # Rare values of sparse columns say little.
    is_common = ((one != one[0]).mean(0) > _COMMON) & (before > 0)
    if not is_common.any():
        return None
    ratios = now[is_common] / before[is_common]
    factor = float(np.median(ratios))
    if not np.isfinite(factor) or factor <= 0 or 1 / _SCALED < factor < _SCALED:
        return None
    apart = np.abs(np.log(np.maximum(ratios, 1e-30) / factor))
    is_one = np.median(apart) < _ALIKE and np.mean(apart < 1) >= _NEARLY_ALL
    means = one.mean(0)[is_common], other.mean(0)[is_common] / factor
    shift = np.abs(means[1] - means[0]) / before[is_common]
    return factor if is_one and np.mean(shift < 0.5) >= _NEARLY_ALL else None


def label_column(rows: Rows, labels: Rows) -> tuple[int, bool] | None:
    """Return a column that has the labels, and whether it equals them; None: none has.

    A column may be the labels but for a factor and an offset.
    """
    labels = np.asarray(labels)
    if labels.size != len(rows) or len(rows) < _LEAST_LABELS or rows.shape[1] < 2:
        return None
    y, x = labels.reshape(-1).astype(np.float64), np.asarray(rows, np.float64)
    values, counts = np.unique(y, return_counts=True)
    is_varied = len(values) > 1 and int(counts.min()) >= _LEAST_OF_CLASS
    if not (is_varied or len(values) >= _LEAST_NUMBERS) or not np.isfinite(y).all():
        return None
    found = np.flatnonzero((x == y[:, np.newaxis]).all(0))
    is_equal = bool(len(found))
    if not is_equal:
        x, y = x - x.mean(0), y - y.mean()
        sizes = np.sqrt((x * x).sum(0) * (y * y).sum())
        likeness = np.abs((x * y[:, np.newaxis]).sum(0)) / np.maximum(sizes, 1e-300)
        found = np.flatnonzero(likeness > 1 - _ROUNDED)
    if not len(found) or 2 * len(found) > rows.shape[1]:
        return None
    return int(found[0]), is_equal


def overlap_of(trained: Rows, evaluated: Rows) -> Overlap | None:
    """Return how many windows of evaluation lie between windows of training.

    Args:
        trained: Windows, with time in their second dimension.
        evaluated: Others, of the same form.
    """
    n, n_steps = evaluated.shape[:2]
    if trained.shape[1:] != evaluated.shape[1:] or n < _LEAST_WINDOWS:
        return None
    if not _LEAST_STEPS <= n_steps <= _MOST_STEPS or trained.dtype != evaluated.dtype:
        return None
    # Parts of windows, at all shifts.
    most = n_steps - n_steps // 2
    width = max(1, math.prod(evaluated.shape[1:]))
    evaluated = evaluated[: max(_LEAST_WINDOWS, _MOST_OF_PARTS // (width * most))]
    if are_in(hashes_of(evaluated), np.sort(hashes_of(trained))).mean() > _OWN:
        return None
    return overlap_between(trained, evaluated, _UNLIKELY)
