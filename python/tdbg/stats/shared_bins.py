"""The same bins for several histograms: what a ridgeline shows of a tensor over steps.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from tdbg.stats.histogram import Histogram

__all__ = ["counts_in", "note_of", "shared_edges"]

Floats = NDArray[np.float64]

MOST_BINS, LEAST_BINS = 96, 16
# Quantiles between which the bins lie: one element far out would put all others into
# one bin.  The outermost bins hold what lies beyond.
TAIL = 0.001


def shared_edges(histograms: Collection[Histogram]) -> Floats:
    """Edges of bins of equal width for all of the histograms.  Shape (bins + 1,).

    They reach from the quantile 0.001 to 0.999 of the finite elements, the outermost of
    any histogram; there are twice as many as the root of the number of elements, from
    16 to 96: more would show noise.
    """
    ranges = [_range(each) for each in histograms if each.finite] or [(-1.0, 1.0)]
    low, high = min(a for a, _ in ranges), max(b for _, b in ranges)
    if low == high:
        reach = abs(low) / 2 or 0.5
        low, high = low - reach, high + reach
    most = max((each.count for each in histograms), default=0)
    n_bins = int(np.clip(2 * np.sqrt(most), LEAST_BINS, MOST_BINS))
    return np.linspace(low, high, n_bins + 1)


def counts_in(histogram: Histogram, edges: Floats) -> Floats:
    """Return counts in bins, the outer ones with all beyond.  Shape (bins,)."""
    if not histogram.finite:
        return np.zeros(len(edges) - 1)
    counts = np.array(histogram.to_numpy(edges)[0], np.float64)
    beyond = histogram.finite - counts.sum()
    above = float(histogram.counts[_is_finite_above(histogram, edges[-1])].sum())
    # What an outer edge divides is less than one bin of the histogram.
    counts[-1] += min(above, beyond)
    counts[0] += max(0.0, beyond - above)
    return counts


def note_of(histogram: Histogram) -> str:
    """Say what bins do not show: NaN, infinities, zeros; or else the count."""
    parts = []
    if histogram.nan:
        parts.append(f"{histogram.nan:,} NaN")
    infinite = histogram.positive_infinity + histogram.negative_infinity
    if infinite:
        parts.append(f"{infinite:,} Inf")
    zero = histogram.zero / histogram.count if histogram.count else 0.0
    if zero >= 0.005:
        parts.append(f"{zero:.0%} zero")
    return ", ".join(parts) or f"{histogram.count:,} values"


def _range(histogram: Histogram) -> tuple[float, float]:
    edges, counts = histogram.edges, histogram.counts
    finite = np.isfinite(edges[:, 0]) & np.isfinite(edges[:, 1])
    bounds = edges[finite]
    order = np.argsort(bounds[:, 0], kind="stable")
    bounds, n = bounds[order], counts[finite][order].astype(np.float64)
    shares = np.cumsum(n) / n.sum()
    first = int(np.searchsorted(shares, TAIL))
    last = int(np.searchsorted(shares, 1 - TAIL))
    return float(bounds[first, 0]), float(bounds[min(last, len(bounds) - 1), 1])


def _is_finite_above(histogram: Histogram, edge: float) -> NDArray[np.bool_]:
    low = histogram.edges[:, 0]
    return np.isfinite(low) & (low >= edge)
