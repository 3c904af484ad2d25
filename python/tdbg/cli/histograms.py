"""A histogram in words: quantiles, and what narrow types would lose."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from tdbg.cli.output import number, plain, table
from tdbg.histogram import Histogram
from tdbg.precision import NARROW_TYPES

__all__ = ["print_histogram", "to_json"]

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
LOSSES = ("underflow", "subnormal", "overflow", "uncertain")


def to_json(histogram: Histogram, step: int) -> dict[str, Any]:
    """What ``print_histogram`` prints, for programs."""
    values = histogram.quantile(QUANTILES).tolist()
    losses = {dtype: histogram.lost_in(dtype) for dtype in NARROW_TYPES}
    return {
        "step": step,
        "count": histogram.count,
        "nan": histogram.nan,
        "zero": histogram.zero,
        "quantiles": [list(pair) for pair in zip(QUANTILES, values, strict=True)],
        "lost": {
            dtype: {name: getattr(loss, name) for name in LOSSES}
            for dtype, loss in losses.items()
        },
    }


def print_histogram(histogram: Histogram, step: int, out: Console) -> None:
    """Print quantiles, and the shares that each narrow type would lose."""
    document = to_json(histogram, step)
    parts = [f"{q:.0%} {number(x)}" for q, x in document["quantiles"]]
    out.print(plain(f"quantiles at step {step}: {', '.join(parts)}"))
    rows = [
        [dtype, *(_percent(loss[name]) for name in LOSSES)]
        for dtype, loss in document["lost"].items()
    ]
    out.print(table(("lost if cast to", *LOSSES), rows, right=LOSSES))


def _percent(share: float) -> str:
    """Two digits, and never 0 % of something or 100 % of less than all."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share < 0.0001:
        return "<0.01%"
    return f"{min(share, 0.9999):.2%}"
