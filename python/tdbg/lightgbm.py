"""tdbg for LightGBM: the hook.

    import tdbg.lightgbm as tl

    hook = tl.Hook("runs/l", include_collections=["feature_importance", "trees"])
    lightgbm.train(parameters, train, 100, valid_sets=[valid], callbacks=[hook])

Implements docs/lightgbm.md.
"""

from __future__ import annotations

from tdbg.config import CollectionConfig, HookConfig
from tdbg.config.collections import Collection, CollectionKeys
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.hooks.lightgbm.hook import Hook, del_hook, get_hook, set_hook
from tdbg.modes import ModeKeys

__all__ = [
    "Collection",
    "CollectionConfig",
    "CollectionKeys",
    "Hook",
    "HookConfig",
    "ModeKeys",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "del_hook",
    "get_hook",
    "set_hook",
]
