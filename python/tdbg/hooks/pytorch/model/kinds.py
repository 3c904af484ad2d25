"""Kinds of PyTorch's modules and losses, by the names of classes and base classes.

Names suffice: some libraries name their own activations like those of PyTorch.

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
    """Return the name of a loss, which is the name of its function or class."""
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
    """Return all names of a module's type: its kind, its class and base classes."""
    kind = kind_of(module)
    return frozenset(_classes(module)) | ({kind} if kind else set())


def _classes(module: nn.Module) -> Iterator[str]:
    """Yield the names of a module's class and base classes, without the common ones."""
    for each in type(module).__mro__:
        if each is not nn.Module and each is not object:
            yield each.__name__
