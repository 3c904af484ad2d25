"""Axes of matplotlib for plots, and names as it writes them.

Thread safety: as matplotlib's: one figure, one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.drawing.markup import shortened, visible
from tdbg.errors import ConfigurationError

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
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        msg = f"plots need matplotlib ({error}): pip install 'tdbg[plot]'"
        raise ConfigurationError(msg) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure.add_subplot()


def text_of(text: str, longest: int = LONGEST) -> str:
    """A name as matplotlib writes it: a dollar is none of its formulas."""
    return shortened(visible(text), longest).replace("$", r"\$")
