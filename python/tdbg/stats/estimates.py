"""Estimates that a few wild values do not move: spread, slope, trend and growth.

Thread safety: pure functions.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "block_medians",
    "lasting_growth",
    "slow_limit",
    "spread",
    "theil_sen",
    "trend",
]

Floats = NDArray[np.float64]

# The deviation of normal values, in median absolute deviations.
NORMAL = 1.4826
# How sure a trend must be, in deviations of Mann and Kendall's statistic.
SURE = 6.0
# A value is far above the others beyond so many deviations, and so many medians.
DEVIATIONS, MEDIANS = 6.0, 1.5


def spread(values: Floats) -> float:
    """Return the deviation of values by their median absolute deviation.

    Example:
        >>> round(spread(np.array([1.0, 2.0, 3.0, 4.0, 1000.0])), 4)
        1.4826
    """
    return NORMAL * float(np.median(np.abs(values - np.median(values))))


def slow_limit(durations: Floats) -> float:
    """Return the duration beyond which a step takes far longer than the others.

    Example:
        >>> slow_limit(np.array([10.0, 10.0, 10.0, 11.0, 50.0]))
        15.0
    """
    median = float(np.median(durations))
    return max(median + DEVIATIONS * spread(durations), MEDIANS * median)


def theil_sen(x: Floats, y: Floats) -> float:
    """Return the slope of y over x: the median of the slopes between all pairs.

    Example:
        >>> theil_sen(np.arange(5.0), np.array([0.0, 2.0, 4.0, 6.0, 99.0]))
        2.0
    """
    i, j = np.triu_indices(len(x), 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


def trend(values: Floats) -> float:
    """Return the z of Mann and Kendall: how sure it is that values rise (or fall).

    The differences of all pairs count by their sign.  Beyond 2 a trend is likely, if
    the values are independent of each other; measurements rarely are, so ask for more.

    Example:
        >>> trend(np.zeros(10)), round(trend(np.arange(60.0)), 1)
        (0.0, 11.3)
    """
    n = len(values)
    i, j = np.triu_indices(n, 1)
    total = float(np.sign(values[j] - values[i]).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()
    if variance <= 0 or total == 0:
        return 0.0
    return (total - math.copysign(1.0, total)) / math.sqrt(float(variance) / 18.0)


def lasting_growth(x: Floats, y: Floats, least: float) -> float:
    """Return the slope of y over x if y surely grows and does not slow down, else 0.

    A cache that fills grows ever more slowly: the last third must rise at least half as
    fast as the first.

    Args:
        x: Ascending; at least 6 values.
        y: Values at x: medians of blocks, so that noise does not count as growth.
        least: What y must rise by over all of x.
    """
    slope = theil_sen(x, y)
    third = len(x) // 3
    first, last = theil_sen(x[:third], y[:third]), theil_sen(x[-third:], y[-third:])
    is_sure = trend(y) > SURE and slope * (x[-1] - x[0]) > least
    return slope if is_sure and last > 0 and last >= 0.5 * first else 0.0


def block_medians(
    x: Floats, y: Floats, start: float, width: float, n: int
) -> tuple[Floats, Floats]:
    """Return the medians of y in n blocks of x that follow each other.

    Args:
        x: Ascending.
        y: Values at x.
        start: Where the first block begins.
        width: How wide each block is.
        n: How many blocks there are.

    Returns:
        The middles of the blocks that have values, and the medians in them.
    """
    at = np.searchsorted(x, start + width * np.arange(n + 1))
    counts = np.diff(at)
    block = np.repeat(np.arange(n), counts)
    inside = y[at[0] : at[-1]]
    # By block, then by value: the middle of each block is its median.
    ordered = inside[np.lexsort((inside, block))]
    filled = np.flatnonzero(counts)
    first, size = at[filled] - at[0], counts[filled]
    medians = (ordered[first + (size - 1) // 2] + ordered[first + size // 2]) / 2
    return np.asarray(start + width * (filled + 0.5), np.float64), np.asarray(medians)
