"""Axes of matplotlib for plots, and names as it writes them.

Thread safety: as matplotlib's: one figure, one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.config.libraries import library
from tdbg.drawing.markup import shortened, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["axes_of", "text_of"]

LONGEST = 60


def axes_of(ax: Axes | None, *, width: float = 7.0, height: float = 3.6) -> Axes:
    """The axes to draw on: those given, or those of a figure that nobody else has.

    Raises:
        ConfigurationError: If matplotlib is not installed.
    """
    if ax is not None:
        return ax
    drawing = library("matplotlib.figure", "'tdbg[plot]'", "a plot")
    figure = drawing.Figure(figsize=(width, height), layout="constrained")
    axes: Axes = figure.add_subplot()
    return axes


def text_of(text: str, longest: int = LONGEST) -> str:
    """A name as matplotlib writes it: a dollar is none of its formulas."""
    return shortened(visible(text), longest).replace("$", r"\$")
