"""What a rule needs captured, as plain data.

A rule states it, a hook acts on it; neither imports the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tdbg.collections import BUILT_IN
from tdbg.config import nearest
from tdbg.errors import ConfigurationError

__all__ = ["Needs", "merge_needs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be captured so that a rule can decide.

    Args:
        collections: Names of built-in collections.
        statistics: Whether it reads their statistics.
        unit_summaries: Whether it reads the unit summaries of activations.
        histogram: Whether it reads their histograms.
        raw: Whether it reads raw values.
        interval: Statistics at least every so many steps; None: as the hook does.

    Raises:
        ConfigurationError: If a collection is unknown or the interval is below 1.
    """

    collections: frozenset[str] = frozenset()
    statistics: bool = True
    unit_summaries: bool = False
    histogram: bool = False
    raw: bool = False
    interval: int | None = None

    def __post_init__(self) -> None:
        names = frozenset(str(name) for name in self.collections)
        object.__setattr__(self, "collections", names)
        for name in names:
            if name not in BUILT_IN:
                msg = f"needs: no collection {name!r}; {nearest(name, BUILT_IN)}"
                raise ConfigurationError(msg)
        if self.interval is not None and self.interval < 1:
            msg = f"needs: the interval must be at least 1, not {self.interval}"
            raise ConfigurationError(msg)


def merge_needs(needs: Iterable[Needs]) -> Needs:
    """What serves all of them."""
    every = list(needs)
    intervals = [need.interval for need in every if need.interval is not None]
    return Needs(
        collections=frozenset().union(*(need.collections for need in every)),
        statistics=any(need.statistics for need in every),
        unit_summaries=any(need.unit_summaries for need in every),
        histogram=any(need.histogram for need in every),
        raw=any(need.raw for need in every),
        interval=min(intervals) if intervals else None,
    )
