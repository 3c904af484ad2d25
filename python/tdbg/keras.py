"""tdbg for Keras 3, on TensorFlow, JAX and torch: the hook.

    import tdbg.keras as tk

    hook = tk.Hook("runs/digits", include_collections=["weights", "gradients"])
    model.fit(x, y, epochs=5, callbacks=[hook])

Importing it imports no Keras, and so chooses no backend.

Implements docs/keras.md, docs/steps.md and docs/configuration.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.hooks import face
from tdbg.hooks.face import *  # noqa: F403
from tdbg.hooks.keras.hook import Hook, del_hook, get_hook, set_hook

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
