"""Dots on lines: a few numbers of each row of a list, on one scale.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.frame import Box, figure, legend, row_name, svg, text, upright
from tdbg.drawing.markup import Markup, shortened, tag
from tdbg.drawing.scales import number, scale_of

__all__ = ["Dots", "dot_chart"]

Floats = NDArray[np.float64]
WIDTH, LEFT = 760, 196
MOST_ROW, MOST_HEIGHT, LABELLED = 17.0, 620.0, 10.5


@dataclass(frozen=True, slots=True, eq=False)
class Dots:
    """Numbers of each row.

    Attributes:
        label: What they are.
        values: One a row; NaN where there is none.  Shape (rows,).
        bad: Where there is a NaN or an infinity.  Shape (rows,).
    """

    label: str
    values: Floats
    bad: NDArray[np.bool_]


def dot_chart(
    names: Sequence[str],
    dots: Sequence[Dots],
    *,
    alt: str,
    what: str,
    ranges: tuple[Floats, Floats] | None = None,
    reference: float | None = None,
    caption: str | Markup | None = None,
) -> Markup:
    """A figure of dots, a row for each name.

    Args:
        names: Name of each row, from top to bottom.
        dots: At most eight numbers a row, each with a colour.
        alt: What the chart shows, for who cannot see it.
        what: What the numbers are.
        ranges: Least and greatest of each row, drawn as a bar behind the dots.
        reference: A number at which there is a line.
        caption: Written below.
    """
    row = min(MOST_ROW, max(3.0, MOST_HEIGHT / len(names)))
    box = Box(LEFT, 30, WIDTH - 24, 30 + row * len(names))
    given = [each.values for each in dots] + list(ranges or ())
    if reference is not None:
        given.append(np.array([reference]))
    x = scale_of(given, box.left, box.right)
    parts: list[Markup] = []
    for value, label in x.ticks(7):
        parts.append(upright(x.at(value), box, "grid"))
        parts.append(text(x.at(value), box.bottom + 16, label, anchor="middle"))
    parts.append(text(LEFT, 14, what, class_="label"))
    if reference is not None:
        parts.append(upright(x.at(reference), box, "axis"))
    every = max(1, int(np.ceil(LABELLED / row)))
    radius = min(4.0, max(1.4, row / 4))
    places = [x(each.values) for each in dots]
    for i, name in enumerate(names):
        y = box.top + (i + 0.5) * row
        if i % every == 0:
            parts.append(row_name(LEFT - 7, y + 3.5, name))
        if ranges is not None:
            parts += _range(x([ranges[0][i], ranges[1][i]]), box.left, y, radius)
        for j, each in enumerate(dots):
            label = f"{name}, {each.label}"
            if each.bad[i]:
                title = f"{label}: NaN or infinity"
                parts.append(_cross(box.right + 8, y, radius, title))
            if np.isfinite(places[j][i]):
                title = f"{label}: {number(float(each.values[i]))}"
                parts.append(_dot(places[j][i], y, radius, title, f"f{j} dot"))
    return figure(
        svg(WIDTH, box.bottom + 24, f"{alt} {_said(names, dots)}.", parts),
        caption,
        _legend(dots, has_ranges=ranges is not None),
    )


def _legend(dots: Sequence[Dots], *, has_ranges: bool) -> Markup | None:
    entries = [(f"b{j}", each.label) for j, each in enumerate(dots)]
    if has_ranges:
        entries.append(("reach", "least to greatest of the whole run"))
    if any(each.bad.any() for each in dots):
        entries.append(("bad", "NaN or infinity"))
    return legend(entries)


def _range(ends: Floats, left: float, y: float, radius: float) -> list[Markup]:
    """A bar from least to greatest; none where one of them is not known."""
    start, end = np.nan_to_num(ends, nan=np.inf, neginf=left)
    if not np.isfinite([start, end]).all():
        return []
    width = radius * 2
    return [
        tag("line", x1=start, x2=end, y1=y, y2=y, class_="reach", stroke_width=width)
    ]


def _dot(x: float, y: float, r: float, title: str, class_: str) -> Markup:
    return tag("circle", tag("title", title), cx=x, cy=y, r=r, class_=class_)


def _cross(x: float, y: float, r: float, title: str) -> Markup:
    d = f"M{x - r:.1f} {y - r:.1f}l{2 * r:.1f} {2 * r:.1f}"
    d += f"m0 {-2 * r:.1f}l{-2 * r:.1f} {2 * r:.1f}"
    return tag("path", tag("title", title), d=Markup(d), class_="cross")


def _said(names: Sequence[str], dots: Sequence[Dots]) -> str:
    words = []
    for each in dots:
        there = np.flatnonzero(np.isfinite(each.values))
        if len(there):
            least = there[np.argmin(each.values[there])]
            most = there[np.argmax(each.values[there])]
            low, high = (number(float(each.values[i])) for i in (least, most))
            where = [shortened(names[i], 60) for i in (least, most)]
            words.append(
                f"{each.label}: from {low} ({where[0]}) to {high} ({where[1]})"
            )
    return "; ".join(words) or "no value"
