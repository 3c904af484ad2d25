"""tdbg for MXNet Gluon: the hook.

    import tdbg.mxnet as tm

    hook = tm.Hook("runs/digits", include_collections=["weights", "gradients"])
    hook.register_block(net)
    hook.register_loss(loss)

Implements docs/mxnet.md, docs/steps.md and docs/configuration.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.hooks import face
from tdbg.hooks.face import *  # noqa: F403
from tdbg.hooks.mxnet.hook import Hook, del_hook, get_hook, set_hook

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
