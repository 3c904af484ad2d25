"""Calls of a ``GradScaler`` that steps an optimizer or skips its step.

Its methods are wrapped while anybody watches.

Thread safety: the training's thread.  Errors: none.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

__all__ = ["unwatch_scalers", "watch_scalers"]

_STEP = "step"
_DECISION = "_maybe_opt_step"


class _Watcher(Protocol):
    def scaler_steps(self, scale: Any) -> None: ...

    def scaler_begins(self, optimizer: Optimizer) -> None: ...

    def scaler_ends(self, optimizer: Optimizer) -> None: ...


# The watchers; while there are any, the methods are wrapped.
_watchers: weakref.WeakSet[_Watcher] = weakref.WeakSet()


def watch_scalers(watcher: _Watcher) -> None:
    """Call *watcher* with the scale, and before and after each decision to step.

    The watcher must not raise.
    """
    _watchers.add(watcher)
    for name, wrap in ((_STEP, _wrap_step), (_DECISION, _wrap_decision)):
        original = getattr(GradScaler, name, None)
        if original is None or hasattr(original, "_tdbg_original"):
            continue
        wrapped: Any = wrap(original)
        wrapped._tdbg_original = original
        setattr(GradScaler, name, wrapped)


def unwatch_scalers(watcher: _Watcher) -> None:
    """Call *watcher* no longer."""
    _watchers.discard(watcher)
    if _watchers:
        return
    for name in (_STEP, _DECISION):
        original = getattr(getattr(GradScaler, name, None), "_tdbg_original", None)
        if original is not None:
            setattr(GradScaler, name, original)


def _wrap_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
        scale = None
        with contextlib.suppress(Exception):
            scale = scaler._scale if scaler.is_enabled() else None
        for each in list(_watchers):
            each.scaler_steps(scale)
        try:
            return original(scaler, *args, **kwargs)
        finally:
            for each in list(_watchers):
                each.scaler_steps(None)

    return step


def _wrap_decision(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def decide(
        scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        for each in list(_watchers):
            each.scaler_begins(optimizer)
        result = original(scaler, optimizer, *args, **kwargs)
        for each in list(_watchers):
            each.scaler_ends(optimizer)
        return result

    return decide
