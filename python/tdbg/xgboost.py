"""tdbg for XGBoost: the hook.

    import tdbg.xgboost as tx

    hook = tx.Hook("runs/x", include_collections=["feature_importance", "trees"])
    xgboost.train(parameters, train, 100, evals=[(valid, "valid")], callbacks=[hook])

Implements docs/xgboost.md.
"""

from __future__ import annotations

from tdbg.config import CollectionConfig, HookConfig
from tdbg.config.collections import Collection, CollectionKeys
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.hooks.xgboost.hook import Hook, del_hook, get_hook, set_hook
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
