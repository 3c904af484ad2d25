"""tdbg for CatBoost: the hook.

    import tdbg.catboost as tc

    with tc.Hook("runs/c") as hook:
        model.fit(x, y, eval_set=(x_valid, y_valid), callbacks=[hook])

Implements docs/catboost.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.hooks import face
from tdbg.hooks.catboost.hook import Hook, del_hook, get_hook, set_hook
from tdbg.hooks.face import *  # noqa: F403

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
