"""Charts of a run: a loss over steps, a map of layers over steps, and their depth.

Each is a list of lines of text.  Where there are more rows or columns than there is
room, neighbours are merged: the greatest, the least, and whether any is not finite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.text import Text

from tdbg.cli.output import number, plain, shortened
from tdbg.cli.top.board import Series
from tdbg.cli.top.drawing import (
    BAD_STYLE,
    band,
    depth_bars,
    half_block_map,
    on_log_scale,
)
from tdbg.trial import Envelope

__all__ = [
    "NAME_WIDTH",
    "beside",
    "clipped",
    "depth_chart",
    "layer_map",
    "loss_chart",
    "sparkline",
    "value_text",
]

#: Characters of a name beside a map, or in the list of runs.
NAME_WIDTH = 28


def loss_chart(series: Series, width: int, rows: int) -> list[Text]:
    """A loss with its name, its newest value, and the values at its edges."""
    room = width - 10
    name = shortened(plain(series.name).plain, max(8, width - 12))
    drawn, bottom, top = _band_of(series, rows, 2 * room)
    lines = [Text.assemble((name, "bold"), "  ", value_text(series.newest))]
    for i, line in enumerate(drawn):
        edge = {0: number(top), rows - 1: number(bottom)}.get(i, "")
        lines.append(Text.assemble((f"{edge:>9} ", "dim"), line))
    return lines


def sparkline(series: Series) -> Text:
    """A loss in one line, two columns to a character."""
    (line,), _, _ = _band_of(series, 1)
    return line


def _band_of(
    series: Series, rows: int, columns: int | None = None
) -> tuple[list[Text], float, float]:
    envelope = series.envelope
    low = envelope.low["mean"][0].astype(float)
    high = envelope.high["mean"][0].astype(float)
    bad = envelope.bad[0] > 0
    if columns is not None:
        low = _resized(low, columns, np.fmin)
        high = _resized(high, columns, np.fmax)
        bad = _resized(bad, columns, np.logical_or)
    return band(low, high, bad, rows)


def depth_chart(
    envelope: Envelope, collection: str, width: int, rows: int
) -> list[Text]:
    """The newest magnitudes by depth, from the first layer to the last."""
    any_rows = envelope.rows > 0
    last = np.where(
        any_rows.any(1), any_rows.shape[1] - 1 - any_rows[:, ::-1].argmax(1), 0
    )
    every = np.arange(len(last))
    newest = envelope.mean["l2"][every, last].astype(float)
    bad = envelope.bad[every, last] > 0
    newest = _resized(newest, width, np.fmax)
    bad = _resized(bad, width, np.logical_or)
    lines = [Text.assemble((f"{collection}, newest, by depth", "bold"))]
    return lines + depth_bars(on_log_scale(newest), bad, rows)


def layer_map(envelope: Envelope, collection: str, width: int, room: int) -> list[Text]:
    """The map of layers over steps: the greatest magnitude in each cell."""
    high, bad = envelope.high["l2"].astype(float), envelope.bad > 0
    names = envelope.names
    # Two rows of cells in a line; where there is room, each layer has a line.
    rows = 2 * min(room - 1, len(names)) if room > 1 else 2
    firsts = np.arange(rows) * len(names) // rows
    columns = width - NAME_WIDTH - 1
    for axis, size in ((0, rows), (1, columns)):
        high = _resized(high, size, np.fmax, axis)
        bad = _resized(bad, size, np.logical_or, axis)
    shares = on_log_scale(high)
    positive = high[high > 0]
    between = (
        f"{number(float(positive.min()))} to {number(float(positive.max()))}"
        if positive.size
        else "all zero"
    )
    edges = envelope.edges
    what = f"{collection}, l2 {between}, log; steps {edges[0]:,} to {edges[-1] - 1:,}"
    head = Text(what, "bold")
    if bad.any():
        head.append("  NaN or infinite", BAD_STYLE)
    lines = [clipped(head, width)]
    for i, line in enumerate(half_block_map(shares, bad)):
        name = shortened(plain(names[firsts[2 * i]]).plain, NAME_WIDTH)
        padded = name + " " * (NAME_WIDTH + 1 - cell_len(name))
        lines.append(Text.assemble(padded, line))
    return lines


def _resized(
    values: NDArray[Any], columns: int, merge: np.ufunc, axis: int = 0
) -> NDArray[Any]:
    """Repeat what is too little for so many columns, or merge neighbours."""
    n = values.shape[axis]
    places = np.arange(columns) * n // columns
    if n <= columns:
        resized: NDArray[Any] = np.take(values, places, axis)
    else:
        resized = merge.reduceat(values, places, axis=axis)
    return resized


def beside(left: Text, right: Text, column: int) -> Text:
    """Two lines in one, the right one from that column on."""
    line = left.copy()
    line.append(" " * max(1, column - cell_len(left.plain)))
    line.append_text(right)
    return line


def clipped(line: Text, width: int) -> Text:
    """The same line, cut to that width."""
    line.truncate(width, overflow="ellipsis")
    return line


def value_text(value: float) -> str:
    """A value in few characters."""
    return "NaN" if math.isnan(value) else number(value)
