"""How the dimensions of two tensors correspond where their shapes differ.

Thread safety: values and pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MERGED",
    "SAME_SHAPE",
    "DimensionOrder",
    "layout_between",
    "permutations_between",
]

# The number of orders of dimensions grows with its factorial.
MOST_DIMENSIONS = 5
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DimensionOrder:
    """How the second run's value is brought into the shape of the first's.

    Attributes:
        axes: The order of the second's dimensions, as of ``numpy.transpose``; None:
            its own.
        is_merged: Whether one of them has leading dimensions as one, as an engine has
            that joins the tokens of all samples.
    """

    axes: tuple[int, ...] | None = None
    is_merged: bool = False

    @property
    def is_transposed(self) -> bool:
        """Whether dimensions stand in another order."""
        return self.axes is not None

    def applied(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        """Return the second run's value in the first's *shape*."""
        if self.axes is not None:
            return value.transpose(self.axes)
        return value.reshape(shape) if self.is_merged else value


SAME_SHAPE, MERGED = DimensionOrder(), DimensionOrder(is_merged=True)


def layout_between(one: Shape, other: Shape) -> DimensionOrder | None:
    """Return how two shapes correspond; None if they do not.

    Example:
        >>> layout_between((8, 4), (4, 8))
        DimensionOrder(axes=(1, 0), is_merged=False)
        >>> layout_between((4, 16, 32), (64, 32))
        DimensionOrder(axes=None, is_merged=True)
    """
    if one == other:
        return SAME_SHAPE
    for axes in permutations_between(one, other):
        return DimensionOrder(axes)
    return MERGED if _is_merged(one, other) else None


def permutations_between(one: Shape, other: Shape) -> Iterator[tuple[int, ...]]:
    """Yield the orders of *other*'s dimensions, but its own, that give *one*.

    The reverse comes first: it is what a transposed matrix is.
    """
    n = len(one)
    if n != len(other) or not 2 <= n <= MOST_DIMENSIONS:
        return
    reverse = tuple(range(n))[::-1]
    for axes in sorted(permutations(range(n)), key=lambda axes: axes != reverse):
        if axes != tuple(range(n)) and tuple(other[i] for i in axes) == one:
            yield axes


def _is_merged(one: Shape, other: Shape) -> bool:
    """Whether one has its leading dimensions as one, and the last ones are the same.

    A column beside a vector is no such pair: they broadcast, which is an error.
    """
    short, long = sorted((one, other), key=len)
    if len(short) < 2 or len(short) == len(long):
        return False
    n_kept = len(short) - 1
    leading = int(np.prod(long[: len(long) - n_kept], dtype=np.int64))
    return short[0] == leading and short[1:] == long[len(long) - n_kept :]
