"""Hooks of modules that go and come back, always at the same place."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["Parking"]


class Parking:
    """Hooks that are taken off their modules while nothing is wanted of them.

    A module without hooks is called without a detour.  Only a hook that is alone in
    its dict goes: beside others nothing would be saved, and its place among them
    would be lost.  Whoever comes meanwhile, prepended or not, stands behind it when it
    is back.  Where a module is compiled all stay: the compiler looks at hooks, and
    would compile anew without them.
    """

    def __init__(self) -> None:
        # A module, the name of its dict, and what stands there; not kept alive.
        self._places: list[
            tuple[weakref.ref[nn.Module], str, int, Callable[..., Any]]
        ] = []

    def add(self, module: nn.Module, name: str, key: int) -> None:
        """A hook that may go, of the module's dict of this name."""
        callback = getattr(module, name)[key]
        self._places.append((weakref.ref(module), name, key, callback))

    def park(self, is_quiet: bool) -> None:
        """Take the hooks off, or put those back that went."""
        if is_quiet and any(_is_compiled(place[0]()) for place in self._places):
            return
        for place, name, key, callback in self._places:
            module = place()
            if module is None:
                continue
            hooks = getattr(module, name)
            if not is_quiet:
                if key not in hooks:
                    hooks[key] = callback
                    hooks.move_to_end(key, last=False)
            elif len(hooks) == 1:
                hooks.pop(key, None)

    def close(self) -> None:
        """Put nothing back any longer."""
        self._places.clear()


def _is_compiled(module: nn.Module | None) -> bool:
    """Whether it is, by its own method or by ``torch.compile``, which wraps it."""
    return module is not None and (
        module._compiled_call_impl is not None or "_orig_mod" in module._modules
    )
