"""Gradients and updates of an optax optimizer.

Thread safety: that of ``jax``: a trace belongs to its thread.
"""

from __future__ import annotations

from typing import Any

import jax

from tdbg.capture.naming import gradient_name, update_name
from tdbg.config.collections import Role
from tdbg.hooks.jax.names import path_name
from tdbg.hooks.jax.tracing import present_trace

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
        trace = present_trace()
        if trace is None:
            return inner.update(updates, state, params, **extra)
        for path, _ in jax.tree_util.tree_flatten_with_path(updates)[0]:
            trace.facts.add_trained(path_name(path))
        shown = trace.show_tree(
            updates, lambda _, path: gradient_name(path), Role.GRADIENT
        )
        result, new_state = inner.update(shown, state, params, **extra)
        result = trace.show_tree(result, lambda _, path: update_name(path), Role.UPDATE)
        return result, new_state

    return GradientTransformationExtraArgs(inner.init, update)
