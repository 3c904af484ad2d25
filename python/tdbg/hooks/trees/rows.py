"""What rows of a training of trees show: a label among the features, rows twice.

Each check compares numbers for equality; doubtful cases stay open.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.run.tree_facts import TreeFact, TreeFault

__all__ = [
    "LEAST_ROWS",
    "MOST_ELEMENTS",
    "fault_of_classes",
    "fault_of_features",
    "fault_of_label_range",
    "fault_of_range",
    "fault_of_rows",
]

Floats = NDArray[np.float64]

#: Elements of the data that are read: a tenth of a second.
MOST_ELEMENTS = 1 << 22
# Samples in all, and with another label than the most frequent one, so that no other
# feature is equal to the label.
LEAST_ROWS, _LEAST_OTHERS = 50, 10
# Rounding to float32, as a share of a column's range.
_ROUNDING = 1e-5
# Different numbers in a row, and those that are not whole, which no other row has.
_VARIED, _FRACTIONS = 6, 3
# The share of rows of validation that are a fault: that are trained on, and of
# classes that are not.
_OVERLAP, _UNTRAINED = 0.1, 0.1
# Samples that show a range, and the share of a column, of the columns and of the labels
# that lies beyond.
_LEAST_IN_RANGE, _OUT, _MANY_COLUMNS, _LEAST_COLUMNS = 20, 0.9, 0.3, 4
_LABELS_OUT = 0.5
# Classes are as many as this at most.
_MOST_CLASSES = 1000


def fault_of_features(
    rows: NDArray[np.generic], labels: Floats, names: Sequence[str]
) -> TreeFact | None:
    """Return that a feature is the label, perhaps times a factor and plus a constant.

    Args:
        rows: The samples; one without a value is NaN.
        labels: The label of each.
        names: Of the features.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> labels = generator.integers(0, 2, 100).astype(float)
        >>> rows = np.c_[generator.normal(size=100), 1 - labels]
        >>> fault_of_features(rows, labels, ["age", "alive"]).name
        'alive'
        >>> fault_of_features(rows[:, :1], labels, ["age"])
    """
    if labels.ndim != 1 or len(labels) < LEAST_ROWS or not np.isfinite(labels).all():
        return None
    if rows.ndim != 2 or len(rows) != len(labels):
        return None
    values, counts = np.unique(labels, return_counts=True)
    if len(labels) - counts.max() < _LEAST_OTHERS:
        return None
    low, high = int(labels.argmin()), int(labels.argmax())
    share = (labels - values[0]) / (values[-1] - values[0])
    for i, name in zip(range(rows.shape[1]), names, strict=False):
        column = np.asarray(rows[:, i], np.float64)
        reach = column[high] - column[low]
        if not reach or not np.isfinite(reach):
            continue
        size = max(abs(reach), abs(column[low]) * 1e-2)
        gap = np.abs(column - (column[low] + share * reach)).max()
        if gap <= _ROUNDING * size:
            is_same = bool(np.allclose(column, labels, rtol=1e-6, atol=0))
            numbers = (float(len(labels)), float(len(values)), float(is_same))
            return TreeFact(TreeFault.LABEL_IS_FEATURE, str(name), numbers)
    return None


def fault_of_rows(
    rows: NDArray[np.generic], others: NDArray[np.generic], name: str
) -> TreeFact | None:
    """Return that rows of validation are trained on, among others that are not.

    Args:
        rows: The samples of training.
        others: Those of validation.
        name: Of the data set of validation.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> rows = generator.normal(size=(100, 8))
        >>> new = generator.normal(size=(40, 8))
        >>> fault_of_rows(rows, np.r_[new, rows[:20]], "valid").numbers
        (20.0, 60.0)
        >>> fault_of_rows(rows, new, "valid")
    """
    if rows.ndim != 2 or others.ndim != 2 or rows.shape[1:] != others.shape[1:]:
        return None
    kind = np.result_type(rows, others)
    known = np.unique(_hashes(rows.astype(kind, copy=False)))
    given = others.astype(kind, copy=False)[_are_telling(others)]
    hashes = np.unique(_hashes(given))
    n = int(np.isin(hashes, known).sum())
    if len(hashes) < LEAST_ROWS or not _OVERLAP * len(hashes) <= n < len(hashes):
        return None
    numbers = (float(n), float(len(hashes)))
    return TreeFact(TreeFault.ROWS_OVERLAP, name, numbers)


def fault_of_range(
    rows: NDArray[np.generic], others: NDArray[np.generic], name: str
) -> TreeFact | None:
    """Return that most features of validation lie beyond all that are trained on.

    Trees cannot divide there: a whole column ends in one leaf.

    Args:
        rows: The samples of training; one without a value is NaN.
        others: Those of validation.
        name: Of the data set of validation.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> rows, others = generator.normal(size=(2, 100, 4))
        >>> fault_of_range(rows, 50 * (others + 10), "valid").numbers
        (4.0, 4.0)
        >>> fault_of_range(rows, others, "valid")
    """
    if rows.ndim != 2 or others.ndim != 2 or rows.shape[1:] != others.shape[1:]:
        return None
    if min(len(rows), len(others)) < _LEAST_IN_RANGE:
        return None
    n_out = n_varied = 0
    for one, other in zip(rows.T, others.T, strict=True):
        known, given = (x[np.isfinite(x)] for x in (one, other))
        if min(len(known), len(given)) < _LEAST_IN_RANGE or known.min() == known.max():
            continue
        n_varied += 1
        outside = (given < known.min()) | (given > known.max())
        n_out += bool(outside.mean() >= _OUT)
    if n_out < max(_LEAST_COLUMNS, _MANY_COLUMNS * n_varied):
        return None
    numbers = (float(n_out), float(n_varied))
    return TreeFact(TreeFault.ROWS_OUT_OF_RANGE, name, numbers)


def fault_of_label_range(labels: Floats, others: Floats, name: str) -> TreeFact | None:
    """Return that labels of validation lie beyond those that are trained on.

    Args:
        labels: Those of training, which are numbers and no classes.
        others: Those of validation.
        name: Of the data set of validation.

    Example:
        >>> labels = np.linspace(100, 900, 50)
        >>> fault_of_label_range(np.log1p(labels), labels, "valid").numbers[:2]
        (50.0, 50.0)
        >>> fault_of_label_range(labels[::2], labels[1::2], "valid")
    """
    if min(len(labels), len(others)) < _LEAST_IN_RANGE:
        return None
    if not (np.isfinite(labels).all() and np.isfinite(others).all()):
        return None
    low, high = float(labels.min()), float(labels.max())
    n_out = int(((others < low) | (others > high)).sum())
    # Another scale, and no series that goes on to grow.
    middle = float(np.median(others))
    is_far = max(low - middle, middle - high) > high - low > 0
    if not is_far or n_out < _LABELS_OUT * len(others):
        return None
    limits = (low, high, float(others.min()), float(others.max()))
    numbers = (float(n_out), float(len(others)), *limits)
    return TreeFact(TreeFault.LABELS_OUT_OF_RANGE, name, numbers)


def fault_of_classes(labels: Floats, others: Floats, name: str) -> TreeFact | None:
    """Return that validation has classes of which training has no sample.

    Args:
        labels: Those of training, which are classes.
        others: Those of validation.
        name: Of the data set of validation.

    Example:
        >>> labels = np.arange(100) // 10
        >>> fault_of_classes(labels[:80], labels[80:], "valid").numbers
        (20.0, 20.0, 2.0)
        >>> fault_of_classes(labels[::2], labels[1::2], "valid")
    """
    classes = np.unique(labels)
    unknown = ~np.isin(others, classes)
    n = int(unknown.sum())
    if len(classes) > _MOST_CLASSES or n < max(1.0, _UNTRAINED * len(others)):
        return None
    first = np.unique(others[unknown])
    numbers = (float(n), float(len(others)), float(len(first)))
    return TreeFact(TreeFault.CLASS_NOT_TRAINED, f"{first[0]:g}", numbers, (name,))


def _are_telling(rows: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return which rows no other sample is likely to be equal to by chance."""
    values = np.sort(np.nan_to_num(np.asarray(rows, np.float64)), axis=1)
    is_new = np.diff(values, axis=1, prepend=np.nan) != 0
    is_fraction = is_new & (values != np.floor(values))
    telling: NDArray[np.bool_] = is_new.sum(1) >= _VARIED
    telling &= is_fraction.sum(1) >= _FRACTIONS
    return telling


def _hashes(rows: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Return a number for each row, equal for equal rows."""
    bits = np.ascontiguousarray(rows).view(f"u{rows.dtype.itemsize}")
    factors = np.random.default_rng(0).integers(
        1, 2**63, bits.shape[1], dtype=np.uint64, endpoint=False
    )
    mixed = bits.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    hashes: NDArray[np.uint64] = mixed * (2 * factors + np.uint64(1))
    return np.asarray(hashes.sum(1), np.uint64)
