"""Modules of Equinox, while a variant with taps is traced.

Thread safety: a trace belongs to its thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from tdbg.hooks.jax.modules import functions_shown
from tdbg.hooks.jax.names import join
from tdbg.hooks.jax.subclasses import Subclasses
from tdbg.hooks.jax.tracing import CaptureTrace

__all__ = ["intercept_equinox"]

_classes = Subclasses()


@contextlib.contextmanager
def intercept_equinox(
    trace: CaptureTrace, arguments: Any
) -> Iterator[Callable[[Any], Any]]:
    """Show what the modules that a step is called with are given and return.

    ``equinox.filter_jit`` makes them anew for each trace: each is of a subclass of its
    own inside, which knows where it is; what the step returns is of their classes.
    """
    del trace
    leaves = jax.tree_util.tree_leaves(arguments, is_leaf=_is_module)
    for model in filter(_is_module, leaves):
        for path, module in _modules(model, ""):
            if callable(module):
                _classes.change(module, path)
    try:
        with functions_shown():
            yield _restored
    finally:
        _restored(arguments)


def _restored(tree: Any) -> Any:
    for leaf in jax.tree_util.tree_leaves(tree, is_leaf=_is_module):
        if _is_module(leaf):
            for _, module in _modules(leaf, ""):
                _classes.restore(module)
    return tree


def _is_module(value: Any) -> bool:
    import equinox

    return isinstance(value, equinox.Module)


def _modules(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a module and those inside of it, in fields and in lists of fields."""
    if _is_module(value):
        yield path, value
        for item in dataclasses.fields(value):
            yield from _modules(getattr(value, item.name, None), join(path, item.name))
    elif isinstance(value, tuple | list):
        for index, each in enumerate(value):
            yield from _modules(each, join(path, str(index)))
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _modules(each, join(path, str(key)))
