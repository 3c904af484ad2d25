"""Dots on lines: a few numbers of each row of a list, on one scale.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.frame import Box, figure, legend, svg, text
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
    for value, name in x.ticks(7):
        at = x.at(value)
        parts.append(
            tag("line", x1=at, x2=at, y1=box.top, y2=box.bottom, class_="grid")
        )
        parts.append(text(at, box.bottom + 16, name, anchor="middle"))
    parts.append(text(LEFT, 14, what, class_="label"))
    if reference is not None:
        at = x.at(reference)
        parts.append(
            tag("line", x1=at, x2=at, y1=box.top, y2=box.bottom, class_="axis")
        )
    every = max(1, int(np.ceil(LABELLED / row)))
    radius = min(4.0, max(1.4, row / 4))
    places = [x(each.values) for each in dots]
    for i, name in enumerate(names):
        y = box.top + (i + 0.5) * row
        if i % every == 0:
            parts.append(
                text(
                    LEFT - 7,
                    y + 3.5,
                    shortened(name, 30),
                    anchor="end",
                    title=name,
                    class_="name",
                )
            )
        if ranges is not None:
            ends = np.nan_to_num(
                x([ranges[0][i], ranges[1][i]]), nan=np.inf, neginf=box.left
            )
            if np.isfinite(ends).all():
                parts.append(
                    tag(
                        "line",
                        x1=ends[0],
                        x2=ends[1],
                        y1=y,
                        y2=y,
                        class_="reach",
                        stroke_width=radius * 2,
                    )
                )
        for j, each in enumerate(dots):
            if each.bad[i]:
                parts.append(
                    _cross(
                        box.right + 8,
                        y,
                        radius,
                        f"{name}, {each.label}: NaN or infinity",
                    )
                )
            if not np.isfinite(places[j][i]):
                continue
            parts.append(
                tag(
                    "circle",
                    tag(
                        "title",
                        f"{name}, {each.label}: {number(float(each.values[i]))}",
                    ),
                    cx=places[j][i],
                    cy=y,
                    r=radius,
                    class_=f"f{j} dot",
                )
            )
    entries: list[tuple[str, str]] = [
        (f"b{j}", each.label) for j, each in enumerate(dots)
    ]
    if ranges is not None:
        entries.append(("reach", "least to greatest of the whole run"))
    if any(each.bad.any() for each in dots):
        entries.append(("bad", "NaN or infinity"))
    return figure(
        svg(WIDTH, box.bottom + 24, f"{alt} {_said(names, dots)}.", parts),
        caption,
        legend(entries),
    )


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
