"""A series of numbers as one short line of text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

__all__ = ["sparkline"]

BARS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "!"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Draw *values* as at most *width* bars.

    The lowest finite value has the lowest bar and the highest the highest; a series
    without change is drawn in the middle.  A longer series is cut into *width*
    parts of which each shows its mean; a part that holds NaN or infinity shows
    ``!``.

    >>> sparkline([1, 2, 3, 4])
    '▁▃▆█'
    """
    cells = [_mean(part) for part in _parts(values, width)]
    finite = [cell for cell in cells if math.isfinite(cell)]
    if not finite:
        return NOT_FINITE * len(cells)
    low, high = min(finite), max(finite)
    return "".join(_bar(cell, low, high) for cell in cells)


def _parts(values: Sequence[float], width: int) -> list[Sequence[float]]:
    n = len(values)
    n_parts = min(n, width)
    edges = [part * n // n_parts for part in range(n_parts + 1)] if n else [0]
    return [values[a:b] for a, b in itertools.pairwise(edges)]


def _mean(values: Sequence[float]) -> float:
    # Halved first: the sum of two values near the largest float is not finite.
    return math.fsum(value / len(values) for value in values)


def _bar(cell: float, low: float, high: float) -> str:
    if not math.isfinite(cell):
        return NOT_FINITE
    if high == low:
        return BARS[len(BARS) // 2]
    share = (cell / 2 - low / 2) / (high / 2 - low / 2)
    return BARS[min(round(share * (len(BARS) - 1)), len(BARS) - 1)]
