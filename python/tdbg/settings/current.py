"""The hook of a process, as ``get_hook`` finds it.

A forked child has none until it makes one: the parent's records nothing there.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Current"]

_Hook = TypeVar("_Hook")


class Current(Generic[_Hook]):
    """Remembers one object for this process.

    Thread safety: a reference is replaced at once; the last one wins.
    """

    def __init__(self) -> None:
        self._find: tuple[int, Callable[[], _Hook | None]] | None = None

    def remember(self, hook: _Hook) -> None:
        """This is the one, as long as somebody else holds it."""
        self._find = os.getpid(), weakref.ref(hook)

    def keep(self, hook: _Hook) -> None:
        """This is the one, and is held."""
        self._find = os.getpid(), lambda: hook

    def forget(self) -> None:
        """There is none."""
        self._find = None

    def current(self) -> _Hook | None:
        """The one of this process, or None."""
        find = self._find
        return find[1]() if find is not None and find[0] == os.getpid() else None
