"""``smdebug.tensorflow``: the one line to change.

import tdbg.compat.smdebug.tensorflow as smd
"""

from __future__ import annotations

from tdbg.compat.smdebug.core.base import ModeKeys as modes  # noqa: N813
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig, SaveConfigMode
from tdbg.compat.smdebug.left_out import refuse
from tdbg.compat.smdebug.tensorflow.collection import Collection
from tdbg.compat.smdebug.tensorflow.hook import KerasHook, del_hook, get_hook, set_hook
from tdbg.compat.smdebug.trials import create_trial

__all__ = [
    "Collection",
    "CollectionKeys",
    "KerasHook",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]

__getattr__ = refuse(__name__)
