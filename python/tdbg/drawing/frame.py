"""The frame of a chart: its text for who cannot see it, axes, grid and strips.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from tdbg.drawing.markup import Child, Markup, join, shortened, tag
from tdbg.drawing.scales import Scale

__all__ = [
    "N_COLORS",
    "Box",
    "figure",
    "hatching",
    "legend",
    "path",
    "row_name",
    "svg",
    "text",
    "upright",
    "x_axis",
    "y_axis",
]

# Colours of series, by the classes s0, s1, ... (strokes) and f0, f1, ... (fills).
N_COLORS = 8
# Between the lines of a hatching.
HATCH = 7.0
# Wider drawings fill the page.
WIDE = 500


@dataclass(frozen=True, slots=True)
class Box:
    """The rectangle in which data are drawn, in units of the SVG."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """From left to right."""
        return self.right - self.left

    @property
    def height(self) -> float:
        """From top to bottom."""
        return self.bottom - self.top


def svg(width: float, height: float, alt: str, *children: Child) -> Markup:
    """A drawing of that size; *alt* says what it shows to who cannot see it."""
    is_wide = width > WIDE
    return tag(
        "svg",
        *children,
        viewBox=Markup(f"0 0 {width:g} {height:g}"),
        # What is small keeps its size: its letters are as large as elsewhere.
        width=None if is_wide else width,
        height=None if is_wide else height,
        role="img",
        aria_label=alt,
        class_="wide" if is_wide else "small",
    )


def figure(drawing: Child, caption: Child = None, *after: Child) -> Markup:
    """A drawing with what is written below it; narrow screens scroll it sideways."""
    return tag(
        "figure",
        tag("div", drawing, class_="scroll", tabindex=0),
        None if caption is None else tag("figcaption", caption),
        *after,
    )


def text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    class_: str | None = None,
    title: str | None = None,
    transform: str | None = None,
) -> Markup:
    """A line of text; *title* is shown where the pointer rests on it."""
    return tag(
        "text",
        None if title is None else tag("title", title),
        content,
        x=x,
        y=y,
        text_anchor=None if anchor == "start" else anchor,
        class_=class_,
        transform=transform,
    )


def row_name(x: float, y: float, name: str) -> Markup:
    """The name of a row, which ends at *x*; the whole one is shown as its title."""
    shown = shortened(name, 30)
    return text(x, y, shown, anchor="end", title=name, class_="name")


def path(points: Iterable[tuple[float, float]]) -> Markup:
    """A line through points, with one decimal; of neighbours at one place one is kept.

    A line may come back to a place where it was: the outline of an area does.
    """
    texts = (f"{x:.1f} {y:.1f}" for x, y in points)
    return Markup("M" + "L".join(text for text, _ in groupby(texts)))


def hatching(box: Box) -> Markup:
    """Slanted lines over a box: nothing was recorded there."""
    lines = []
    start = box.left - box.height + HATCH - (box.left - box.height) % HATCH
    while start < box.right:
        left, right = max(start, box.left), min(start + box.height, box.right)
        if right - left > 1:
            ends = box.bottom - (left - start), box.bottom - (right - start)
            lines.append(f"M{left:.1f} {ends[0]:.1f}L{right:.1f} {ends[1]:.1f}")
        start += HATCH
    return tag("path", d=Markup("".join(lines)), class_="gap")


def upright(x: float, box: Box, class_: str) -> Markup:
    """A line from the top of the box to its bottom."""
    return tag("line", x1=x, x2=x, y1=box.top, y2=box.bottom, class_=class_)


def x_axis(
    box: Box, scale: Scale, label: str, *, most: int = 9, whole: bool = True
) -> Markup:
    """Ticks below the box; *whole*: only at whole numbers, as steps are."""
    ticks = scale.ticks(most)
    if whole:
        ticks = [(value, name) for value, name in ticks if value == round(value)]
    return join(
        [
            tag(
                "line",
                x1=box.left,
                x2=box.right,
                y1=box.bottom,
                y2=box.bottom,
                class_="axis",
            ),
            *(
                (
                    tag(
                        "line",
                        x1=x,
                        x2=x,
                        y1=box.bottom,
                        y2=box.bottom + 4,
                        class_="axis",
                    ),
                    text(x, box.bottom + 16, name, anchor="middle"),
                )
                for x, name in ((scale.at(value), name) for value, name in ticks)
            ),
            text(box.right, box.bottom + 30, label, anchor="end", class_="label"),
        ]
    )


def y_axis(box: Box, scale: Scale, label: str, *, most: int = 5) -> Markup:
    """Ticks left of the box, and a grid across it."""
    return join(
        [
            (
                tag("line", x1=box.left, x2=box.right, y1=y, y2=y, class_="grid"),
                text(box.left - 7, y + 3.5, name, anchor="end"),
            )
            for y, name in (
                (scale.at(value), name) for value, name in scale.ticks(most)
            )
        ]
        + [text(box.left - 56, 11, shortened(label, 60), class_="label")]
    )


def legend(entries: Iterable[tuple[str, Child]]) -> Markup | None:
    """A list of classes of swatches and what they stand for; None without entries."""
    items: Sequence[Markup] = [
        tag("li", tag("span", class_=f"swatch {class_}"), content)
        for class_, content in entries
    ]
    return tag("ul", items, class_="legend") if items else None
