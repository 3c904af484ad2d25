"""Gradients of a step, their loss, and the updates that an optimizer makes of them.

Thread safety: a trace belongs to its thread; others see none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax

from tdbg.capture.naming import gradient_name, update_name
from tdbg.config.collections import Role
from tdbg.hooks.jax.names import path_name
from tdbg.hooks.jax.step_capture import LOSS
from tdbg.hooks.jax.tracing import present_trace

__all__ = ["note_frozen", "optax", "show_gradients", "show_update"]


def show_gradients(gradients: Any, loss: Any = None) -> Any:
    """Return gradients, which are shown to the present trace as ``gradient/<name>``.

    Their paths are taken for the names of the parameters, which an optimizer trains.

    Args:
        gradients: A pytree of arrays.
        loss: What they are of, if it is shown, too, as the loss of the step: of a step
            that does not return it.
    """
    trace = present_trace()
    if trace is None:
        return gradients
    for path, _ in jax.tree_util.tree_flatten_with_path(gradients)[0]:
        trace.facts.add_trained(path_name(path))
    with contextlib.ExitStack() as stack:
        if loss is not None:
            stack.enter_context(trace.after(trace.show(loss, LOSS, Role.LOSS)))
        return trace.show_tree(
            gradients, lambda _, path: gradient_name(path), Role.GRADIENT
        )


def note_frozen(updates: Any) -> None:
    """Note the parameters whose updates ``optax.set_to_zero`` is given: all freeze."""
    trace = present_trace()
    if trace is not None:
        for path, _ in jax.tree_util.tree_flatten_with_path(updates)[0]:
            trace.facts.add_frozen(path_name(path))


def show_update(
    update: Callable[..., Any],
    updates: Any,
    *args: Any,
    shows_gradients: bool = True,
    **extra: Any,
) -> Any:
    """Call the ``update`` of an optax transformation; show its gradients and result.

    Args:
        update: The function.
        updates: Its first argument, the gradients.
        args: The others: the state, and the parameters.
        shows_gradients: Whether the gradients are shown here.
        extra: Those by name.

    Returns:
        What it returns: the updates and the new state.
    """
    trace = present_trace()
    if trace is None:
        return update(updates, *args, **extra)
    gradients = show_gradients(updates) if shows_gradients else updates
    result, state = update(gradients, *args, **extra)
    result = trace.show_tree(result, lambda _, path: update_name(path), Role.UPDATE)
    return result, state


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

    def init(params: Any) -> Any:
        state = inner.init(params)
        trace = present_trace()
        if trace is not None:
            trace.made_states.append(state)
        return state

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        trace = present_trace()
        if trace is not None:
            trace.facts.add_chain(tx)
            trace.use_state(state)
        return show_update(inner.update, updates, state, params, **extra)

    return GradientTransformationExtraArgs(init, update)
