"""Which parts of a model come with installed packages as they are.

A part that such a model leaves unused (the pooler of an encoder whose tokens are
averaged) is no mistake of the program; one in a module of the program may be.

Thread safety: pure functions.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from torch import nn

from tdbg.hooks.pytorch.module_tree import named_modules

__all__ = ["package_models_in"]


def package_models_in(root: nn.Module) -> dict[str, str]:
    """Paths of modules that models of packages have made, each with its model's path.

    PyTorch's own modules belong to what is around them: anybody puts them together.
    The model is the outermost module below which nothing is of the program.
    """
    result: dict[str, str] = {}
    makers: dict[str, str | None] = {"": None}
    for path, module in named_modules(root):
        parent = path.rpartition(".")[0]
        maker = makers.get(parent) if path else None
        package = type(module).__module__.partition(".")[0]
        if package != "torch":
            is_installed = _is_installed(package)
            maker = (path if maker is None else maker) if is_installed else None
        makers[path] = maker
        if maker is not None:
            result[path] = maker
    return result


@functools.lru_cache(maxsize=1024)
def _is_installed(package: str) -> bool:
    """Whether a package lies in a folder to which an installer has put packages."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if package == "__main__" or not file:
        return False
    folder = Path(file).parent
    if Path(file).stem == "__init__":
        folder = folder.parent
    try:
        return any(each.name.endswith(".dist-info") for each in folder.iterdir())
    except OSError:
        return False
