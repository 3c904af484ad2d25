"""tdbg for Keras 3, on TensorFlow, JAX and torch: the hook.

    import tdbg.keras as tk

    hook = tk.Hook("runs/digits", include_collections=["weights", "gradients"])
    model.fit(x, y, epochs=5, callbacks=[hook])

Importing it imports no Keras, and so chooses no backend.

Implements docs/keras.md, docs/steps.md and docs/configuration.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdbg.capture.dry_run import DryRunSummary
from tdbg.capture.overhead import Overhead
from tdbg.config import CollectionConfig, HookConfig
from tdbg.config.collections import Collection, CollectionKeys
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import TrainingStopped
from tdbg.hooks.keras.hook import Hook, del_hook, get_hook, set_hook
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
]


def __getattr__(name: str) -> Any:
    """``create_trial`` is loaded when it is first used."""
    if name == "create_trial":
        from tdbg.trial import create_trial

        return create_trial
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
