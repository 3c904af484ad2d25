"""``smdebug.pytorch.collection``."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn

from tdbg.compat.smdebug.core import collection as core
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.exceptions import SMDebugTypeError
from tdbg.config import ReductionConfig

__all__ = ["Collection", "CollectionKeys", "name_modules"]

# What the names of a module's inputs and outputs begin with, in the hook that it was
# registered with last.
_names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


class Collection(core.Collection):
    """A named set of tensors of a training with PyTorch."""

    def __init__(
        self,
        name: str,
        include_regex: str | Iterable[str] | None = None,
        tensor_names: Iterable[str] | None = None,
        reduction_config: ReductionConfig | None = None,
        save_config: Any = None,
        save_histogram: bool = True,
    ) -> None:
        self._modules: dict[nn.Module, tuple[bool, bool]] = {}
        self._named: set[nn.Module] = set()
        super().__init__(
            name,
            include_regex,
            tensor_names,
            reduction_config,
            save_config,
            save_histogram,
        )

    @property
    def modules(self) -> dict[nn.Module, tuple[bool, bool]]:
        """Modules with whether their inputs and outputs belong to it."""
        return self._modules

    def add_module_tensors(
        self, module: nn.Module, inputs: bool = False, outputs: bool = True
    ) -> None:
        """Inputs, outputs or both of a module belong to it.

        The module may be registered with the hook later.

        Raises:
            SMDebugTypeError: If it is no module.
        """
        given: object = module
        if not isinstance(given, nn.Module):
            msg = f"expected an nn.Module, not {given!r}"
            raise SMDebugTypeError(msg)
        self._modules[module] = (bool(inputs), bool(outputs))
        self._named.discard(module)
        self.find_modules()

    def find_modules(self) -> None:
        """Include what can be named by now."""
        for module, (inputs, outputs) in self._modules.items():
            path = _names.get(module)
            if path is None or module in self._named:
                continue
            self._named.add(module)
            for wanted, direction in ((inputs, "input"), (outputs, "output")):
                if wanted:
                    self.include(rf"^{re.escape(path)}_{direction}_\d+$")


def name_modules(root: nn.Module, name: str, prefix: str) -> None:
    """Remember what the modules of a root are called.

    Args:
        root: The root.
        name: Its own name.
        prefix: What goes before the paths of those inside.
    """
    for path, module in root.named_modules():
        _names[module] = prefix + path if path else name
