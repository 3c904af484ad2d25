"""tdbg for TensorFlow: trainings that apply the gradients of tapes.

    import tdbg.tensorflow as tt

    hook = tt.watch(model, optimizer, out="runs/tape")

Models that are trained by ``fit`` are captured by ``tdbg.keras``.  Importing it imports
no TensorFlow.

Implements docs/tensorflow.md, docs/steps.md and docs/configuration.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.hooks import face
from tdbg.hooks.face import *  # noqa: F403
from tdbg.hooks.tensorflow.watch import Hook, del_hook, get_hook, set_hook, watch

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
