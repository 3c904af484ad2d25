"""tdbg for LightGBM: the hook.

    import tdbg.lightgbm as tl

    hook = tl.Hook("runs/l", include_collections=["feature_importance", "trees"])
    lightgbm.train(parameters, train, 100, valid_sets=[valid], callbacks=[hook])

Implements docs/lightgbm.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.hooks import face
from tdbg.hooks.face import *  # noqa: F403
from tdbg.hooks.lightgbm.hook import Hook, del_hook, get_hook, set_hook

if TYPE_CHECKING:
    from tdbg.trial import create_trial

__all__ = [
    "Hook",
    "create_trial",
    "del_hook",
    "get_hook",
    "set_hook",
]
__all__ += face.__all__
__getattr__ = face.loader(__name__)
