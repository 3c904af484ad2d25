"""Maps of rows over steps: one picture of all layers, as an embedded PNG.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.drawing.colors import NOT_FINITE, viridis
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
from tdbg.drawing.markup import Child, Markup, tag
from tdbg.drawing.scales import number, step_scale
from tdbg.view.layers import Cells

__all__ = [
    "FIRST",
    "NOTHING",
    "Flag",
    "color_bar",
    "colors",
    "heat_map",
    "image",
    "paths",
    "png",
]

Floats = NDArray[np.float64]

WIDTH, LEFT, RIGHT = 760, 196, 14
# Rows of a map have this height at least and at most, in units of the SVG.
LEAST_ROW, MOST_ROW = 1.6, 17.0
MOST_HEIGHT = 520.0
# Rows further apart than this have each its name.
LABELLED = 10.5
# Entries of the palette: transparent, NaN or infinity, and the colours.
NOTHING, BAD, FIRST = 0, 1, 2
BAD_COLOR = tuple(bytes.fromhex(NOT_FINITE[1:]))
# Colours of a map that is drawn as paths.
STEPS = 16


@dataclass(frozen=True, slots=True)
class Flag:
    """A place in a map to be pointed out: row, step, what is there, how bad it is."""

    row: int
    step: int
    label: str
    severity: str


def heat_map(
    cells: Cells,
    *,
    alt: str,
    what: str,
    x_label: str = "step",
    caption: str | Markup | None = None,
    flags: Sequence[Flag] = (),
    is_vector: bool = False,
) -> Markup:
    """A figure of rows over steps, coloured by the logarithm of their values.

    Args:
        cells: What to show.
        alt: What the map shows, for who cannot see it.
        what: What the values are.
        x_label: What the columns are.
        caption: Written below.
        flags: Places that are pointed out.
        is_vector: Whether cells are drawn as paths of 16 colours, where a viewer shows
            no embedded image; for some thousand cells at most.
    """
    n_rows = len(cells.values)
    levels, low, high = _levels(cells)
    row = min(MOST_ROW, max(LEAST_ROW, MOST_HEIGHT / n_rows))
    height = row * n_rows
    top = 26.0
    box = Box(LEFT, top, WIDTH - RIGHT, top + height)
    first, stop = int(cells.edges[0]), int(cells.edges[-1])
    x = step_scale(first, stop, box.left, box.right)
    # Columns are as wide as their steps: the outer ones may be narrower.
    places = x(cells.edges)
    has_gaps = bool(np.isnan(cells.values).any() and not cells.bad.all())
    parts: list[Markup] = [hatching(box)] if has_gaps else []
    if is_vector:
        parts += paths(levels, places, top, row)
    else:
        edges = np.round((places - box.left) * 2).astype(int)
        pixels = np.repeat(levels, np.maximum(np.diff(edges), 1), axis=1)
        parts.append(image(pixels, box.left, top, box.width, height, class_="map"))
    parts.append(
        tag("rect", x=box.left, y=top, width=box.width, height=height, class_="border")
    )
    every = max(1, int(np.ceil(LABELLED / row)))
    for i in range(0, n_rows, every):
        y = top + (i + 0.5) * row + 3.5
        parts.append(row_name(box.left - 7, y, cells.names[i]))
    parts += [
        _flag(flag, x.at(flag.step), top + (flag.row + 0.5) * row, box)
        for flag in flags
    ]
    parts.append(x_axis(box, x, x_label))
    parts.append(text(LEFT, 12, what, class_="label"))
    ends = number(10.0**low), number(10.0**high)
    parts.append(color_bar(*ends, WIDTH, is_vector=is_vector))
    if cells.bad.any():
        parts.append(_bad_strip(cells, places, top))
    entries: list[tuple[str, str]] = []
    if cells.bad.any():
        entries.append(("bad", "NaN or infinity"))
    if has_gaps:
        entries.append(("none", "not recorded"))
    if flags:
        entries.append(("mark", "finding"))
    return figure(
        svg(WIDTH, top + height + 36, _said(cells, alt, what), parts),
        caption,
        legend(entries),
    )


def _levels(cells: Cells) -> tuple[NDArray[np.uint8], float, float]:
    """The colour of each cell, and the least and the greatest logarithm."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(cells.values)
    finite = logs[np.isfinite(logs)]
    low = float(finite.min()) if len(finite) else 0.0
    high = float(finite.max()) if len(finite) else 0.0
    share = np.clip((logs - low) / ((high - low) or 1.0), 0.0, 1.0)
    is_number = np.isfinite(share)
    levels = np.full(logs.shape, NOTHING, np.uint8)
    scaled = np.round(share[is_number] * (255 - FIRST))
    levels[is_number] = FIRST + scaled.astype(np.uint8)
    # Zero has no logarithm, and is the darkest: what is not there is transparent.
    levels[cells.values == 0] = FIRST
    levels[cells.bad] = BAD
    return levels, low, high


def _said(cells: Cells, alt: str, what: str) -> str:
    finite = cells.values[np.isfinite(cells.values)]
    words = f"{alt} {len(cells.names)} rows"
    if len(finite):
        low, high = number(float(finite.min())), number(float(finite.max()))
        words += f"; {what} from {low} to {high}"
    rows = int(cells.bad.any(axis=1).sum())
    if rows:
        words += f"; NaN or infinity in {rows} rows"
    return f"{words}."


def _flag(flag: Flag, x: float, y: float, box: Box) -> Markup:
    # Its tip is at the step, so that it hides none of what it points to.
    x = min(x, box.right)
    return tag(
        "path",
        tag("title", flag.label),
        d=Markup(f"M{x - 7:.1f} {y - 4.5:.1f}l7 4.5l-7 4.5z"),
        class_=f"flagged {flag.severity}",
    )


def _bad_strip(cells: Cells, places: Floats, top: float) -> Markup:
    """Marks above the map: in a map of many rows a single cell would be overlooked."""
    columns = np.flatnonzero(cells.bad.any(axis=0))
    return tag(
        "g",
        (
            tag(
                "rect",
                x=places[j] - 1,
                y=top - 7,
                width=places[j + 1] - places[j] + 2,
                height=5,
                class_="bad",
            )
            for j in columns.tolist()
        ),
    )


def color_bar(low: str, high: str, width: float, *, is_vector: bool = False) -> Markup:
    """The colours of a map, between what its ends are called."""
    left, length, thick = width - 190.0, 110.0, 9.0
    ramp = np.arange(FIRST, 256, dtype=np.uint8)[np.newaxis]
    bar: Child = image(ramp, left, 4.0, length, thick)
    if is_vector:
        steps = np.linspace(FIRST, 255, STEPS).astype(np.uint8)[np.newaxis]
        bar = paths(steps, np.linspace(left, left + length, STEPS + 1), 4.0, thick)
    return tag(
        "g",
        text(left - 6, 12, low, anchor="end"),
        bar,
        text(left + 116, 12, high),
    )


def image(
    levels: NDArray[np.uint8],
    x: float,
    y: float,
    width: float,
    height: float,
    class_: str | None = None,
) -> Markup:
    """Entries of the palette as an image of that size."""
    return tag(
        "image",
        href=png(levels),
        x=x,
        y=y,
        width=width,
        height=height,
        preserveAspectRatio="none",
        class_=class_,
    )


def paths(
    levels: NDArray[np.uint8], places: Floats, top: float, row: float
) -> list[Markup]:
    """The cells as one path a colour, neighbours of a colour as one piece."""
    share = (levels.astype(np.float64) - FIRST) / (255 - FIRST)
    steps = FIRST + np.round(share * (STEPS - 1)).astype(np.int64)
    steps[levels < FIRST] = levels[levels < FIRST]
    at = np.round(places).astype(int).tolist()
    pieces: dict[int, list[str]] = {}
    for i, line in enumerate(steps):
        y, bottom = round(top + i * row), round(top + (i + 1) * row)
        starts = np.flatnonzero(np.diff(line, prepend=-1)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(line)], strict=True):
            if line[start] != NOTHING:
                piece = f"M{at[start]} {y}H{at[stop]}V{bottom}H{at[start]}z"
                pieces.setdefault(int(line[start]), []).append(piece)
    palette = np.vstack([colors()[:FIRST], viridis(STEPS)])
    return [
        tag(
            "path",
            d=Markup("".join(found)),
            fill=f"#{bytes(palette[level]).hex()}",
            shape_rendering="crispEdges",
        )
        for level, found in sorted(pieces.items())
    ]


def colors() -> NDArray[np.uint8]:
    """The palette of the maps.  Shape (256, 3)."""
    found = np.zeros((256, 3), np.uint8)
    found[BAD] = BAD_COLOR
    found[FIRST:] = viridis(256 - FIRST)
    return found


def png(levels: NDArray[np.uint8]) -> Markup:
    """An image of entries of the palette as a data URL of a PNG."""
    height, width = levels.shape
    rows = np.zeros((height, width + 1), np.uint8)  # Each begins with its filter: none.
    rows[:, 1:] = levels
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", colors().tobytes()),
        (b"tRNS", b"\x00"),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    ):
        content += struct.pack(">I", len(data)) + kind + data
        content += struct.pack(">I", zlib.crc32(kind + data))
    return Markup("data:image/png;base64," + base64.b64encode(content).decode())
