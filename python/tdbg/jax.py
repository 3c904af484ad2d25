"""tdbg for JAX: compiled steps, optax, Flax and Equinox.

    import tdbg.jax as tj

    hook = tj.Hook("runs/digits", include_collections=["weights", "gradients"])
    tx = tj.optax(optax.adam(1e-3))
    step = hook.jit(train_step, donate_argnums=(0, 1))

Implements docs/jax.md.
"""

from __future__ import annotations

from tdbg.capture.dry_run import DryRunSummary
from tdbg.capture.overhead import Overhead
from tdbg.config import CollectionConfig, HookConfig
from tdbg.config.collections import Collection, CollectionKeys, Role
from tdbg.config.schedules import ReductionConfig, SaveConfig, SaveConfigMode
from tdbg.errors import TrainingStopped
from tdbg.hooks.jax.hook import Hook, del_hook, get_hook, set_hook, watch
from tdbg.hooks.jax.optax import optax
from tdbg.hooks.jax.tracing import tap
from tdbg.modes import ModeKeys, modes

__all__ = [
    "Collection",
    "CollectionConfig",
    "CollectionKeys",
    "DryRunSummary",
    "Hook",
    "HookConfig",
    "ModeKeys",
    "Overhead",
    "ReductionConfig",
    "Role",
    "SaveConfig",
    "SaveConfigMode",
    "TrainingStopped",
    "del_hook",
    "get_hook",
    "modes",
    "optax",
    "set_hook",
    "tap",
    "watch",
]
