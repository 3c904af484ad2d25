"""tdbg watches a model while it trains.

Importing this package is cheap: its names are loaded when they are first used, and
only ``tdbg.pytorch``, which has the hook, imports a framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tdbg import shown

if TYPE_CHECKING:
    from tdbg import errors, invariants, modes, rules
    from tdbg._core import __version__
    from tdbg.compare import diff
    from tdbg.config.collections import Collection, CollectionKeys
    from tdbg.config.retention import Retention
    from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
    from tdbg.errors import TdbgError, TrainingStopped
    from tdbg.modes import ModeKeys
    from tdbg.query import sql
    from tdbg.rules import learn
    from tdbg.trial import create_trial

__all__ = [
    "Collection",
    "CollectionKeys",
    "ModeKeys",
    "ReductionConfig",
    "Retention",
    "SaveConfig",
    "SaveConfigMode",
    "TdbgError",
    "TrainingStopped",
    "__version__",
    "create_trial",
    "diff",
    "errors",
    "invariants",
    "learn",
    "modes",
    "rules",
    "sql",
]

# Where each public name lives; submodules are their own home.
_HOME = {
    "Collection": "tdbg.config.collections",
    "CollectionKeys": "tdbg.config.collections",
    "ModeKeys": "tdbg.modes",
    "ReductionConfig": "tdbg.config.schedules",
    "Retention": "tdbg.config.retention",
    "SaveConfig": "tdbg.config.schedules",
    "SaveConfigMode": "tdbg.config.schedules",
    "TdbgError": "tdbg.errors",
    "TrainingStopped": "tdbg.errors",
    "__version__": "tdbg._core",
    "create_trial": "tdbg.trial",
    "diff": "tdbg.compare",
    "learn": "tdbg.rules",
    "sql": "tdbg.query",
}
_SUBMODULES = (
    "actions",
    "config",
    "errors",
    "export",
    "invariants",
    "modes",
    "notebook",
    "pytorch",
    "report",
    "rules",
    "run",
    "stats",
)


# Loaded when a notebook first shows a value.
shown.load_with(lambda: importlib.import_module("tdbg.notebook.cells"))


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
