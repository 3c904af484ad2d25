"""Medians with 95 % intervals, and whether a ratio is resolved.

The interval of a median is taken from order statistics: the k-th smallest and the
k-th largest of n values enclose the median of what they were drawn from with a
probability that the binomial distribution gives, whatever their distribution.  No
resampling, no seed; fewer than six values have no such interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["TOLERANCE", "Ratio", "median_interval"]

#: A ratio is resolved if plain against plain lies within one plus or minus this.
TOLERANCE = 0.005

_OUTSIDE = 0.025  # On either side of a 95 % interval.


@dataclass(frozen=True)
class Ratio:
    """A median of ratios: with ``low`` and ``high``, or NaN for fewer than six."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratio:
        """The median of *values* and its 95 % interval."""
        low, high = median_interval(values)
        return cls(statistics.median(values), low, high, len(values))

    def within(self, tolerance: float) -> bool:
        """Whether the whole interval lies within one plus or minus *tolerance*."""
        return abs(self.low - 1) <= tolerance and abs(self.high - 1) <= tolerance

    def __str__(self) -> str:
        digits = 3 if self.median < 10 else 1
        if math.isnan(self.low):
            return f"{self.median:.{digits}f} ({self.n} only)"
        return (
            f"{self.median:.{digits}f} [{self.low:.{digits}f}-{self.high:.{digits}f}]"
        )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median; NaN twice for fewer than six values.

    Raises:
        ValueError: If there are no values.
    """
    if not values:
        msg = "no values, no median"
        raise ValueError(msg)
    n = len(values)
    # The largest k for which fewer than k of n fair coins are heads with a
    # probability of at most 2.5 %.
    k, tail = 0, 0.5**n if n < 1000 else 0.0
    if n >= 1000:  # 0.5**n underflows: the normal approximation is exact enough.
        k = math.floor(n / 2 - 1.96 * math.sqrt(n) / 2)
    else:
        while tail <= _OUTSIDE:
            k += 1
            tail += math.comb(n, k) * 0.5**n
    if k == 0:
        return math.nan, math.nan
    ordered = sorted(values)
    return ordered[k - 1], ordered[n - k]
