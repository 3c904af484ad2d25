"""tdbg for TensorFlow: trainings that apply the gradients of tapes.

    import tdbg.tensorflow as tt

    hook = tt.watch(model, optimizer, out="runs/tape")

Models that are trained by ``fit`` are captured by ``tdbg.keras``.  Importing it imports
no TensorFlow.

Implements docs/tensorflow.md, docs/steps.md and docs/configuration.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdbg.capture.dry_run import DryRunSummary
from tdbg.capture.overhead import Overhead
from tdbg.config import CollectionConfig, HookConfig
from tdbg.config.collections import Collection, CollectionKeys
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import TrainingStopped
from tdbg.hooks.tensorflow.watch import Hook, del_hook, get_hook, set_hook, watch
from tdbg.modes import ModeKeys, modes

if TYPE_CHECKING:
    from tdbg.trial import create_trial

__all__ = [
    "Collection",
    "CollectionConfig",
    "CollectionKeys",
    "DryRunSummary",
    "Hook",
    "HookConfig",
    "ModeKeys",
    "Overhead",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "TrainingStopped",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
    "watch",
]


def __getattr__(name: str) -> Any:
    """``create_trial`` is loaded when it is first used."""
    if name == "create_trial":
        from tdbg.trial import create_trial

        return create_trial
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
