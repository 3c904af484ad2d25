"""Classes of single modules, which know where in the model their module is.

Python looks ``__call__`` up on the class: to replace it for one module, that is made an
instance of a subclass. Libraries that flatten a module and build it again keep the
class, and so the place.

Thread safety: a module is changed by the thread that traces it; classes are kept.
"""

from __future__ import annotations

import functools
from typing import Any

from tdbg.hooks.jax.modules import show_call
from tdbg.hooks.jax.tracing import present_trace

__all__ = ["Subclasses"]

_BASE = "_tdbg_base"


class Subclasses:
    """Makes subclasses, one for each class and place."""

    def __init__(self) -> None:
        self._made: dict[tuple[type, str], type] = {}

    def change(self, module: Any, path: str) -> None:
        """Let a module show what it is given and returns, to the present trace."""
        base = type(module)
        if hasattr(base, _BASE):
            return
        made = self._made.get((base, path))
        if made is None:
            made = self._made[base, path] = _subclass(base, path)
        object.__setattr__(module, "__class__", made)

    def restore(self, module: Any) -> None:
        """Give a module its own class back."""
        base = getattr(type(module), _BASE, None)
        if base is not None:
            object.__setattr__(module, "__class__", base)


def _subclass(base: type, path: str) -> type:
    call: Any = base.__call__

    @functools.wraps(call)
    def show(self: Any, *args: Any, **kwargs: Any) -> Any:
        trace = present_trace()
        if trace is None:
            return call(self, *args, **kwargs)

        def call_module(*shown: Any) -> Any:
            return call(self, *shown, **kwargs)

        return show_call(trace, path, base, self, args, call_module)

    names = {"__call__": show, _BASE: base, "__module__": base.__module__}
    return type(base)(base.__name__, (base,), names)
