"""tdbg watches a model while it trains.

Nothing heavy is imported here: the names below are loaded when they are first
used, and no framework is until ``tdbg.pytorch`` is, where hooks live.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdbg import errors, modes, rules
    from tdbg._core import __version__
    from tdbg.collections import Collection, CollectionKeys
    from tdbg.config import ReductionConfig, SaveConfig, SaveConfigMode
    from tdbg.errors import TdbgError, TrainingStopped
    from tdbg.modes import ModeKeys
    from tdbg.trial import create_trial

__all__ = [
    "Collection",
    "CollectionKeys",
    "ModeKeys",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "TdbgError",
    "TrainingStopped",
    "__version__",
    "create_trial",
    "errors",
    "modes",
    "rules",
]

# Where each public name lives; submodules are their own home.
_HOME = {
    "Collection": "tdbg.collections",
    "CollectionKeys": "tdbg.collections",
    "ModeKeys": "tdbg.modes",
    "ReductionConfig": "tdbg.config",
    "SaveConfig": "tdbg.config",
    "SaveConfigMode": "tdbg.config",
    "TdbgError": "tdbg.errors",
    "TrainingStopped": "tdbg.errors",
    "__version__": "tdbg._core",
    "create_trial": "tdbg.trial",
}
_SUBMODULES = (
    "actions",
    "attach",
    "errors",
    "export",
    "histogram",
    "modes",
    "pytorch",
    "rules",
)


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name in _SUBMODULES:
        return importlib.import_module(f"tdbg.{name}")
    if name not in _HOME:
        msg = f"module 'tdbg' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
