"""tdbg for XGBoost: the hook.

    import tdbg.xgboost as tx

    hook = tx.Hook("runs/x", include_collections=["feature_importance", "trees"])
    xgboost.train(parameters, train, 100, evals=[(valid, "valid")], callbacks=[hook])

Implements docs/xgboost.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.hooks import face
from tdbg.hooks.face import *  # noqa: F403
from tdbg.hooks.xgboost.hook import Hook, del_hook, get_hook, set_hook

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
