"""Pictures of numbers in the cells of a terminal.

No picture drops a number: what falls into one cell is drawn as a stretch from its
least to its greatest value, and NaN and infinities are marked beside it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.style import Style
from rich.text import Text

__all__ = ["BAD_STYLE", "band", "depth_bars", "half_block_map", "on_log_scale"]

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
