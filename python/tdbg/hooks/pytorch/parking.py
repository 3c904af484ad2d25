"""Hooks of modules that go and come back, always at the same place."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

__all__ = ["Parking"]


class Parking:
    """Hooks that are taken off their modules while nothing is wanted of them.

    A module without hooks is called without a detour.  Only a hook that is alone in
    its dict goes: beside others nothing would be saved, and its place among them
    would be lost.  Whoever comes meanwhile, prepended or not, stands behind it when it
    is back.
    """

    def __init__(self) -> None:
        # The dicts are the modules', which are not kept alive.
        self._places: list[tuple[weakref.ref[Any], int, Callable[..., Any]]] = []

    def add(self, hooks: OrderedDict[int, Callable[..., Any]], key: int) -> None:
        """A hook that may go, of this dict of a module."""
        self._places.append((weakref.ref(hooks), key, hooks[key]))

    def park(self, is_quiet: bool) -> None:
        """Take the hooks off, or put those back that went."""
        for place, key, callback in self._places:
            hooks = place()
            if hooks is None:
                continue
            if not is_quiet:
                if key not in hooks:
                    hooks[key] = callback
                    hooks.move_to_end(key, last=False)
            elif len(hooks) == 1:
                hooks.pop(key, None)

    def close(self) -> None:
        """Put nothing back any longer."""
        self._places.clear()
