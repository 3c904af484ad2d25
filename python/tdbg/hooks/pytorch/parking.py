"""Hooks of modules that go and come back, always at the same place."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from tdbg.hooks.pytorch.callbacks import Callback
from tdbg.hooks.pytorch.compiled import now
from tdbg.hooks.pytorch.compiled_hooks import hooks_may_go

__all__ = ["Parking"]


class Parking:
    """Hooks that are taken off their modules while nothing is wanted of them.

    A module without hooks is called without a detour.  Only a hook whose dict holds
    none but such hooks of tdbg goes: beside others nothing would be saved, and its
    place among them would be lost.  Whoever comes meanwhile, prepended or not, stands
    behind it when it is back.  Where a module is compiled all stay: the compiler
    looks at hooks, and would compile anew without them.
    """

    def __init__(self) -> None:
        self.born = now()
        # By key: a module, the name of its dict, and what stands there; the module
        # is not kept alive.
        self._places: dict[
            int, tuple[weakref.ref[nn.Module], str, Callable[..., Any]]
        ] = {}

    def add(self, module: nn.Module, name: str, key: int) -> None:
        """A hook that may go, of the module's dict of this name."""
        callback = getattr(module, name)[key]
        self._places[key] = weakref.ref(module), name, callback

    def forget(self, key: int) -> None:
        """That hook is gone for good."""
        self._places.pop(key, None)

    def park(self, is_quiet: bool) -> None:
        """Take the hooks off, or put those back that went."""
        places = self._places
        if not is_quiet:
            # The last one first: each goes to the front of its dict.
            for key, (place, name, callback) in reversed(places.items()):
                module = place()
                hooks = None if module is None else getattr(module, name)
                if hooks is not None and key not in hooks:
                    hooks[key] = callback
                    hooks.move_to_end(key, last=False)
            return
        if any(_is_compiled(place()) for place, _, _ in places.values()):
            return
        if not hooks_may_go(self):
            return
        for key, (place, name, _) in places.items():
            module = place()
            hooks = None if module is None else getattr(module, name)
            if hooks and (len(hooks) == 1 or _may_all_go(hooks)):
                hooks.pop(key, None)

    def close(self) -> None:
        """Put nothing back any longer."""
        self._places.clear()


def _may_all_go(hooks: dict[int, Any]) -> bool:
    return all(isinstance(each, Callback) and each.may_go for each in hooks.values())


def _is_compiled(module: nn.Module | None) -> bool:
    """Whether it is, by its own method or by ``torch.compile``, which wraps it."""
    return module is not None and (
        module._compiled_call_impl is not None or "_orig_mod" in module._modules
    )
