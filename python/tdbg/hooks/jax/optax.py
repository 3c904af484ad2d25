"""Gradients and updates of an optax optimizer.

Thread safety: that of ``jax``: a trace belongs to its thread.
"""

from __future__ import annotations

from typing import Any

from tdbg.hooks.jax.gradients import show_update

__all__ = ["optax"]


def optax(tx: Any) -> Any:
    """Return an optax transformation that captures its gradients and its updates.

        tx = tj.optax(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)))

    ``gradient/<parameter>`` is what ``update`` is given: wrap all of a chain for the
    gradients before they are clipped, or what follows the clipping for those that the
    optimizer uses. ``update/<parameter>`` is what it returns. The state is that of
    *tx*: checkpoints with and without the wrapper are the same.

    Args:
        tx: A ``GradientTransformation``. With ``optax.MultiSteps`` and
            ``optax.apply_if_finite`` wrap these, not what is inside of them.

    Returns:
        A ``GradientTransformationExtraArgs``.
    """
    from optax import GradientTransformationExtraArgs, with_extra_args_support

    inner = with_extra_args_support(tx)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return show_update(inner.update, updates, state, params, **extra)

    return GradientTransformationExtraArgs(inner.init, update)
