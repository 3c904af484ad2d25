"""Maps on a linear scale: how busy cores were, how late ranks came.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.frame import (
    Box,
    figure,
    hatching,
    legend,
    row_name,
    svg,
    text,
    x_axis,
)
from tdbg.drawing.heat_map import FIRST, NOTHING, color_bar, image, paths
from tdbg.drawing.lines import Mark
from tdbg.drawing.markup import Child, Markup, tag
from tdbg.drawing.scales import Scale, number, step_scale

__all__ = ["linear_map"]

Floats = NDArray[np.float64]
WIDTH, LEFT, RIGHT = 760, 150, 22
LEAST_ROW, MOST_ROW, MOST_HEIGHT, LABELLED = 3.0, 17.0, 420.0, 10.5


def linear_map(
    names: Sequence[str],
    edges: Floats | NDArray[np.int64],
    values: Floats,
    *,
    alt: str,
    what: str,
    ends: tuple[str, str],
    high: float = 1.0,
    x_label: str = "step",
    caption: Child = None,
    marks: Sequence[Mark] = (),
    is_vector: bool = False,
) -> Markup:
    """A figure of rows over columns, coloured by their values from 0 to *high*.

    Args:
        names: Name of each row.
        edges: Bounds of the columns.  Shape (columns + 1,).
        values: What each cell holds; NaN: nothing was recorded, which is hatched.
            Shape (rows, columns).
        alt: What the map shows, for who cannot see it.
        what: What the values are.
        ends: How 0 and *high* are written.
        high: The value of the brightest colour.
        x_label: What the columns are.
        caption: Written below.
        marks: Stretches that are pointed out above the map.
        is_vector: Whether cells are drawn as paths of 16 colours, where a viewer shows
            no embedded image; for some thousand cells at most.
    """
    n_rows = len(values)
    row = min(MOST_ROW, max(LEAST_ROW, MOST_HEIGHT / max(1, n_rows)))
    top = 26.0 + 14.0 * bool(marks)
    box = Box(LEFT, top, WIDTH - RIGHT, top + row * n_rows)
    x = step_scale(float(edges[0]), float(edges[-1]), box.left, box.right)
    levels = _levels(values, high)
    has_gaps = bool(np.isnan(values).any())
    parts: list[Child] = [hatching(box)] if has_gaps else []
    places = x(edges)
    if is_vector:
        parts.append(paths(levels, places, top, row))
    else:
        at = np.round((places - box.left) * 2).astype(int)
        pixels = np.repeat(levels, np.maximum(np.diff(at), 1), axis=1)
        size = box.width, box.height
        parts.append(image(pixels, box.left, top, *size, class_="map"))
    parts.append(
        tag(
            "rect",
            x=box.left,
            y=top,
            width=box.width,
            height=box.height,
            class_="border",
        )
    )
    every = max(1, int(np.ceil(LABELLED / row)))
    parts += [
        row_name(box.left - 7, top + (i + 0.5) * row + 3.5, names[i])
        for i in range(0, n_rows, every)
    ]
    parts += [_mark(each, x, box) for each in marks]
    parts.append(x_axis(box, x, x_label))
    parts.append(text(LEFT, 12, what, class_="label"))
    parts.append(color_bar(*ends, WIDTH, is_vector=is_vector))
    entries = [("none", "not recorded")] if has_gaps else []
    drawing = svg(WIDTH, box.bottom + 36, _said(names, values, alt, high, ends), parts)
    return figure(drawing, caption, legend(entries))


def _levels(values: Floats, high: float) -> NDArray[np.uint8]:
    """The colour of each cell."""
    there = np.isfinite(values)
    shares = np.clip(np.where(there, values, 0.0) / (high or 1.0), 0.0, 1.0)
    scaled = FIRST + np.round(shares * (255 - FIRST)).astype(np.int64)
    return np.where(there, scaled, NOTHING).astype(np.uint8)


def _mark(mark: Mark, x: Scale, box: Box) -> Markup:
    """A finding above the map: a bar over its stretch, and its name."""
    start = min(max(x.at(mark.first), box.left), box.right)
    end = min(max(x.at(mark.last), start + 3), box.right)
    is_leftward = start > box.left + 0.7 * box.width
    return tag(
        "g",
        tag("title", mark.label),
        tag(
            "rect",
            x=start,
            y=box.top - 6,
            width=max(end - start, 2.0),
            height=4,
            class_=f"found {mark.severity}",
        ),
        text(
            end if is_leftward else start,
            box.top - 9,
            mark.label,
            anchor="end" if is_leftward else "start",
            class_=f"flag {mark.severity}",
        ),
    )


def _said(
    names: Sequence[str],
    values: Floats,
    alt: str,
    high: float,
    ends: tuple[str, str],
) -> str:
    known = values[np.isfinite(values)]
    words = f"{alt} {len(names)} rows, from {ends[0]} to {ends[1]}"
    if not len(known):
        return f"{words}; nothing recorded."
    mean = number(float(known.mean()) / (high or 1.0) * 100)
    return f"{words}; on average at {mean} % of that."
