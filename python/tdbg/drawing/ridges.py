"""Ridgelines: histograms of one tensor at several steps, one behind the other.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.frame import Box, figure, path, svg, text, x_axis
from tdbg.drawing.markup import Markup, tag
from tdbg.drawing.scales import Scale, number

__all__ = ["ridge_chart"]

Floats = NDArray[np.float64]
WIDTH, LEFT, RIGHT = 760, 86, 130
RIDGE, OVERLAP = 34.0, 1.6


def ridge_chart(
    edges: Floats,
    counts: Sequence[Floats],
    labels: Sequence[str],
    notes: Sequence[str],
    *,
    alt: str,
    caption: str | Markup | None = None,
) -> Markup:
    """A figure of histograms over the same bins, the first one at the top.

    Args:
        edges: Bounds of the bins, ascending.  Shape (bins + 1,).
        counts: Of each histogram what each bin holds.  Shape (bins,).
        labels: Name of each histogram.
        notes: What is written at the right of each; NaN in it is coloured.
        alt: What the chart shows, for who cannot see it.
        caption: Written below.
    """
    top = 12 + RIDGE * (OVERLAP - 1)
    box = Box(LEFT, top, WIDTH - RIGHT, top + RIDGE * len(counts))
    x = Scale(float(edges[0]), float(edges[-1]), box.left, box.right)
    places = np.repeat(x(edges), 2)[1:-1]
    parts: list[Markup] = []
    for value, _ in x.ticks(7):
        at = x.at(value)
        parts.append(
            tag("line", x1=at, x2=at, y1=box.top, y2=box.bottom, class_="grid")
        )
    for i, each in enumerate(counts):
        base = top + RIDGE * (i + 1)
        greatest = float(each.max()) or 1.0
        heights = base - np.repeat(each, 2) / greatest * RIDGE * OVERLAP * 0.92
        curve = zip(places, heights, strict=True)
        outline = [(places[0], base), *curve, (places[-1], base)]
        parts.append(tag("path", d=path(outline), class_="ridge"))
        parts.append(text(LEFT - 8, base - 3, labels[i], anchor="end"))
        class_ = "bad" if "NaN" in notes[i] or "Inf" in notes[i] else "value"
        parts.append(text(box.right + 8, base - 3, notes[i], class_=class_))
    parts.append(x_axis(box, x, "value", whole=False))
    said = f"Values from {number(float(edges[0]))} to {number(float(edges[-1]))}"
    return figure(svg(WIDTH, box.bottom + 36, f"{alt} {said}.", parts), caption)
