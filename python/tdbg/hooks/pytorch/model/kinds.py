"""Kinds of PyTorch's modules and losses, by their classes and the bases of these.

Classes go by name: some libraries call activations of their own as PyTorch does.

Thread safety: pure functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from tdbg.config.class_kinds import kind_of_class
from tdbg.config.kinds import Kind

__all__ = ["classes_and_kind", "kind_of", "loss_name"]


def loss_name(loss: Callable[..., Any]) -> str:
    """Return the name of a loss: that of its function or class."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    name: str = getattr(loss, "__name__", None) or type(loss).__name__
    return "lambda" if name == "<lambda>" else name


def kind_of(module: Any) -> Kind | None:
    """Return the kind of a module, or of a loss that is any function.

    Example:
        >>> kind_of(nn.LazyLinear(3)), kind_of(nn.functional.mse_loss)
        (<Kind.LINEAR: 'linear'>, <Kind.MSE: 'mse'>)
    """
    names = _classes(module) if isinstance(module, nn.Module) else [loss_name(module)]
    return next(filter(None, map(kind_of_class, names)), None)


def classes_and_kind(module: nn.Module) -> frozenset[str]:
    """Return what a need may call a module: by its kind, its class or a base class."""
    kind = kind_of(module)
    return frozenset(_classes(module)) | ({kind} if kind else set())


def _classes(module: nn.Module) -> Iterator[str]:
    """The names of its class and of all that this derives from, but the common ones."""
    for each in type(module).__mro__:
        if each is not nn.Module and each is not object:
            yield each.__name__
