"""Sums of the bits and of the values of tensors, on their own devices.

``tdbg.capture.replica_prints`` says what they are for.  Nothing waits for a device.

Thread safety: pure functions.  Errors: none for the tensors that ``has_bits`` accepts.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["has_bits", "sums_of_bits", "sums_of_values"]

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_DEVICES = frozenset({"cpu", "cuda"})
# Elements of a row, which caches hold, and of the rows that a device sums at once.
_ROW, _AT_ONCE = 1 << 16, 1 << 26
# The sums are numbers of 64 bits.
_MASK = (1 << 64) - 1


def has_bits(tensor: Any) -> bool:
    """Return whether a tensor is a plain one, which this process has as a whole."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and tensor.device.type in _DEVICES
        and not tensor.is_quantized
    )


def sums_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the three sums of the bits of a tensor, as int64 on its device."""
    flat = _flat(tensor)
    words = flat.view(_INTEGERS[flat.element_size()])
    if words.device.type == "cpu":
        return _sums_by_numpy(words.numpy())
    total = torch.zeros(3, dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _AT_ONCE):
        part = words[start : start + _AT_ONCE].to(torch.int64)
        for rows, first in _rows(part, start):
            total += _sums_of_rows(rows, first)
    return total


def sums_of_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares, and the sum with signs by place, as float64."""
    flat = _flat(tensor)
    total = torch.zeros(2, dtype=torch.float64, device=flat.device)
    if not flat.is_floating_point():
        return total
    at_once = _ROW if flat.device.type == "cpu" else _AT_ONCE
    for start in range(0, flat.numel(), at_once):
        part = flat[start : start + at_once].float()
        for rows, _ in _rows(part, start):
            signs = _signs(rows.device)[: rows.shape[1]]
            signed = (rows * signs).sum(dtype=torch.float64)
            total += torch.stack([(rows * rows).sum(dtype=torch.float64), signed])
    return total


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().contiguous().reshape(-1)


def _sums_by_numpy(words: NDArray[Any]) -> torch.Tensor:
    total = [0, 0, 0]
    places, squares = _places_and_squares()
    for first in range(0, words.size, _ROW):
        row = words[first : first + _ROW].astype(np.int64)
        plain, placed = int(row.sum()), int(row @ places[: row.size])
        squared = int(row @ squares[: row.size])
        total[0] += plain
        total[1] += first * plain + placed
        total[2] += first * (first * plain + 2 * placed) + squared
    bits = np.array([each & _MASK for each in total], np.uint64)
    return torch.from_numpy(bits.view(np.int64))


@functools.cache
def _places_and_squares() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    places = np.arange(_ROW, dtype=np.int64)
    return places, places * places


def _rows(flat: torch.Tensor, start: int) -> list[tuple[torch.Tensor, int]]:
    """Return a tensor as rows of equal length and the rest, each with its place."""
    whole = flat.numel() // _ROW * _ROW
    rows = [(flat[:whole].view(-1, _ROW), start)] if whole else []
    if whole < flat.numel():
        rows.append((flat[whole:].view(1, -1), start + whole))
    return rows


def _sums_of_rows(rows: torch.Tensor, first: int) -> torch.Tensor:
    """Return the three sums of rows of integers that begin at a place."""
    places = _places(rows.device)[: rows.shape[1]]
    plain = rows.sum(1)
    placed = rows * places
    by_place = placed.sum(1)
    by_square = (placed * places).sum(1)
    begins = first + _ROW * torch.arange(len(rows), device=rows.device)
    squared = begins * (begins * plain + 2 * by_place) + by_square
    return torch.stack([plain.sum(), (begins * plain + by_place).sum(), squared.sum()])


@functools.cache
def _places(device: torch.device) -> torch.Tensor:
    return torch.arange(_ROW, device=device)


@functools.cache
def _signs(device: torch.device) -> torch.Tensor:
    """Return signs that look like random ones; no generator is used."""
    mixed = _places(device) * 2654435761
    return ((mixed >> 15 & 1) * 2 - 1).float()
