"""Phases of steps: bands over the steps, and bars that are divided into shares.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.frame import Box, figure, legend, row_name, svg, text, x_axis, y_axis
from tdbg.drawing.markup import Child, Markup, tag
from tdbg.drawing.scales import Scale, number, step_scale

__all__ = ["BarPart", "bands_chart", "shares_chart"]

Floats = NDArray[np.float64]
WIDTH, LEFT, RIGHT = 760, 66, 22
ROW, GAP = 20, 8
# Narrower parts of a bar have no room for a number.
LEAST_LABEL = 34.0


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar.

    Attributes:
        name: What it is.
        class_: Its colour: the class of a phase, such as ``ph3``.
        share: How much of the bar it takes, 0 to 1.
        label: What is written on it where there is room.
    """

    name: str
    class_: str
    share: float
    label: str


def shares_chart(
    names: Sequence[str],
    bars: Sequence[Sequence[BarPart]],
    *,
    alt: str,
    caption: Child = None,
    notes: Sequence[str] = (),
    left: int = 150,
) -> Markup:
    """A figure of lying bars, each divided into its parts.

    Args:
        names: Name of each bar.
        bars: The parts of each.
        alt: What the chart shows, for who cannot see it.
        caption: Written below.
        notes: Written right of each bar.
        left: Room for the names, in units of the SVG.
    """
    right = WIDTH - (110 if notes else RIGHT)
    x = Scale(0.0, 1.0, left, right)
    drawn: list[Markup] = []
    for i, (name, parts) in enumerate(zip(names, bars, strict=True)):
        top = 4 + i * (ROW + GAP)
        drawn.append(row_name(left - 7, top + ROW / 2 + 4, name))
        drawn += _bar(parts, x, top)
        if notes:
            drawn.append(text(right + 8, top + ROW / 2 + 4, notes[i], class_="value"))
    entries = {part.name: part.class_ for parts in bars for part in parts}
    said = "; ".join(
        f"{name}: " + ", ".join(f"{part.name} {part.label}" for part in parts)
        for name, parts in list(zip(names, bars, strict=True))[:4]
    )
    return figure(
        svg(WIDTH, 4 + len(bars) * (ROW + GAP), f"{alt} {said}.", drawn),
        caption,
        legend((class_, name) for name, class_ in entries.items()),
    )


def _bar(parts: Sequence[BarPart], x: Scale, top: float) -> list[Markup]:
    drawn, at = [], 0.0
    for part in parts:
        start, end = x.at(at), x.at(min(1.0, at + part.share))
        at += part.share
        drawn.append(
            tag(
                "rect",
                tag("title", f"{part.name}: {part.label}"),
                x=start,
                y=top,
                width=max(end - start - 0.6, 0.3),
                height=ROW,
                class_=part.class_,
            )
        )
        if end - start > LEAST_LABEL:
            middle = (start + end) / 2
            drawn.append(
                text(middle, top + 14, part.label, anchor="middle", class_="onband")
            )
    return drawn


def bands_chart(
    edges: NDArray[np.int64],
    means: Floats,
    highest: Floats,
    names: Sequence[str],
    classes: Sequence[str],
    *,
    alt: str,
    y_label: str,
    x_label: str = "step",
    caption: Child = None,
    height: int = 250,
) -> Markup:
    """A figure of bands that are stacked, over columns of steps.

    Args:
        edges: Bounds of the columns.  Shape (columns + 1,).
        means: Mean of each band in each column, NaN where there is none.  Shape
            (bands, columns).
        highest: The greatest sum of any step of each column: a line above the bands.
            Shape (columns,).
        names: Name of each band, the lowest first.
        classes: Colour of each.
        alt: What the chart shows, for who cannot see it.
        y_label: What the values are.
        x_label: What the columns are.
        caption: Written below.
        height: Of the drawing, in units of the SVG.
    """
    box = Box(LEFT, 22, WIDTH - RIGHT, height - 38)
    tops = np.cumsum(np.nan_to_num(means), axis=0)
    there = np.asarray(np.isfinite(means).all(axis=0))
    limit = _limit(highest, tops[-1] if len(tops) else np.zeros(0))
    y = Scale(0.0, limit, box.bottom, box.top)
    x = step_scale(float(edges[0]), float(edges[-1]), box.left, box.right)
    at = x(edges)
    parts = [y_axis(box, y, y_label)]
    floor = np.zeros(tops.shape[1] if tops.ndim == 2 else 0)
    for i, top in enumerate(tops):
        low, high = (y(np.minimum(each, limit)) for each in (floor, top))
        outline = _area(at, low, high, there)
        title = tag("title", names[i])
        parts.append(tag("path", title, d=outline, class_=f"band {classes[i]}"))
        floor = top
    parts += _peaks(at, highest, y, there)
    parts.append(x_axis(box, x, x_label))
    entries = [
        *zip(classes, names, strict=True),
        ("peak", "the longest step"),
    ]
    said = ", ".join(
        f"{name} {number(float(np.nanmean(mean)))}"
        for name, mean in zip(names, means, strict=True)
        if np.isfinite(mean).any()
    )
    return figure(
        svg(WIDTH, height, f"{alt} Mean: {said}.", parts), caption, legend(entries)
    )


def _limit(highest: Floats, sums: Floats) -> float:
    """The end of the axis: a few steps far above the others do not crush them."""
    known = highest[np.isfinite(highest)]
    if not len(known):
        return 1.0
    greatest, usual = float(known.max()), 3.0 * float(np.median(sums))
    return max(min(greatest, usual), float(sums.max()), 1e-9) * 1.05


def _area(at: Floats, low: Floats, high: Floats, there: NDArray[np.bool_]) -> Markup:
    """Columns between two heights, as wide as their steps, neighbours as one piece."""
    found = np.flatnonzero(there)
    pieces = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1)
    drawn = []
    for piece in pieces:
        if not len(piece):
            continue
        upper = "".join(f"H{at[j]:.1f}V{high[j]:.1f}H{at[j + 1]:.1f}" for j in piece)
        lower = "".join(f"V{low[j]:.1f}H{at[j]:.1f}" for j in piece[::-1].tolist())
        drawn.append(f"M{at[piece[0]]:.1f} {low[piece[0]]:.1f}{upper}{lower}z")
    return Markup("".join(drawn))


def _peaks(
    at: Floats, highest: Floats, y: Scale, there: NDArray[np.bool_]
) -> list[Markup]:
    """A stroke at the longest step of each column; a mark where it is off the axis."""
    level = y(np.minimum(highest, y.high))
    strokes = [
        f"M{at[j]:.1f} {level[j]:.1f}H{at[j + 1]:.1f}"
        for j in np.flatnonzero(there & np.isfinite(highest)).tolist()
    ]
    parts = [tag("path", d=Markup("".join(strokes)), class_="peak")]
    beyond = np.flatnonzero(there & (highest > y.high))
    for j in beyond.tolist():
        middle = (at[j] + at[j + 1]) / 2
        label = f"{number(float(highest[j]))}, above the axis"
        mark = Markup(f"M{middle - 4:.1f} 20l4 -7l4 7z")
        parts.append(tag("path", tag("title", label), d=mark, class_="beyond"))
    return parts
