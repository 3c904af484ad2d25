"""The statistics row of a tensor by PyTorch's own operations, on any device.

tdbg uses this where its kernels cannot run.  The numbers are those of
docs/statistics.md, in float64, but some fifty operations read each tensor several
times.  Nothing here waits for the device: results are tensors beside the input.

Thread safety: pure functions.

Errors: PyTorch's own, a RuntimeError if memory is short or the device lacks an
operation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tdbg.capture.adapter import ComputedRow, UnitSummarySpec
from tdbg.hooks.pytorch.device.tensors import name_of
from tdbg.hooks.sparse import add_zeros
from tdbg.stats import row_fields

__all__ = ["CHUNK", "FIELDS", "row_words", "sparse_row", "sparse_units", "unit_table"]


# Elements that are taken to float64 at a time: bounds the memory beside the tensor.
CHUNK = 1 << 21
# The fields of a row, in the order of the core's Summary.
FIELDS = len(row_fields.FIELDS)

_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32}
_MASKS = {torch.uint16: 0xFFFF, torch.uint32: 0xFFFF_FFFF}
_SIGN = -(2**63)
# Beyond these exponents a power of two or its square leaves float64.
_MAX_EXPONENT = 1000


class _Part(NamedTuple):
    """The share of one chunk: integers, and float64 of the finite elements."""

    counts: torch.Tensor  # NaN, +Inf, -Inf, zero.
    extremes: torch.Tensor  # Least and greatest; int64 for integers.
    magnitudes: torch.Tensor  # Least and greatest absolute value.


def row_words(tensor: torch.Tensor, scale: float | torch.Tensor = 1.0) -> torch.Tensor:
    """Compute the row of all elements, each times *scale*, as the bits of its fields.

    Args:
        tensor: A tensor with strides, of an element type that has statistics.
        scale: A factor in float64, or a tensor of one element on the same device
            that divides the elements.  Integers are not scaled.

    Returns:
        ``FIELDS`` words of int64: the five counts as they are, the rest as the
        bits of float64; minimum and maximum of integers as they are.  All zeros
        if the tensor has no elements.
    """
    flat = tensor.detach().reshape(-1)
    if flat.numel() == 0:
        return torch.zeros(FIELDS, dtype=torch.int64, device=flat.device)
    is_float = flat.dtype.is_floating_point
    factor = scale if is_float else 1.0
    chunks = torch.split(flat, CHUNK)
    parts = [
        _part(_to_float64(chunk, factor)) if is_float else _integer_part(chunk)
        for chunk in chunks
    ]
    counts = torch.stack([part.counts for part in parts]).sum(0)
    extremes = torch.stack([part.extremes for part in parts])
    least, greatest = extremes[:, 0].amin(), extremes[:, 1].amax()
    magnitudes = torch.stack([part.magnitudes for part in parts])
    abs_min, abs_max = magnitudes[:, 0].amin(), magnitudes[:, 1].amax()
    n_finite = flat.numel() - counts[:3].sum()
    down, up = _powers(abs_max)
    total, l1, squares = _sum(chunks, factor, down)
    divisor = n_finite.clamp(min=1)
    mean = total / divisor
    deviations, squared = _deviations(chunks, factor, down, mean)
    correction = deviations / divisor
    # Never negative, and zero of a constant: where the terms are nearly the same,
    # the deviations are a few units in the last place, and their sums exact.
    m2 = squared - divisor * correction * correction
    if flat.dtype is torch.uint64:
        least, greatest = least ^ _SIGN, greatest ^ _SIGN
    floats = torch.stack(
        [abs_min, (mean + correction) * up, m2 * up * up, l1 * up, squares.sqrt() * up]
    )
    ends = torch.stack([least, greatest])
    count = torch.full((1,), flat.numel(), dtype=torch.int64, device=flat.device)
    return torch.cat([count, counts, ends.view(torch.int64), floats.view(torch.int64)])


def unit_table(tensor: torch.Tensor, spec: UnitSummarySpec) -> torch.Tensor:
    """Count the elements of each unit.

    Args:
        tensor: A tensor of at least one dimension.
        spec: Says what to count.

    Returns:
        Three rows of int64 with an entry per unit: active, out of range, count.
    """
    units = tensor.detach().movedim(spec.axis(tensor.dim()), 0)
    n_units = units.shape[0]
    flat = units.reshape(n_units, -1) if units.numel() else units.new_empty(n_units, 0)
    n_each = flat.shape[1]
    shape = (3, n_units)
    table = torch.zeros(shape, dtype=torch.int64, device=flat.device)
    table[2] = n_each
    step = max(1, CHUNK // max(1, n_units))
    for begin in range(0, n_each, step):
        values = _to_float64(flat[:, begin : begin + step], 1.0)
        if spec.rows_are_units:
            table[0] += (values != 0).sum(1)
            continue
        inside = (values >= spec.low) & (values <= spec.high)  # NaN is not.
        table[0] += (values > 0).sum(1)
        table[1] += (~inside).sum(1)
    return table


def _to_float64(chunk: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
    """Return the elements in float64, scaled; 64-bit integers are rounded."""
    if chunk.dtype is torch.uint64:
        bits = chunk.view(torch.int64)
        high = ((bits >> 32) & 0xFFFF_FFFF).to(torch.float64)
        return high * 2.0**32 + (bits & 0xFFFF_FFFF).to(torch.float64)
    if chunk.dtype in _UNSIGNED:
        return _widened(chunk).to(torch.float64)
    values = chunk.to(torch.float64)
    if isinstance(factor, torch.Tensor):
        return values / factor.detach().reshape(()).to(torch.float64)
    return values if factor == 1.0 else values * factor


def _widened(chunk: torch.Tensor) -> torch.Tensor:
    """Return integers as int64 in their order; uint64 shifted down by 2^63."""
    if chunk.dtype is torch.uint64:
        return chunk.view(torch.int64) ^ _SIGN
    signed = _UNSIGNED.get(chunk.dtype)
    if signed is None:
        return chunk.to(torch.int64)
    return chunk.view(signed).to(torch.int64) & _MASKS[chunk.dtype]


def _part(values: torch.Tensor) -> _Part:
    finite = values.isfinite()
    positive, negative = values == torch.inf, values == -torch.inf
    counts = [values.isnan(), positive, negative, values == 0]
    kept = torch.where(finite, values, torch.inf)
    least = kept.amin()
    greatest = torch.where(finite, values, -torch.inf).amax()
    magnitude = kept.abs().amin()
    # Zero if no element is finite, so that nothing is scaled.
    most = torch.where(finite, values, 0.0).abs().amax()
    return _Part(
        torch.stack([each.sum() for each in counts]),
        torch.stack([least, greatest]),
        torch.stack([magnitude, most]),
    )


def _integer_part(chunk: torch.Tensor) -> _Part:
    ordered = _widened(chunk)
    values = _to_float64(chunk, 1.0).abs()
    zeros = (values == 0).sum()
    none = torch.zeros_like(zeros)
    return _Part(
        torch.stack([none, none, none, zeros]),
        torch.stack([ordered.amin(), ordered.amax()]),
        torch.stack([values.amin(), values.amax()]),
    )


def _powers(greatest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a power of two that brings *greatest* near one, and its inverse.

    Squares then neither overflow nor underflow.
    """
    exponent = ((greatest.view(torch.int64) >> 52) & 0x7FF) - 1022
    exponent = exponent.clamp(-_MAX_EXPONENT, _MAX_EXPONENT)
    return _power(-exponent), _power(exponent)


def _power(exponent: torch.Tensor) -> torch.Tensor:
    return ((exponent + 1023) << 52).view(torch.float64)


def _scaled(
    chunk: torch.Tensor, factor: float | torch.Tensor, down: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the finite elements near one, zeros for others, and which are finite."""
    values = _to_float64(chunk, factor) * down
    finite = values.isfinite()
    return torch.where(finite, values, 0.0), finite


def _sum(
    chunks: tuple[torch.Tensor, ...], factor: float | torch.Tensor, down: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sums of the finite elements, their magnitudes and their squares."""
    sums = []
    for chunk in chunks:
        values, _ = _scaled(chunk, factor, down)
        magnitude = values.abs()
        sums.append(
            torch.stack([values.sum(), magnitude.sum(), (values * values).sum()])
        )
    total, l1, squares = torch.stack(sums).sum(0)
    return total, l1, squares


def _deviations(
    chunks: tuple[torch.Tensor, ...],
    factor: float | torch.Tensor,
    down: torch.Tensor,
    mean: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums of the deviations from a mean and of their squares."""
    sums = []
    for chunk in chunks:
        values, finite = _scaled(chunk, factor, down)
        deviations = torch.where(finite, values - mean, 0.0)
        sums.append(torch.stack([deviations.sum(), (deviations * deviations).sum()]))
    total, squares = torch.stack(sums).sum(0)
    return total, squares


# Where the fields of a row stand among its words (docs/format.md).


def sparse_row(tensor: Any, scale: float) -> ComputedRow | None:
    """Compute the row of a sparse tensor on the CPU; None for any other.

    Args:
        tensor: A tensor of floats in coordinates (COO).  Elements with equal indices
            are added up first.
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
    add_zeros(words, math.prod(tensor.shape) - values.numel())
    return ComputedRow(name, tuple(tensor.shape), words)


def sparse_units(tensor: Any) -> NDArray[Any] | None:
    """Count the rows of a sparse gradient, as units; None for any other tensor.

    Args:
        tensor: A gradient like that of an embedding, on the CPU, sparse in dimension
            0 alone.

    Returns:
        Three rows of uint64 with an entry for each row of the tensor: the elements
        that are not zero, zero, and the number of elements.
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
