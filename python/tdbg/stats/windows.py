"""Windows of a series: which of them lie between others, by hashes of their parts.

Thread safety: pure functions.  Errors: none.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LEAST_VALUES",
    "Overlap",
    "are_in",
    "hashes_of",
    "is_varied",
    "overlap_between",
]

LEAST_VALUES = 6
"""Values that a part has, so that no two are equal by chance."""

# The share of windows that are overlapped on both sides.
_BETWEEN = 0.5


class Overlap(NamedTuple):
    """Windows of evaluation that lie between windows of training.

    Attributes:
        n: Windows of evaluation.
        n_between: Those that share values with windows on both sides.
        n_steps: Time steps of a window.
        n_shared: Time steps that most of these share with the nearest one.
    """

    n: int
    n_between: int
    n_steps: int
    n_shared: int


def overlap_between(
    trained: NDArray[Any], evaluated: NDArray[Any], certain: float, least: float = 0.0
) -> Overlap | None:
    """Return what overlaps, of windows with time in their second dimension.

    Args:
        trained: Windows of training.
        evaluated: Windows of evaluation that were not trained on themselves.
        certain: The logarithm of how likely chance may be: that a window would never
            be drawn in training, while its neighbours are.
        least: How many of their neighbours must have been drawn, as a share.
    """
    n, n_steps = evaluated.shape[:2]
    size = max(LEAST_VALUES, n_steps // 2)
    most = n_steps - size
    first, last = (
        np.sort(hashes_of(part)) for part in (trained[:, :size], trained[:, most:])
    )
    parts = [evaluated[:, i : i + size] for i in range(most + 1)]
    known = [(hashes_of(each), is_varied(each)) for each in parts]
    later = np.stack([are_in(each, first) & varied for each, varied in known[1:]])
    earlier = np.stack([are_in(each, last) & varied for each, varied in known[-2::-1]])
    between = later.any(0) & earlier.any(0)
    # How often a neighbour at the most frequent distance was drawn.
    drawn = np.minimum(later.mean(1), earlier.mean(1))
    share = min(float(drawn.max()), 0.99)
    is_chance = n * math.log1p(-share) > certain
    if is_chance or share < least or between.mean() < _BETWEEN:
        return None
    nearest = 1 + int((drawn > share / 2).argmax())
    return Overlap(n, int(between.sum()), n_steps, n_steps - nearest)


def hashes_of(rows: NDArray[Any]) -> NDArray[np.int64]:
    """Return a number for each row that tells it from others.

    Example:
        >>> one, other, third = hashes_of(np.float32([[1, 2], [1, 3], [1, 2]]))
        >>> bool(one == third), bool(one == other)
        (True, False)
    """
    flat = np.ascontiguousarray(rows.reshape(len(rows), -1))
    if flat.dtype.kind == "f":
        wide = flat.astype(np.float32 if flat.dtype.itemsize < 4 else flat.dtype)
        # Zero has a sign.
        bits = (wide + 0.0).view(np.int64 if wide.dtype.itemsize == 8 else np.int32)
    else:
        bits = flat
    luck = np.random.default_rng(flat.shape[1])
    factors = luck.integers(-(1 << 62), 1 << 62, flat.shape[1]) | 1
    found: NDArray[np.int64] = (bits.astype(np.int64) * factors).sum(1)
    return found


def are_in(hashes: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which hashes are among others in order, at least one.

    Without ``numpy.isin``, whose first call imports masked arrays.
    """
    places = np.searchsorted(ordered, hashes)
    found: NDArray[np.bool_] = ordered[places % len(ordered)] == hashes
    return found


def is_varied(parts: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which parts of windows have many values in one of their features."""
    ordered = np.sort(parts, axis=1)
    n_values = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1)
    found: NDArray[np.bool_] = n_values.reshape(len(parts), -1).max(1) >= LEAST_VALUES
    return found
