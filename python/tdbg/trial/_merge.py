"""Merging statistics rows, many at a time.

The formulas are those of ``Summary::Merge`` in the core (Chan et al. 1983), over
groups of rows instead of pairs, and safe against overflow like them.

Thread safety: pure functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CLASS_DTYPES",
    "COUNTS",
    "FIELDS",
    "FLOAT64",
    "INT64",
    "UINT64",
    "dtype_of",
    "finite_count",
    "group",
    "to_float",
]

COUNTS = ("count", "nan", "positive_infinity", "negative_infinity", "zero")
FIELDS = (*COUNTS, "min", "max", "abs_min", "mean", "m2", "l1", "l2")

# How the bits of a minimum or maximum are to be understood: cpp/tensor/dtype.h.
FLOAT64 = 0
INT64 = 1
UINT64 = 2
CLASS_DTYPES: dict[int, Any] = {FLOAT64: np.float64, INT64: np.int64, UINT64: np.uint64}

Rows = dict[str, NDArray[Any]]


def dtype_of(field: str) -> Any:
    """How a field is held while rows are merged: extremes by their bits."""
    return np.uint64 if field in (*COUNTS, "min", "max") else np.float64


def to_float(
    bits: NDArray[np.uint64], classes: NDArray[np.uint8], finite: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Minima or maxima as float64; left as their bits say where not *finite*."""
    result = np.array(bits, np.uint64).view(np.float64)
    for number in (INT64, UINT64):
        at = classes == number
        if at.any():
            values = bits[at].view(CLASS_DTYPES[number]).astype(np.float64)
            result[at] = np.where(finite[at], values, np.nan)
    return result


def group(
    keys: NDArray[np.int64], rows: Rows, classes: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], Rows, NDArray[np.uint8]]:
    """Merge all rows of the same key; the rows of a key are of one class.

    Returns:
        The keys, ascending and each once, with their rows and classes.
    """
    if len(keys) > 1 and not np.all(keys[1:] > keys[:-1]):
        order = np.argsort(keys, kind="stable")
        keys, classes = keys[order], classes[order]
        rows = {name: values[order] for name, values in rows.items()}
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    if len(keys) == 0 or len(starts) == len(keys):
        return keys, rows, classes
    merged = {name: np.add.reduceat(rows[name], starts) for name in COUNTS}
    merged |= _moments(rows, merged, starts, len(keys))
    for name, ufunc in (("min", np.minimum), ("max", np.maximum)):
        merged[name] = _extremes(rows[name], classes, starts, ufunc)
    merged["abs_min"] = np.minimum.reduceat(rows["abs_min"], starts)
    return keys[starts], merged, classes[starts]


def finite_count(rows: Rows) -> NDArray[np.uint64]:
    """How many elements of each row are finite."""
    others = rows["nan"] + rows["positive_infinity"] + rows["negative_infinity"]
    return np.asarray(rows["count"] - others, np.uint64)


def _moments(rows: Rows, merged: Rows, starts: NDArray[np.intp], n_rows: int) -> Rows:
    which = np.repeat(np.arange(len(starts)), np.diff(starts, append=n_rows))
    n = finite_count(rows).astype(np.float64)
    total = finite_count(merged).astype(np.float64)
    # Weights first: n * mean could overflow where the mean cannot.
    share = n / np.maximum(total, 1.0)[which]
    mean = np.add.reduceat(rows["mean"] * share, starts)
    with np.errstate(over="ignore", invalid="ignore"):
        delta = rows["mean"] - mean[which]
        m2 = np.add.reduceat(rows["m2"] + n * delta * delta, starts)
        l1 = np.add.reduceat(rows["l1"], starts)
        largest = np.maximum.reduceat(rows["l2"], starts)
        scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
        ratio = rows["l2"] / scale[which]
        l2 = scale * np.sqrt(np.add.reduceat(ratio * ratio, starts))
    return {"mean": mean, "m2": m2, "l1": l1, "l2": l2}


def _extremes(
    bits: NDArray[np.uint64],
    classes: NDArray[np.uint8],
    starts: NDArray[np.intp],
    ufunc: np.ufunc,
) -> NDArray[np.uint64]:
    result = np.empty(len(starts), np.uint64)
    of_group = classes[starts]
    for number in np.unique(of_group):
        dtype = CLASS_DTYPES[int(number)]
        chosen = of_group == number
        values = ufunc.reduceat(bits.view(dtype), starts)
        result[chosen] = values[chosen].view(np.uint64)
    return result
