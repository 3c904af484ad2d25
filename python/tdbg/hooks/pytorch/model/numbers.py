"""Find the numbers that a program keeps under a name: rewards, ends, advantages.

They are looked up where a backward pass begins: in the variables of the functions, in
the attributes of the objects there, and in batches that are tuples with names or
dictionaries.

Thread safety: reads only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tdbg.hooks.pytorch.device.tensors import TYPES
from tdbg.hooks.pytorch.model.variables import namespaces

__all__ = ["as_numbers", "named"]

# Numbers under one name, and names that are looked at, at most.
_MOST_NUMBERS, _MOST_NAMES = 65536, 4000


def named(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield names and what they stand for, those of the innermost function first.

    Args:
        frame: Where to look, and outwards from there.
    """
    n_met = 0
    for names in namespaces(frame):
        for name, value in names.items():
            n_met += 1
            if n_met > _MOST_NAMES:
                return
            yield name, value
            yield from _members(value)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of a batch."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=False)
    elif type(value) is dict and len(value) <= 64:
        for name, each in value.items():
            if type(name) is str:
                yield name, each


def as_numbers(value: Any) -> NDArray[np.float64] | None:
    """Return tensors, arrays and lists of numbers as an array.

    None: it has no numbers, too many, or those of several ranks.
    """
    array: NDArray[np.float64] | None = None
    if isinstance(value, torch.Tensor):
        is_plain = type(value) in TYPES and value.layout is torch.strided
        is_plain &= not value.is_complex()
        if is_plain and 0 < value.numel() <= _MOST_NUMBERS:
            array = value.detach().double().cpu().numpy()
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "biuf" and 0 < value.size <= _MOST_NUMBERS:
            array = value.astype(np.float64)
    elif isinstance(value, list | tuple | deque) and _are_numbers(value):
        array = np.array([_plain(each) for each in value])
    return array


def _are_numbers(values: list[Any] | tuple[Any, ...] | deque[Any]) -> bool:
    if not 0 < len(values) <= _MOST_NUMBERS or not _is_number(values[0]):
        return False
    return all(map(_is_number, values))


def _plain(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor | np.ndarray):
        return _size_of(value) == 1
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _size_of(value: Any) -> int:
    """Return how many numbers a tensor or an array has."""
    return int(value.numel() if isinstance(value, torch.Tensor) else value.size)
