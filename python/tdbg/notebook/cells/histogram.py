"""A histogram in a notebook: bars, quantiles, and what narrow types would lose.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import numpy as np

from tdbg.drawing.bars import columns_chart
from tdbg.drawing.markup import Child
from tdbg.drawing.scales import number
from tdbg.drawing.snippet import facts, listing, snippet
from tdbg.stats.histogram import Histogram

__all__ = ["histogram_html"]

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
MOST_BINS = 64


def histogram_html(histogram: Histogram) -> str:
    """The histogram as a snippet."""
    rows: list[tuple[str, Child]] = [("elements", f"{histogram.count:,}")]
    infinite = histogram.positive_infinity + histogram.negative_infinity
    for name, n in (
        ("zero", histogram.zero),
        ("NaN", histogram.nan),
        ("infinite", infinite),
    ):
        if n:
            rows.append((name, f"{n:,} ({n / histogram.count:.2%})"))
    parts: list[Child] = [facts(rows)]
    if histogram.finite:
        # Of few elements many bins would be noise.
        n_bins = int(np.clip(2 * np.sqrt(histogram.finite), 8, MOST_BINS))
        counts, edges = histogram.to_numpy(n_bins)
        parts.append(
            columns_chart(
                edges,
                [counts],
                ["elements"],
                alt="Histogram of the finite elements.",
                x_label="value",
                y_label="elements",
            )
        )
        parts += [_quantiles(histogram), _lost(histogram)]
    return snippet("Histogram", *parts)


def _quantiles(histogram: Histogram) -> Child:
    if histogram.nan:
        return None  # NaN has no place in an order.
    names = ["least", "1 %", "25 %", "median", "75 %", "99 %", "greatest"]
    found = histogram.quantile(QUANTILES)
    return listing(["quantile", *names], [["value", *map(number, found.tolist())]])


def _lost(histogram: Histogram) -> Child:
    cells = []
    for dtype in DTYPES:
        loss = histogram.lost_in(dtype)
        share = min(loss.underflow + loss.overflow, 1.0)
        cells.append("0" if share <= 0 else f"{share:.2%}")
    return listing(["made zero or infinite by", *DTYPES], [["share", *cells]])
