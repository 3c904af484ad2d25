"""Curves in the unit square, such as receiver operating characteristics.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.frame import N_COLORS, Box, figure, legend, svg, text
from tdbg.drawing.markup import Markup, tag
from tdbg.drawing.scales import Scale

__all__ = ["unit_chart"]

Floats = NDArray[np.float64]
SIZE, LEFT, TOP = 300, 46, 28


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
        points = "L".join(
            dict.fromkeys(
                f"{px:.1f} {py:.1f}" for px, py in zip(x(at), y(height), strict=True)
            )
        )
        parts.append(
            tag("path", d=Markup(f"M{points}"), class_=f"line s{i % N_COLORS}")
        )
    entries = [(f"b{i % N_COLORS}", label) for i, (label, _, _) in enumerate(curves)]
    said = "; ".join(label for label, _, _ in curves)
    return figure(
        svg(LEFT + SIZE + 14, TOP + SIZE + 36, f"{alt} {said}.", parts),
        caption,
        legend(entries),
    )
