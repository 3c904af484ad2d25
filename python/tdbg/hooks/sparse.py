"""Statistics of sparse tensors: of what is given, and of the zeros that are not.

The gradient of an embedding's table is given as rows with their numbers
(TensorFlow's IndexedSlices).  A row that stands there several times is added up
first; rows that do not stand there are zeros.

The gradients of several replicas are added up here, too, sparse or not.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.capture.adapter import ComputedRow, TensorRef, array_ref
from tdbg.stats.row_fields import FIELDS

__all__ = ["add_zeros", "added", "dense_of_slices", "row_of_slices", "units_of_slices"]

# Places of the fields in a row of words.
_COUNT, _ZERO, _MIN, _MAX, _ABS_MIN, _MEAN, _M2 = map(
    FIELDS.index, ("count", "zero", "min", "max", "abs_min", "mean", "m2")
)


def row_of_slices(
    indices: NDArray[Any], values: NDArray[Any], n_rows: int, scale: float
) -> ComputedRow | None:
    """The row of the whole table.

    Args:
        indices: Which rows are given, each perhaps several times.
        values: These rows.
        n_rows: How many rows the table has.
        scale: Multiplies the elements.
    """
    _, summed = _summed(indices, values)
    try:
        row = import_module("tdbg._core").reduce(summed, scale)
    except TypeError:
        return None  # Without statistics of this element type.
    words = np.frombuffer(row.tobytes(), np.uint64)[-len(FIELDS) :].copy()
    shape = (n_rows, *values.shape[1:])
    add_zeros(words, math.prod(shape) - summed.size)
    return ComputedRow(values.dtype.name, shape, words)


def units_of_slices(
    indices: NDArray[Any], values: NDArray[Any], n_rows: int
) -> NDArray[Any]:
    """The counts of the rows of the table, as units: what is not zero, none, all."""
    rows, summed = _summed(indices, values)
    table = np.zeros((3, n_rows), np.uint64)
    table[0, rows] = (summed != 0).reshape(len(summed), -1).sum(1)
    table[2] = math.prod(values.shape[1:])
    return table


def dense_of_slices(
    indices: NDArray[Any], values: NDArray[Any], n_rows: int
) -> TensorRef | None:
    """The whole table, with the zeros of the rows that are not given."""
    rows, summed = _summed(indices, values)
    table = np.zeros((n_rows, *values.shape[1:]), values.dtype)
    table[rows] = summed
    return array_ref(table)


def _summed(
    indices: NDArray[Any], values: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    rows, where = np.unique(indices, return_inverse=True)
    summed = np.zeros((len(rows), *values.shape[1:]), values.dtype)
    np.add.at(summed, where, values)
    return rows, summed


def add_zeros(words: NDArray[np.uint64], n_zeros: int) -> None:
    """Merge so many zeros into a row of floats, given as its 12 words."""
    if n_zeros == 0:
        return
    numbers = words.view(np.float64)
    n_finite = int(words[_COUNT]) - int(words[1:_ZERO].sum())
    words[_COUNT] += np.uint64(n_zeros)
    words[_ZERO] += np.uint64(n_zeros)
    numbers[_ABS_MIN] = 0.0
    if n_finite == 0:
        numbers[_MIN] = numbers[_MAX] = numbers[_MEAN] = numbers[_M2] = 0.0
        return
    n_all = n_finite + n_zeros
    mean = float(numbers[_MEAN])
    numbers[_MIN] = min(numbers[_MIN], 0.0)
    numbers[_MAX] = max(numbers[_MAX], 0.0)
    # Divided first, so that no product leaves float64 before it must.
    m2 = float(numbers[_M2]) + mean * (n_finite / n_all * n_zeros) * mean
    numbers[_M2] = m2
    numbers[_MEAN] = mean * (n_finite / n_all)


def added(gradients: Sequence[Any]) -> Any:
    """Add up the gradients of one variable, as optimizers of Keras reduce them.

    Args:
        gradients: Arrays of NumPy of one shape; or sparse ones (``IndexedSlices``) of
            such arrays, of which the rows are put one behind the other.

    Example:
        >>> added([np.float32([1, 2]), np.float32([3, 4])]).tolist()
        [4.0, 6.0]
    """
    first = gradients[0]
    if not hasattr(first, "indices"):
        return np.add.reduce(gradients)
    return type(first)(
        np.concatenate([each.values for each in gradients]),
        np.concatenate([each.indices for each in gradients]),
        first.dense_shape,
    )
