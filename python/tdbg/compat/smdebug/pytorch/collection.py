"""``smdebug.pytorch.collection``."""

from __future__ import annotations

import re
import weakref
from typing import Any

from torch import nn

from tdbg.compat.smdebug.core import collection as core
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.core.framework_hook import SmdebugNames
from tdbg.compat.smdebug.exceptions import SMDebugTypeError

__all__ = [
    "Collection",
    "CollectionKeys",
    "CollectionManager",
    "ModuleNames",
    "name_modules",
]

# How the names of a module's inputs and outputs begin, in the hook that registered the
# module last.
_names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


class Collection(core.Collection):
    """A named set of tensors; its arguments are those of ``core.collection``."""

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        self._modules: dict[nn.Module, tuple[bool, bool]] = {}
        self._named: set[nn.Module] = set()
        super().__init__(name, *args, **kwargs)

    @property
    def modules(self) -> dict[nn.Module, tuple[bool, bool]]:
        """The modules, each with whether its inputs and its outputs belong to it."""
        return self._modules

    def add_module_tensors(
        self, module: nn.Module, inputs: bool = False, outputs: bool = True
    ) -> None:
        """Add the inputs, the outputs or both of a module.

        The module may be registered with the hook later.

        Raises:
            SMDebugTypeError: If *module* is no module.
        """
        given: object = module
        if not isinstance(given, nn.Module):
            msg = f"expected an nn.Module, not {given!r}"
            raise SMDebugTypeError(msg)
        self._modules[module] = (bool(inputs), bool(outputs))
        self._named.discard(module)
        self.find_modules()

    def find_modules(self) -> None:
        """Include the tensors of modules whose names are known by now."""
        for module, (inputs, outputs) in self._modules.items():
            path = _names.get(module)
            if path is None or module in self._named:
                continue
            self._named.add(module)
            for requested, direction in ((inputs, "input"), (outputs, "output")):
                if requested:
                    self.include(rf"^{re.escape(path)}_{direction}_\d+$")


class CollectionManager(core.CollectionManager):
    """The collections of a training with PyTorch; by default those of every hook."""

    kind = Collection
    _creates_default = True


def name_modules(root: nn.Module, name: str, prefix: str) -> None:
    """Remember the names of a root and of the modules inside it.

    Args:
        root: The root.
        name: Name of the root.
        prefix: How the names of the modules inside begin, before their paths.
    """
    for path, module in root.named_modules():
        _names[module] = prefix + path if path else name


class ModuleNames(SmdebugNames):
    """``Net_conv1.weight``, ``gradient/Net_conv1.weight``, ``relu_output_1``.

    The names of parameters begin with the class of their root, and the index of inputs
    and outputs runs on over the calls of a module in a forward.

    Attributes:
        latest: The name of the root that was named last, and how the names of the
            modules inside it begin.
    """

    def __init__(self) -> None:
        self.latest = ("", "")

    def before_parameters(self, root: str, prefix: str) -> str:
        """Return the name of the root, which is unique, and an underscore."""
        self.latest = (root, prefix)
        return f"{root}_"
