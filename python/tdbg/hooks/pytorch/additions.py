"""Notices modules and parameters that are put into modules.

PyTorch says so for ``add_module``, ``setattr`` and all that comes down to them, of
every module of the process.  What bypasses them (``module._modules[...] = ...``) is
not seen here.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

__all__ = ["Additions"]


class Additions:
    """Says whether something was put into one of the modules inside a root.

    That is a module, or a parameter; one in the place of another has its name, and is
    none.

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

        def added_parameter(parent: nn.Module, name: str, _: Any) -> None:
            if parent._parameters.get(name) is None:
                added(parent, name, None)

        self._handles: list[Any] = [
            register_module_module_registration_hook(added),
            register_module_parameter_registration_hook(added_parameter),
        ]

    def look(self) -> None:
        """What is inside now is known from now on."""
        root = self._root()
        self.has_any = False
        self._known = set() if root is None else {id(each) for each in root.modules()}

    def remove(self) -> None:
        """Look no longer."""
        for handle in self._handles:
            handle.remove()
