"""The names that the public module of every framework has.

``tdbg.pytorch``, ``tdbg.keras`` and the others import all of them, and add their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tdbg.capture.dry_run import DryRunSummary
from tdbg.capture.overhead import Overhead
from tdbg.config import CollectionConfig, HookConfig
from tdbg.config.collections import Collection, CollectionKeys, Role
from tdbg.config.profiler import ProfilerConfig, WindowConfig
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import TrainingStopped
from tdbg.modes import ModeKeys, modes

__all__ = [
    "Collection",
    "CollectionConfig",
    "CollectionKeys",
    "DryRunSummary",
    "HookConfig",
    "ModeKeys",
    "Overhead",
    "ProfilerConfig",
    "ReductionConfig",
    "Role",
    "SaveConfig",
    "SaveConfigMode",
    "TrainingStopped",
    "WindowConfig",
    "modes",
]


def loader(module: str) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``, which imports ``create_trial`` on first use.

    A training needs no reader, so that importing a face loads none.
    """

    def load(name: str) -> Any:
        if name == "create_trial":
            from tdbg.trial import create_trial

            return create_trial
        msg = f"module {module!r} has no attribute {name!r}"
        raise AttributeError(msg)

    return load
