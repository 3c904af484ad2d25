"""tdbg for MXNet Gluon: the hook.

    import tdbg.mxnet as tm

    hook = tm.Hook("runs/digits", include_collections=["weights", "gradients"])
    hook.register_block(net)
    hook.register_loss(loss)

Implements docs/mxnet.md, docs/steps.md and docs/configuration.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdbg.capture.dry_run import DryRunSummary
from tdbg.capture.overhead import Overhead
from tdbg.config import CollectionConfig, HookConfig
from tdbg.config.collections import Collection, CollectionKeys
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import TrainingStopped
from tdbg.hooks.mxnet.hook import Hook, del_hook, get_hook, set_hook
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
