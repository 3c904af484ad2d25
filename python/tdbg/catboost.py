"""tdbg for CatBoost: the hook.

    import tdbg.catboost as tc

    with tc.Hook("runs/c") as hook:
        model.fit(x, y, eval_set=(x_valid, y_valid), callbacks=[hook])

Implements docs/catboost.md.
"""

from __future__ import annotations

from tdbg.config import CollectionConfig, HookConfig
from tdbg.config.collections import Collection, CollectionKeys
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.hooks.catboost.hook import Hook, del_hook, get_hook, set_hook
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
