"""Matrices of counts, such as confusion: shares of each row, with the counts in them.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.frame import figure, svg, text
from tdbg.drawing.markup import Markup, shortened, tag

__all__ = ["matrix_chart"]

# Up to so many classes the counts are written into the cells.
WRITTEN = 16


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
            parts.append(
                text(
                    left - 6,
                    y + cell / 2 + 4,
                    shortened(names[i], 8),
                    anchor="end",
                    title=names[i],
                )
            )
            parts.append(
                text(
                    x + cell / 2,
                    top + size + 14,
                    shortened(names[i], 6),
                    anchor="middle",
                    title=names[i],
                )
            )
        for j in range(n):
            share = float(shares[i, j])
            words = (
                f"true {names[i]}, predicted {names[j]}: {counts[i, j]} ({share:.0%})"
            )
            is_right = "right" if i == j else "wrong"
            parts.append(
                tag(
                    "rect",
                    tag("title", words),
                    x=left + j * cell,
                    y=y,
                    width=cell - (1 if cell > 8 else 0),
                    height=cell - (1 if cell > 8 else 0),
                    class_=f"cell {is_right}",
                    fill_opacity=0.06 + 0.94 * share if counts[i, j] else 0.04,
                )
            )
            if n <= WRITTEN and counts[i, j]:
                class_ = "onfill" if share > 0.55 else "value"
                parts.append(
                    text(
                        left + (j + 0.5) * cell - 0.5,
                        y + cell / 2 + 4,
                        str(counts[i, j]),
                        anchor="middle",
                        class_=class_,
                    )
                )
    right = int(np.trace(counts))
    said = f"{right} of {int(counts.sum())} samples are recognized"
    return figure(
        svg(max(left + size + 16, 330), top + size + 24, f"{alt} {said}.", parts),
        caption,
    )
