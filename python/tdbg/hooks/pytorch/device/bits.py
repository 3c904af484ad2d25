"""Sums of the bits and of the values of tensors, on their own devices.

``tdbg.capture.replica_prints`` says what they are for.  Nothing waits for a device, and
a few operations serve many tensors.

Thread safety: pure functions.  Errors: none for the tensors that ``has_bits`` accepts.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["first_sum", "has_bits", "sums_of"]

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_DEVICES = frozenset({"cpu", "cuda"})
# Elements that caches hold, and that a device sums at once.
_ROW, _PACK = 1 << 16, 1 << 23
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


def sums_of(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums of tensors that lie on one device, as tensors there.

    The sums of no tensors are on the CPU.

    Returns:
        Of each tensor the three sums of its bits, as int64; and the sum of its squares
        and that with signs by place, as float64, which are zero for integers.
    """
    if not tensors:
        return torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 2).double()
    flat = [_flat(each) for each in tensors]
    if flat[0].device.type == "cpu":
        bits = torch.stack([_sums_by_numpy(_words(each).numpy()) for each in flat])
        return bits, torch.stack([_sums_of_values(each) for each in flat])
    return _sums_of_packs(flat)


def _sums_of_packs(
    flat: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    bits = torch.zeros(len(flat), 3, dtype=torch.int64, device=flat[0].device)
    values = bits[:, :2].to(torch.float64)
    for pack in _packs(flat):
        found, sizes = _sums_of_pack(flat, pack)
        owners = torch.tensor([piece.owner for piece in pack])
        owners = owners.to(bits.device, non_blocking=True)
        bits.index_add_(0, owners, found)
        values.index_add_(0, owners, sizes)
    return bits, values


def first_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first sum of the bits of a tensor, as int64 on its device."""
    return _words(_flat(tensor)).sum(dtype=torch.int64)


class _Piece(NamedTuple):
    """A part of a tensor, by its number."""

    owner: int
    start: int
    end: int


def _packs(flat: Sequence[torch.Tensor]) -> Iterator[list[_Piece]]:
    """Yield pieces of tensors that fit together in memory, in order."""
    pack, left = list[_Piece](), _PACK
    for owner, each in enumerate(flat):
        start = 0
        while start < each.numel():
            end = min(each.numel(), start + left)
            pack.append(_Piece(owner, start, end))
            left -= end - start
            start = end
            if not left:
                yield pack
                pack, left = [], _PACK
    if pack:
        yield pack


def _sums_of_pack(
    flat: Sequence[torch.Tensor], pack: Sequence[_Piece]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums of pieces, which one pass over all of them computes.

    Sums of 64 bits wrap around, so differences of sums of all that comes before are
    exact.
    """
    parts = [flat[piece.owner][piece.start : piece.end] for piece in pack]
    words = torch.cat([_words(each) for each in parts]).to(torch.int64)
    device = words.device
    lengths = [len(each) for each in parts]
    ends = torch.tensor(list(itertools.accumulate(lengths)))
    # The place in the pack at which the tensor of a piece would begin.
    begins = [
        int(end) - piece.end for end, piece in zip(ends.tolist(), pack, strict=True)
    ]
    begin = torch.tensor(begins).to(device, non_blocking=True)
    last = (ends - 1).to(device, non_blocking=True)
    places = torch.arange(len(words), device=device)
    plain = _of_pieces(words, last)
    words *= places
    placed = _of_pieces(words, last)
    words *= places
    squared = _of_pieces(words, last)
    squared += begin * (begin * plain - 2 * placed)
    placed -= begin * plain
    bits = torch.stack([plain, placed, squared], 1)
    values = torch.cat([_numbers(each) for each in parts]).float()
    signed = values * ((places * 2654435761 >> 15 & 1) * 2 - 1)
    values *= values
    sizes = [_of_pieces(each.double(), last) for each in (values, signed)]
    return bits, torch.stack(sizes, 1)


def _of_pieces(numbers: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Return the sums of pieces, given the place of the last number of each."""
    sums = numbers.cumsum(0)[last]
    return torch.cat([sums[:1], sums[1:] - sums[:-1]])


def _sums_of_values(flat: torch.Tensor) -> torch.Tensor:
    total = np.zeros(2)
    if flat.is_floating_point():
        for start in range(0, len(flat), _ROW):
            values = flat[start : start + _ROW].double().numpy()
            total[0] += np.einsum("i,i", values, values)
            total[1] += np.einsum("i,i", values, _signs()[: len(values)])
    return torch.from_numpy(total)


def _numbers(flat: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor; zeros for those that are no real numbers."""
    is_real = flat.is_floating_point()
    return flat if is_real else torch.zeros(len(flat), device=flat.device)


def _words(flat: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor as integers of the same bits."""
    return flat.view(_INTEGERS[flat.element_size()])


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


@functools.cache
def _signs() -> NDArray[np.float64]:
    """Return signs that look like random ones; no generator is used."""
    mixed = np.arange(_ROW) * 2654435761
    return np.where(mixed >> 15 & 1, 1.0, -1.0)
