"""What takes captured data: the core, or a stand-in that stores nothing."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tdbg._core import Capture

__all__ = ["NullWriter", "Writer"]

Writer: TypeAlias = "Capture | NullWriter"


class NullWriter:
    """Has the methods of ``_core.Capture`` that capture calls, and stores nothing.

    For ranks that do not write, and as the base of writers that only measure.
    """

    n_lost = 0

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def define(self, *_: Any, **__: Any) -> int:
        """Return a new id."""
        return next(self._ids)

    def _ignore(self, *_: Any, **__: Any) -> None:
        return None

    def _accept(self, *_: Any, **__: Any) -> bool:
        return True

    statistics = add_rows = refuse = flush = _ignore
    values = unit_summary = count_histogram = scalar = event = _accept
    span = spans = samples = _accept
    end_step = close = graph_replayed = _accept

    def graph_id(self, *_: Any) -> int:
        """Return 0, which is no graph's id."""
        return 0

    def device_state(self, _: int) -> dict[str, Any]:
        """Return nothing: there is no device."""
        return {}

    def counters(self) -> dict[str, int]:
        """Return zeros."""
        return {"offered": 0, "written": 0, "dropped": 0, "failed": 0}

    def lost_tensors(self) -> dict[str, tuple[list[tuple[str, int, int]], int]]:
        """Return nothing: nothing was dropped."""
        return {}

    def losses(self) -> dict[str, tuple[int, int, int]]:
        """Return nothing: nothing was dropped."""
        return {}
