"""Sees at which tensor each backward pass begins: the loss, whoever computed it.

``torch.autograd.backward``, which ``Tensor.backward`` calls too, is wrapped while
anybody watches, and so is ``GradScaler.scale``, whose results are no losses.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.compiler import is_compiling

from tdbg.hooks.pytorch.callbacks import is_in_backward

__all__ = ["BackwardRoots"]

_ORIGINAL = "_tdbg_original"
# The watchers; while there are any, the functions are wrapped.
_watchers: weakref.WeakSet[BackwardRoots] = weakref.WeakSet()
# The latest result of a scaler, and what it was made of.
_scaled: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []


class BackwardRoots:
    """Tells the single number that a backward pass begins at, before it does.

    Args:
        tell: Told of it; what it raises is lost. None of it before scaling.
    """

    def __init__(self, tell: Callable[[torch.Tensor], None]) -> None:
        self._tell = tell
        _watchers.add(self)
        _wrap(torch.autograd, "backward", _backward)
        _wrap(GradScaler, "scale", _scale)

    def tell(self, root: torch.Tensor) -> None:
        """A backward pass begins there."""
        with contextlib.suppress(Exception):
            self._tell(root)

    def remove(self) -> None:
        """Watch no longer."""
        _watchers.discard(self)
        if not _watchers:
            _scaled.clear()
            _unwrap(torch.autograd, "backward")
            _unwrap(GradScaler, "scale")


def _backward(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_compiling() and not is_in_backward():
        root = _root(tensors)
        if root is not None:
            for watcher in list(_watchers):
                watcher.tell(root)
    return original(tensors, *args, **kwargs)


def _root(tensors: Any) -> torch.Tensor | None:
    if isinstance(tensors, tuple | list) and len(tensors) == 1:
        tensors = tensors[0]
    if not isinstance(tensors, torch.Tensor) or tensors.numel() != 1:
        return None
    for result, unscaled in _scaled:
        if result() is tensors:
            return unscaled
    return tensors.detach()


def _scale(original: Any, scaler: GradScaler, outputs: Any) -> Any:
    result = original(scaler, outputs)
    if isinstance(result, torch.Tensor) and isinstance(outputs, torch.Tensor):
        _scaled[:] = [(weakref.ref(result), outputs.detach())]
    return result


def _wrap(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    if hasattr(original, _ORIGINAL):
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(wrapper, _ORIGINAL, original)
    setattr(owner, name, wrapper)


def _unwrap(owner: Any, name: str) -> None:
    original = getattr(getattr(owner, name), _ORIGINAL, None)
    if original is not None:
        setattr(owner, name, original)
