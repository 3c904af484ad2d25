"""Nothing watches."""

from __future__ import annotations

from benchmarks.overhead import contenders
from benchmarks.overhead.training import Snapshot


class Watcher(contenders.Watcher):
    """Does nothing: how much slower is that?"""

    captures = frozenset({"nothing"})

    def verify(self, snapshot: Snapshot) -> None:
        """There is nothing to verify."""
