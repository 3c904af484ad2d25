"""Sees the steps that a gradient scaler makes, and those that it skips.

A ``GradScaler`` that meets a gradient that is not finite does not call the
optimizer at all, so nothing else tells that a step has passed.  Its decision is
made in one method, which is wrapped while anybody watches; so is its step, which
tells the scale of the gradients as backward left them.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.amp.grad_scaler import GradScaler

__all__ = ["unwatch_scalers", "watch_scalers"]

_STEP = "step"
_DECISION = "_maybe_opt_step"


class _Watcher(Protocol):
    def scaler_steps(self, scale: Any) -> None: ...

    def scaler_begins(self, optimizer: torch.optim.Optimizer) -> None: ...

    def scaler_ends(self, optimizer: torch.optim.Optimizer) -> None: ...


# The watchers; while there are any, the methods are wrapped.
_watchers: weakref.WeakSet[_Watcher] = weakref.WeakSet()


def watch_scalers(watcher: _Watcher) -> None:
    """Tell *watcher* the scale, and before and after each decision.

    It must not raise.
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
    """Tell it no longer."""
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
        scaler: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        for each in list(_watchers):
            each.scaler_begins(optimizer)
        result = original(scaler, optimizer, *args, **kwargs)
        for each in list(_watchers):
            each.scaler_ends(optimizer)
        return result

    return decide
