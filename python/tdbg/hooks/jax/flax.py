"""Modules of Flax, Linen and NNX, while a variant with taps is traced.

Thread safety: a trace belongs to its thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from tdbg.hooks.jax.modules import functions_shown, same, show_call
from tdbg.hooks.jax.subclasses import Subclasses
from tdbg.hooks.jax.tracing import CaptureTrace

__all__ = ["intercept_linen", "intercept_nnx"]

_nnx_classes = Subclasses()


@contextlib.contextmanager
def intercept_linen(trace: CaptureTrace, _: Any) -> Iterator[Callable[[Any], Any]]:
    """Show what modules of Linen are given and return."""
    from flax import linen

    def show(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        path = "/".join(module.path)

        def call_module(*shown: Any) -> Any:
            return call(*shown, **kwargs)

        return show_call(trace, path, type(module), module, args, call_module)

    with functions_shown(), linen.intercept_methods(show):
        yield same


@contextlib.contextmanager
def intercept_nnx(
    trace: CaptureTrace, arguments: Any
) -> Iterator[Callable[[Any], Any]]:
    """Show what the modules of NNX that a step is called with are given and return.

    JAX makes them anew for each trace: until it ends each is of a subclass of its own,
    which knows where the module is. Transformations of NNX within the step keep it.
    """
    del trace
    from flax import nnx

    leaves = jax.tree_util.tree_leaves(arguments, is_leaf=_is_nnx_module)
    changed: list[Any] = []
    try:
        for model in filter(_is_nnx_module, leaves):
            for path, module in nnx.iter_modules(model):
                if callable(module):
                    _nnx_classes.change(module, "/".join(map(str, path)))
                    changed.append(module)
        with functions_shown():
            yield same
    finally:
        for module in changed:
            _nnx_classes.restore(module)


def _is_nnx_module(value: Any) -> bool:
    from flax import nnx

    return isinstance(value, nnx.Module) and not isinstance(value, nnx.Optimizer)
