"""Sees the steps that a gradient scaler skips.

A ``GradScaler`` that meets a gradient that is not finite does not call the
optimizer at all, so nothing else tells that a step has passed.  Its decision is
made in one method, which is wrapped while anybody watches.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

import torch
from torch.amp.grad_scaler import GradScaler

__all__ = ["unwatch_scalers", "watch_scalers"]

_METHOD = "_maybe_opt_step"


class _Watcher(Protocol):
    def scaler_begins(self, optimizer: torch.optim.Optimizer) -> None: ...

    def scaler_ends(self, optimizer: torch.optim.Optimizer) -> None: ...


# The watchers; while there are any, the method is wrapped.
_watchers: weakref.WeakSet[_Watcher] = weakref.WeakSet()


def watch_scalers(watcher: _Watcher) -> None:
    """Tell *watcher* before and after each decision; it must not raise."""
    _watchers.add(watcher)
    original = getattr(GradScaler, _METHOD, None)
    if original is None or hasattr(original, "_tdbg_original"):
        return

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

    decide._tdbg_original = original  # type: ignore[attr-defined]
    setattr(GradScaler, _METHOD, decide)


def unwatch_scalers(watcher: _Watcher) -> None:
    """Tell it no longer."""
    _watchers.discard(watcher)
    original = getattr(getattr(GradScaler, _METHOD, None), "_tdbg_original", None)
    if original is not None and not _watchers:
        setattr(GradScaler, _METHOD, original)
