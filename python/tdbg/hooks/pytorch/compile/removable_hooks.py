"""Hooks that are taken off their modules while they capture nothing.

Thread safety: the training's thread.  Errors: none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from tdbg.hooks.pytorch.compile.tracing import hooks_may_go, now
from tdbg.hooks.pytorch.model.callbacks import Callback

__all__ = ["RemovableHooks"]


class RemovableHooks:
    """Hooks that are taken off their modules while they capture nothing.

    PyTorch calls a module without hooks directly.  A hook is taken off only if its dict
    holds nothing but hooks of tdbg: beside other hooks nothing would be saved, and it
    would lose its place among them.  A hook that the program registers meanwhile,
    prepended or not, stands behind it afterwards.  If a module is compiled, all hooks
    stay: the compiler guards them and would compile again.
    """

    def __init__(self) -> None:
        self.born = now()
        # By key: a module (not kept alive), the name of its dict, and the hook.
        self._places: dict[
            int, tuple[weakref.ref[nn.Module], str, Callable[..., Any]]
        ] = {}

    def add(self, module: nn.Module, name: str, key: int) -> None:
        """Let the hook of *key* in the module's dict *name* be taken off."""
        callback = getattr(module, name)[key]
        self._places[key] = weakref.ref(module), name, callback

    def forget(self, key: int) -> None:
        """Forget a hook that was removed for ever."""
        self._places.pop(key, None)

    def set_idle(self, is_idle: bool) -> None:
        """Take the hooks off while idle; else put them back."""
        places = self._places
        if not is_idle:
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
        """Put no hook back any longer."""
        self._places.clear()


def _may_all_go(hooks: dict[int, Any]) -> bool:
    return all(
        isinstance(each, Callback) and not each.puts_back for each in hooks.values()
    )


def _is_compiled(module: nn.Module | None) -> bool:
    """Return whether ``compile``, its own or a wrapper's, has compiled a module."""
    return module is not None and (
        module._compiled_call_impl is not None or "_orig_mod" in module._modules
    )
