"""``smdebug.mxnet``: the one line to change.

import tdbg.compat.smdebug.mxnet as smd
"""

from __future__ import annotations

from tdbg.compat.smdebug.core.base import ModeKeys as modes  # noqa: N813
from tdbg.compat.smdebug.core.collection import CollectionKeys
from tdbg.compat.smdebug.core.reduction_config import ReductionConfig
from tdbg.compat.smdebug.core.save_config import SaveConfig, SaveConfigMode
from tdbg.compat.smdebug.mxnet.collection import Collection, CollectionManager
from tdbg.compat.smdebug.mxnet.hook import Hook, del_hook, get_hook, set_hook
from tdbg.compat.smdebug.trials import create_trial

__all__ = [
    "Collection",
    "CollectionKeys",
    "CollectionManager",
    "Hook",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]
