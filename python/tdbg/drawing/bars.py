"""Bars: lying ones with a name each, and standing ones over the bins of a histogram.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.frame import (
    N_COLORS,
    Box,
    figure,
    legend,
    row_name,
    svg,
    text,
    upright,
    x_axis,
    y_axis,
)
from tdbg.drawing.markup import Markup, shortened, tag
from tdbg.drawing.scales import Scale, number, scale_of

__all__ = ["bar_chart", "columns_chart"]

Floats = NDArray[np.float64]
WIDTH = 760
ROW, GAP = 18, 5


def bar_chart(
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    labels: Sequence[str],
    *,
    alt: str,
    caption: str | Markup | None = None,
    left: int = 190,
    width: int = WIDTH,
) -> Markup:
    """A figure of lying bars.

    Args:
        names: Name of each row.
        values: By series, then by row: at least zero; NaN: no bar.
        labels: Name of each series.
        alt: What the chart shows, for who cannot see it.
        caption: Written below.
        left: Room for the names, in units of the SVG.
        width: Of the drawing.
    """
    n = len(values)
    thick = max(5.0, (ROW - 2) / n)
    row = thick * n + GAP
    box = Box(left, 4, width - 64, 4 + row * len(names))
    greatest = max((v for each in values for v in each if np.isfinite(v)), default=0.0)
    x = Scale(0.0, greatest or 1.0, box.left, box.right)
    parts = [
        tag("line", x1=box.left, x2=box.left, y1=box.top, y2=box.bottom, class_="axis")
    ]
    for i, name in enumerate(names):
        top = box.top + i * row + GAP / 2
        middle = top + thick * n / 2 + 3.5
        parts.append(row_name(left - 7, middle, name))
        for j, each in enumerate(values):
            if not np.isfinite(each[i]):
                continue
            y, end = top + j * thick, x.at(each[i])
            parts.append(
                tag(
                    "rect",
                    tag("title", f"{name}, {labels[j]}: {number(each[i])}"),
                    x=left,
                    y=y,
                    width=max(end - left, 0.6),
                    height=thick - (1 if n > 1 else 0),
                    rx=1.5,
                    class_=f"f{j % N_COLORS}",
                )
            )
            if thick >= 8 or n == 1:
                parts.append(
                    text(end + 5, y + thick / 2 + 3, number(each[i]), class_="value")
                )
    entries = [(f"b{j % N_COLORS}", label) for j, label in enumerate(labels)]
    said = ", ".join(
        f"{name} {number(v)}" for name, v in zip(names[:5], values[0], strict=False)
    )
    return figure(
        svg(width, box.bottom + 6, f"{alt} {labels[0]}: {said}.", parts),
        caption,
        legend(entries if n > 1 else []),
    )


def columns_chart(
    edges: Floats,
    counts: Sequence[Floats],
    labels: Sequence[str],
    *,
    alt: str,
    x_label: str,
    names: Sequence[str] = (),
    y_label: str = "samples",
    caption: str | Markup | None = None,
    marks: Sequence[tuple[float, str]] = (),
    height: int = 230,
) -> Markup:
    """A figure of standing bars, those of several series beside each other.

    Args:
        edges: Bounds of the bins, ascending.  Shape (bins + 1,).
        counts: By series: what each bin holds.  Shape (bins,).
        labels: Name of each series.
        alt: What the chart shows, for who cannot see it.
        x_label: What the bins are of.
        names: Name of each bin, in place of an axis of numbers.
        y_label: What is counted.
        caption: Written below.
        marks: Places on the axis to be pointed out, and what is there.
        height: Of the drawing.
    """
    box = Box(66, 24, WIDTH - 14, height - 38)
    x = Scale(float(edges[0]), float(edges[-1]), box.left, box.right)
    y = scale_of(counts, box.bottom, box.top, with_zero=True)
    parts = [y_axis(box, y, y_label)]
    every = -(-len(names) // 24)
    for k in range(len(edges) - 1):
        start, end = x.at(edges[k]), x.at(edges[k + 1])
        gap = 0.12 * (end - start)
        name = names[k] if names else _bin_name(edges[k], edges[k + 1])
        parts += _columns(
            [each[k] for each in counts],
            [f"{name}, {label}" for label in labels],
            y,
            start,
            end,
            gap if names else min(2.0, gap),
        )
        if names and k % every == 0:
            middle, shown = (start + end) / 2, shortened(name, 12)
            parts.append(text(middle, box.bottom + 16, shown, anchor="middle"))
    if names:
        parts += _axis_of_names(box, x_label)
    else:
        parts.append(x_axis(box, x, x_label, whole=False))
    for place, label in marks:
        at = x.at(place)
        parts.append(upright(at, box, "flag info"))
        parts.append(text(at + 4, box.top + 10, label, class_="flag info"))
    entries = [(f"b{j % N_COLORS}", label) for j, label in enumerate(labels)]
    said = "; ".join(
        f"{label}: {len(each)} bins, the greatest {number(float(np.nanmax(each)))}"
        for label, each in zip(labels, counts, strict=True)
    )
    return figure(
        svg(WIDTH, height, f"{alt} {said}.", parts),
        caption,
        legend(entries if len(counts) > 1 else []),
    )


def _axis_of_names(box: Box, label: str) -> list[Markup]:
    left, right, y = box.left, box.right, box.bottom
    return [
        text(right, y + 30, label, anchor="end", class_="label"),
        tag("line", x1=left, x2=right, y1=y, y2=y, class_="axis"),
    ]


def _bin_name(low: float, high: float) -> str:
    return f"{number(float(low))} to {number(float(high))}"


def _columns(
    heights: Sequence[float],
    titles: Sequence[str],
    y: Scale,
    start: float,
    end: float,
    gap: float,
) -> list[Markup]:
    """The columns of one bin from *start* to *end*, beside each other."""
    n = len(heights)
    width = (end - start - 2 * gap) / n
    return [
        tag(
            "rect",
            tag("title", f"{titles[j]}: {number(float(height))}"),
            x=start + gap + j * width,
            y=y.at(height),
            width=max(width - (0.5 if n > 1 else 0), 0.4),
            height=max(y.at(0.0) - y.at(height), 0.0),
            class_=f"f{j % N_COLORS}",
        )
        for j, height in enumerate(heights)
        if np.isfinite(height)
    ]
