"""Charts of a classifier: its matrix of confusion, and curves in the unit square (ROC).

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.frame import N_COLORS, Box, figure, legend, path, svg, text
from tdbg.drawing.markup import Markup, shortened, tag
from tdbg.drawing.scales import Scale

__all__ = ["matrix_chart", "unit_chart"]

Floats = NDArray[np.float64]

# Up to so many classes the counts are written into the cells.
WRITTEN = 16
# The place of the unit square.
SIZE, LEFT, TOP = 300, 46, 28


def matrix_chart(
    counts: NDArray[np.int64],
    names: Sequence[str],
    *,
    alt: str,
    title: str,
    caption: str | Markup | None = None,
) -> Markup:
    """A figure of true classes (rows) and predicted ones (columns).

    Args:
        counts: How many samples.  Shape (classes, classes).
        names: Name of each class.
        alt: What the chart shows, for who cannot see it.
        title: Written above.
        caption: Written below.
    """
    n = len(counts)
    cell = min(46.0, max(3.0, 340.0 / n))
    left, top = 78.0, 44.0
    size = cell * n
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares = counts / totals
    parts: list[Markup] = [
        text(0, 14, title, class_="strong"),
        text(left, 30, "predicted", class_="label"),
        text(14, top + size / 2, "true", class_="label"),
    ]
    every = max(1, int(np.ceil(11.0 / cell)))
    for i in range(n):
        y, x = top + i * cell, left + i * cell
        if i % every == 0:
            name, below = names[i], top + size + 14
            parts += [
                _name(left - 6, y + cell / 2 + 4, shortened(name, 8), name, "end"),
                _name(x + cell / 2, below, shortened(name, 6), name, "middle"),
            ]
        for j in range(n):
            count, share = int(counts[i, j]), float(shares[i, j])
            words = f"true {names[i]}, predicted {names[j]}: {count} ({share:.0%})"
            parts.append(
                tag(
                    "rect",
                    tag("title", words),
                    x=left + j * cell,
                    y=y,
                    width=cell - (1 if cell > 8 else 0),
                    height=cell - (1 if cell > 8 else 0),
                    class_="cell right" if i == j else "cell wrong",
                    fill_opacity=0.06 + 0.94 * share if count else 0.04,
                )
            )
            if n <= WRITTEN and count:
                middle = left + (j + 0.5) * cell - 0.5
                class_ = "onfill" if share > 0.55 else "value"
                at = y + cell / 2 + 4
                parts.append(
                    text(middle, at, str(count), anchor="middle", class_=class_)
                )
    right = int(np.trace(counts))
    said = f"{right} of {int(counts.sum())} samples are recognized"
    return figure(
        svg(max(left + size + 16, 330), top + size + 24, f"{alt} {said}.", parts),
        caption,
    )


def _name(x: float, y: float, shown: str, name: str, anchor: str) -> Markup:
    return text(x, y, shown, anchor=anchor, title=name)


def unit_chart(
    curves: Sequence[tuple[str, Floats, Floats]],
    *,
    alt: str,
    x_label: str,
    y_label: str,
    caption: str | Markup | None = None,
) -> Markup:
    """A figure of curves from (0, 0) to (1, 1): label, x and y of each."""
    box = Box(LEFT, TOP, LEFT + SIZE, TOP + SIZE)
    x, y = Scale(0.0, 1.0, box.left, box.right), Scale(0.0, 1.0, box.bottom, box.top)
    parts: list[Markup] = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        name = f"{value:g}"
        parts.append(
            tag(
                "line",
                x1=box.left,
                x2=box.right,
                y1=y.at(value),
                y2=y.at(value),
                class_="grid",
            )
        )
        parts.append(text(box.left - 6, y.at(value) + 3.5, name, anchor="end"))
        parts.append(text(x.at(value), box.bottom + 15, name, anchor="middle"))
    parts.append(
        tag(
            "line",
            x1=box.left,
            y1=box.bottom,
            x2=box.right,
            y2=box.top,
            class_="diagonal",
        )
    )
    parts.append(text(0, 10, y_label, class_="label"))
    parts.append(
        text(box.right, box.bottom + 30, x_label, anchor="end", class_="label")
    )
    for i, (_, at, height) in enumerate(curves):
        line = path(zip(x(at), y(height), strict=True))
        parts.append(tag("path", d=line, class_=f"line s{i % N_COLORS}"))
    entries = [(f"b{i % N_COLORS}", label) for i, (label, _, _) in enumerate(curves)]
    said = "; ".join(label for label, _, _ in curves)
    return figure(
        svg(LEFT + SIZE + 14, TOP + SIZE + 36, f"{alt} {said}.", parts),
        caption,
        legend(entries),
    )
