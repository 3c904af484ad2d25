"""Plots as data, drawn to PNG wherever matplotlib is installed.

A benchmark may run where there is no matplotlib (beside smdebug, say), and a curve
may come from several runs, so what is saved in the result is what to draw; plots of
the same name in several results are one plot.  ``benchmarks/report.py`` draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Bars", "Curves", "draw"]


@dataclass
class Curves:
    """Lines over x, each with the interval of its points."""

    name: str  # Of the PNG file.
    title: str
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    #: By label: points (x, y, low, high).
    series: dict[str, list[tuple[float, float, float, float]]] = field(
        default_factory=dict
    )
    kind: str = "curves"

    def add(
        self, label: str, x: float, y: float, low: float | None = None,
        high: float | None = None,
    ) -> None:  # fmt: skip
        """A point of the line *label*."""
        point = (x, y, y if low is None else low, y if high is None else high)
        self.series.setdefault(label, []).append(point)


@dataclass
class Bars:
    """A bar for each label: (value, low, high)."""

    name: str
    title: str
    x_label: str
    log_x: bool = False
    #: By label: a list of one bar (value, low, high).
    series: dict[str, list[Sequence[float]]] = field(default_factory=dict)
    kind: str = "bars"

    def add(
        self, label: str, value: float, low: float | None = None,
        high: float | None = None,
    ) -> None:  # fmt: skip
        """The bar *label*."""
        bar = (value, value if low is None else low, value if high is None else high)
        self.series[label] = [bar]


def draw(plot: dict[str, Any], path: Path) -> None:
    """Draw what Curves or Bars saved as a dictionary.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("agg")  # No display.
    from matplotlib import pyplot as plt

    height = 4.5 if plot["kind"] == "curves" else 1.2 + 0.3 * len(plot["series"])
    figure, axes = plt.subplots(figsize=(7, height), layout="constrained")
    try:
        (_draw_curves if plot["kind"] == "curves" else _draw_bars)(plot, axes)
        axes.set_title(plot["title"])
        axes.set_xlabel(plot["x_label"])
        axes.grid(visible=True, alpha=0.3)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    finally:
        plt.close(figure)


def _draw_curves(plot: dict[str, Any], axes: Any) -> None:
    for label, points in plot["series"].items():
        x, y, low, high = zip(*sorted(points), strict=True)
        (line,) = axes.plot(x, y, marker="o", markersize=4, label=label)
        axes.fill_between(x, low, high, alpha=0.15, color=line.get_color())
    if plot["log_x"]:
        axes.set_xscale("log")
        ticks = sorted({point[0] for line in plot["series"].values() for point in line})
        if len(ticks) <= 12:
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
    if plot["log_y"]:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    axes.set_ylabel(plot["y_label"])
    axes.legend()


def _plain_numbers(axis: Any) -> None:
    """1, 2, 5, 10 instead of powers of ten, unless they are many."""
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    few = low > 0 and high / low < 1e3
    numbers = ticker.FuncFormatter(lambda value, _: f"{value:g}")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if few else (1,)))
    axis.set_major_formatter(numbers)
    axis.set_minor_formatter(ticker.NullFormatter())


def _draw_bars(plot: dict[str, Any], axes: Any) -> None:
    # The least on top.
    labels = sorted(plot["series"], key=lambda label: -plot["series"][label][0][0])
    bars = [plot["series"][label][0] for label in labels]
    values = [bar[0] for bar in bars]
    errors = [
        [0 if math.isnan(low) else value - low for value, low, _ in bars],
        [0 if math.isnan(high) else high - value for value, _, high in bars],
    ]
    axes.barh(labels, values, xerr=errors, height=0.7)
    if plot["log_x"]:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
    axes.margins(x=0.1)  # For the numbers.
    for row, (value, _, high) in enumerate(bars):
        end = value if math.isnan(high) else high
        axes.annotate(f" {value:.3g}", (end, row), va="center", fontsize=8)
