"""Notices modules that are put into others.

PyTorch says so for ``add_module``, ``setattr`` and all that comes down to them, of
every module of the process.  What bypasses them (``module._modules[...] = ...``) is
not seen here.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

__all__ = ["Additions"]


class Additions:
    """Says whether a module was put into one of those inside a root.

    Args:
        root: Not kept alive.

    Attributes:
        has_any: Whether one was since the last ``look``.
    """

    def __init__(self, root: weakref.ref[nn.Module]) -> None:
        self._root = root
        self._known: set[int] = set()
        self.has_any = False
        self.look()
        # The hook is global: it must not keep this training alive.
        me = weakref.ref(self)

        def added(parent: nn.Module, _: str, __: Any) -> None:
            additions = me()
            if additions is not None and id(parent) in additions._known:
                additions.has_any = True

        self._handle = register_module_module_registration_hook(added)

    def look(self) -> None:
        """What is inside now is known from now on."""
        root = self._root()
        self.has_any = False
        self._known = set() if root is None else {id(each) for each in root.modules()}

    def remove(self) -> None:
        """Look no longer."""
        self._handle.remove()
