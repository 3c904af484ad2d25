"""Rows of sparse tensors, over all of their elements, without making them dense.

The elements that are there are reduced; each that is not is a zero, which adds to the
counts and pulls the mean, exactly as rows of parts of a tensor merge.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tdbg.capture.tensors import ComputedRow
from tdbg.hooks.pytorch.device_rows import row_words
from tdbg.hooks.pytorch.tensors import name_of

__all__ = ["sparse_row", "sparse_units"]

# Where the fields of a row stand among its words (docs/format.md).
_COUNT, _ZERO, _MIN, _MAX, _ABS_MIN, _MEAN, _M2 = 0, 4, 5, 6, 7, 8, 9


def sparse_row(tensor: Any, scale: float) -> ComputedRow | None:
    """The row of a sparse tensor on the CPU; None for any other.

    Args:
        tensor: In coordinates (COO), of floats; indices that stand there several
            times are added up first.
        scale: Multiplies the elements.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        return None
    name = name_of(tensor.dtype)
    if name is None or not tensor.is_cpu or not tensor.dtype.is_floating_point:
        return None
    try:
        with torch.no_grad():
            values = tensor.detach().coalesce().values()
            words = row_words(values, scale).numpy().view(np.uint64).copy()
    except (RuntimeError, NotImplementedError):
        return None  # Not of this element type.
    _add_zeros(words, math.prod(tensor.shape) - values.numel())
    return ComputedRow(name, tuple(tensor.shape), words)


def sparse_units(tensor: Any) -> NDArray[Any] | None:
    """The counts of the rows of a sparse gradient, as units; None for any other.

    Args:
        tensor: As an embedding's: on the CPU, in coordinates of dimension 0 alone.

    Returns:
        Three rows of uint64 with an entry per row of it: what is not zero, nothing,
        and all of its elements.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        return None
    if not tensor.is_cpu or tensor.sparse_dim() != 1:
        return None
    with torch.no_grad():
        whole = tensor.detach().coalesce()
        values = whole.values()
        counts = (values != 0).reshape(len(values), -1).sum(1)
        table = np.zeros((3, tensor.shape[0]), np.uint64)
        table[0, whole.indices()[0].numpy()] = counts.numpy()
    table[2] = math.prod(tensor.shape[1:])
    return table


def _add_zeros(words: NDArray[np.uint64], n_zeros: int) -> None:
    """Merge so many zeros into the row of floats."""
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
