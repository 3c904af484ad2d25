"""Charts of a run: a loss over steps, a map of layers over steps, and their depth.

Each is a list of lines of text.  Where there are more rows or columns than there is
room, neighbours are merged: the greatest, the least, and whether any is not finite.
No chart drops a number: a cell shows the stretch from its least to its greatest value,
and NaN and infinities are marked beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.text import Text

from tdbg.cli.output import number, plain, shortened
from tdbg.cli.top.board import LossCurve
from tdbg.drawing.colors import PHASES
from tdbg.trial import Envelope
from tdbg.view import loss_text
from tdbg.view.time import PhaseBreakdown, duration_text, percent_text

__all__ = [
    "NAME_WIDTH",
    "beside",
    "clipped",
    "depth_chart",
    "layer_map",
    "loss_chart",
    "on_log_scale",
    "sparkline",
    "time_bar",
]

Floats = NDArray[np.float64]

# What is not finite: reddish purple of Okabe and Ito, which viridis does not have.
BAD_STYLE = Style(color="#CC79A7", bold=True)
_BAD = (204, 121, 167)
_LINE_STYLE = Style(color="#56B4E9")

# Colours of viridis at equal distances (van der Walt and Smith, 2015).
_VIRIDIS = np.array(
    [
        (68, 1, 84),
        (72, 40, 120),
        (62, 74, 137),
        (49, 104, 142),
        (38, 130, 142),
        (31, 158, 137),
        (53, 183, 121),
        (109, 205, 89),
        (180, 222, 44),
        (253, 231, 37),
    ],
    float,
)
# Dots of a braille character, from the top: of its left column, and of its right.
_DOTS = np.array([[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]])
# A bar of phases is so wide at most, and names those of so large a share.
_BAR_WIDTH, _LEAST_NAMED = 40, 0.03
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def on_log_scale(values: Floats) -> Floats:
    """Shares from 0 to 1 of what lies between the least and the greatest magnitude.

    By the logarithm: gradients of neighbouring layers differ by powers of ten.  Zeros
    are 0, NaN stays NaN, and values that are all alike are 0.5.
    """
    positive = values > 0
    logs = np.log10(values, out=np.full(values.shape, np.nan), where=positive)
    known = logs[positive]
    if not known.size:
        return np.where(np.isnan(values), np.nan, 0.0)
    low, high = float(known.min()), float(known.max())
    shares = (logs - low) / (high - low) if high > low else np.full(logs.shape, 0.5)
    # The least magnitude is told apart from zero.
    shares = 0.04 + 0.96 * shares
    return np.where(positive, shares, np.where(np.isnan(values), np.nan, 0.0))


def half_block_map(shares: Floats, bad: NDArray[np.bool_]) -> list[Text]:
    """Lines of a map, two rows of cells in each line of text.

    Args:
        shares: (rows, columns) from 0 to 1; NaN: there is nothing.
        bad: (rows, columns) whether something is not finite there.
    """
    n_rows = len(shares)
    colors = _colors(shares)
    lines = []
    for top in range(0, n_rows, 2):
        line = Text(no_wrap=True)
        for column in range(shares.shape[1]):
            upper = _cell(shares, bad, colors, top, column)
            lower = (
                _cell(shares, bad, colors, top + 1, column)
                if top + 1 < n_rows
                else None
            )
            if upper is None and lower is None:
                line.append("·", Style(dim=True))
            elif lower is None:
                line.append("▀", Style(color=upper))
            else:
                line.append("▄", Style(color=lower, bgcolor=upper))
        lines.append(line)
    return lines


def _colors(shares: Floats) -> NDArray[np.int64]:
    place = np.nan_to_num(np.clip(shares, 0, 1)) * (len(_VIRIDIS) - 1)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, len(_VIRIDIS) - 1)
    part = (place - low)[..., None]
    mixed = _VIRIDIS[low] * (1 - part) + _VIRIDIS[high] * part
    colors: NDArray[np.int64] = np.rint(mixed).astype(np.int64)
    return colors


def _cell(
    shares: Floats,
    bad: NDArray[np.bool_],
    colors: NDArray[np.int64],
    row: int,
    column: int,
) -> Color | None:
    if bad[row, column]:
        return Color.from_rgb(*_BAD)
    if np.isnan(shares[row, column]):
        return None
    return Color.from_rgb(*colors[row, column].tolist())


def band(
    low: Floats, high: Floats, bad: NDArray[np.bool_], height: int
) -> tuple[list[Text], float, float]:
    """A line over columns, two to a character, from the least to the greatest value.

    Args:
        low: (columns,) the least value of each; NaN: there is none.
        high: (columns,) the greatest.
        bad: (columns,) whether something is not finite there; drawn as ``!``.
        height: Lines of text.

    Returns:
        The lines, and the values at the lower and the upper edge.
    """
    width = -(-len(low) // 2)
    dots = 4 * height
    grid = np.zeros((height, width), np.int64)
    drawn = np.flatnonzero(~np.isnan(low))
    bottom = float(low[drawn].min()) if drawn.size else 0.0
    top = float(high[drawn].max()) if drawn.size else 1.0
    span = top - bottom
    for column in drawn.tolist():
        first, last = (
            round((value - bottom) / span * (dots - 1)) if span > 0 else dots // 2
            for value in (float(low[column]), float(high[column]))
        )
        for dot in range(first, last + 1):
            from_top = dots - 1 - dot
            grid[from_top // 4, column // 2] |= _DOTS[column % 2, from_top % 4]
    lines = []
    for row in range(height):
        line = Text(no_wrap=True)
        for cell in range(width):
            if row == 0 and bad[2 * cell : 2 * cell + 2].any():
                line.append("!", BAD_STYLE)
            else:
                line.append(chr(0x2800 + int(grid[row, cell])), _LINE_STYLE)
        lines.append(line)
    return lines, bottom, top


def depth_bars(shares: Floats, bad: NDArray[np.bool_], height: int) -> list[Text]:
    """Bars side by side, one for each share; ``!`` where something is not finite."""
    colors = _colors(shares)
    lines = []
    for row in range(height):
        line = Text(no_wrap=True)
        for i, share in enumerate(shares.tolist()):
            if bad[i]:
                line.append("!", BAD_STYLE)
                continue
            filled = 0.0 if np.isnan(share) else share * height * 8
            eighths = min(8, max(0, round(filled - 8 * (height - 1 - row))))
            color = Color.from_rgb(*colors[i].tolist())
            line.append(_EIGHTHS[eighths], Style(color=color))
        lines.append(line)
    return lines


#: Characters of a name beside a map, or in the list of runs.
NAME_WIDTH = 28


def loss_chart(series: LossCurve, width: int, rows: int) -> list[Text]:
    """A loss with its name, its newest value, and the values at its edges."""
    room = width - 10
    name = shortened(plain(series.name).plain, max(8, width - 12))
    drawn, bottom, top = _band_of(series, rows, 2 * room)
    lines = [Text.assemble((name, "bold"), "  ", loss_text(series.newest))]
    for i, line in enumerate(drawn):
        edge = {0: number(top), rows - 1: number(bottom)}.get(i, "")
        lines.append(Text.assemble((f"{edge:>9} ", "dim"), line))
    return lines


def sparkline(series: LossCurve) -> Text:
    """A loss in one line, two columns to a character."""
    (line,), _, _ = _band_of(series, 1)
    return line


def time_bar(breakdown: PhaseBreakdown, width: int) -> Text:
    """Where the time of a step goes: a bar of coloured characters, and names."""
    line = Text.assemble(("time  ", "bold"))
    room = min(_BAR_WIDTH, max(10, width // 4))
    edges = np.cumsum([0.0, *(each.share for each in breakdown.phases)])
    places = np.rint(room * edges / max(float(edges[-1]), 1e-9)).astype(int)
    for each, cells in zip(breakdown.phases, np.diff(places).tolist(), strict=True):
        line.append("█" * cells, Style(color=PHASES[each.phase]))
    line.append(f"  a step {duration_text(breakdown.median_ns)}  ")
    for each in sorted(breakdown.phases, key=lambda each: -each.share):
        if each.share >= _LEAST_NAMED:
            line.append("■ ", Style(color=PHASES[each.phase]))
            line.append(f"{each.name} {percent_text(each.share)}  ")
    return line


def _band_of(
    series: LossCurve, rows: int, columns: int | None = None
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
    """Cut a line to a width, in place, and return it."""
    line.truncate(width, overflow="ellipsis")
    return line
