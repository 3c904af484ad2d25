"""tdbg for PyTorch: the hook and ``watch``.

    import tdbg.pytorch as td

    hook = td.Hook("runs/digits", include_collections=["weights", "gradients"])
    hook.register_module(model)
    hook.register_loss(criterion)

Implements docs/steps.md and docs/configuration.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.hooks import face
from tdbg.hooks.face import *  # noqa: F403
from tdbg.hooks.pytorch.hook import Hook, del_hook, get_hook, set_hook
from tdbg.hooks.pytorch.watch import watch

if TYPE_CHECKING:
    from tdbg.trial import create_trial

__all__ = [
    "Hook",
    "create_trial",
    "del_hook",
    "get_hook",
    "set_hook",
    "watch",
]
__all__ += face.__all__
__getattr__ = face.loader(__name__)
