"""tdbg for JAX: compiled steps, optax, Flax and Equinox.

    import tdbg.jax as tj

    hook = tj.Hook("runs/digits", include_collections=["weights", "gradients"])
    tx = tj.optax(optax.adam(1e-3))
    step = hook.jit(train_step, donate_argnums=(0, 1))

Implements docs/jax.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdbg.hooks import face
from tdbg.hooks.face import *  # noqa: F403
from tdbg.hooks.jax.gradients import optax
from tdbg.hooks.jax.hook import Hook, del_hook, get_hook, set_hook, watch
from tdbg.hooks.jax.tracing import tap

if TYPE_CHECKING:
    from tdbg.trial import create_trial

__all__ = [
    "Hook",
    "create_trial",
    "del_hook",
    "get_hook",
    "optax",
    "set_hook",
    "tap",
    "watch",
]
__all__ += face.__all__
__getattr__ = face.loader(__name__)
