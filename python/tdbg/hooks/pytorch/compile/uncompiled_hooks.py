"""Forward pre-hooks that are gone for good before the compiler traces anything.

The checks of a training's beginning use these.  They see no call inside a compiled
graph, so they give up as something is compiled.

Thread safety: the training's thread.  Errors: none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from tdbg.hooks.pytorch.compile.tracing import hooks_may_go, now

__all__ = ["UncompiledHooks"]


class UncompiledHooks:
    """Forward pre-hooks that are gone for good before the compiler traces anything.

    Attributes:
        born: When these were made, for ``hooks_may_go``.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self.born = now()

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def may_be_added(self) -> bool:
        """Whether no hook has become part of a graph; if so, add hooks now."""
        return hooks_may_go(self)

    def add(
        self,
        module: nn.Module,
        called: Callable[..., Any],
        *,
        with_kwargs: bool = False,
    ) -> None:
        """Call *called* before each forward of a module."""
        handle = module.register_forward_pre_hook(called, with_kwargs=with_kwargs)
        self._handles.append(handle)

    def set_idle(self, is_idle: bool) -> None:
        """Let the compiler trace none of these."""
        if not is_idle:
            self.remove()

    def remove(self) -> None:
        """Take all off."""
        while self._handles:
            self._handles.pop().remove()
