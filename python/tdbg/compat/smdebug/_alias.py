"""Answers ``import smdebug`` with this package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from tdbg.errors import TdbgError

__all__ = ["install"]

ALIAS = "smdebug"
HOME = "tdbg.compat.smdebug"


class _Loader:
    """Loads a module of ours under a second name."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It has run already, and keeps the specification of its own name.
        module.__spec__ = self._spec


class _Finder:
    """Finds the modules of smdebug among ours."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        del path, target
        if fullname != ALIAS and not fullname.startswith(f"{ALIAS}."):
            return None
        home = HOME + fullname[len(ALIAS) :]
        found = importlib.util.find_spec(home)
        if found is None:
            msg = (
                f"No module named {fullname!r}: tdbg answers for smdebug here and does "
                "not have it; docs/migrating-from-smdebug.md lists what it has"
            )
            raise ModuleNotFoundError(msg, name=fullname)
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _Loader(home), is_package=is_package)  # type: ignore[arg-type]


def install() -> None:
    """Let ``import smdebug...`` in this process mean tdbg's face of it.

    Call it before anything imports smdebug; again it does nothing.

    Raises:
        TdbgError: If the real smdebug is loaded already.
    """
    if any(isinstance(item, _Finder) for item in sys.meta_path):
        return
    loaded = sys.modules.get(ALIAS)
    if loaded is not None:
        msg = (
            f"smdebug is loaded already, from {getattr(loaded, '__file__', None)}: "
            "call tdbg.compat.smdebug.install() before it is imported"
        )
        raise TdbgError(msg)
    sys.meta_path.insert(0, _Finder())
