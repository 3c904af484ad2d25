"""tdbg's hook without compression."""

from __future__ import annotations

from benchmarks.overhead.contenders import tdbg


class Watcher(tdbg.Watcher):
    """The same files, larger."""

    captures = frozenset({"all", "weights", "gradients"})
    settings = {"codec": "none"}  # noqa: RUF012 - annotated where it is declared
