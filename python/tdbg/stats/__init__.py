"""Statistics of tensors in Python: rows, histograms, number formats, the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdbg.stats.histogram import Histogram

__all__ = ["Histogram"]


def __getattr__(name: str) -> object:
    # Imported when it is first used: it loads the core, which rules do not need.
    if name == "Histogram":
        from tdbg.stats.histogram import Histogram

        return Histogram
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
