"""``smdebug.xgboost``: the one line to change.

import tdbg.compat.smdebug.xgboost as smd
"""

from __future__ import annotations

from tdbg.compat.smdebug.core.base import ModeKeys as modes  # noqa: N813
from tdbg.compat.smdebug.core.collection import Collection, CollectionKeys
from tdbg.compat.smdebug.core.save_config import SaveConfig, SaveConfigMode
from tdbg.compat.smdebug.trials import create_trial
from tdbg.compat.smdebug.xgboost.hook import Hook, del_hook, get_hook, set_hook

__all__ = [
    "Collection",
    "CollectionKeys",
    "Hook",
    "SaveConfig",
    "SaveConfigMode",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]
