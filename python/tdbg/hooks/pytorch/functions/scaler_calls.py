"""Calls of a ``GradScaler`` that steps an optimizer or skips its step.

Its methods are wrapped while anybody watches.

Thread safety: the training's thread.  Errors: none.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

__all__ = ["ScalerStep", "unwatch_scalers", "watch_scalers"]

_STEP = "step"
_DECISION = "_maybe_opt_step"


class ScalerStep(NamedTuple):
    """A step that a scaler is about to make.

    Attributes:
        scale: That of the gradients; None: it scales none.
        optimizer: The one that it steps.
        is_unscaled: Whether the program has called ``unscale_`` in this step.
    """

    scale: Any
    optimizer: Optimizer
    is_unscaled: bool


class _Watcher(Protocol):
    def scaler_steps(self, step: ScalerStep | None) -> None: ...

    def scaler_begins(self, optimizer: Optimizer) -> None: ...

    def scaler_ends(self, optimizer: Optimizer) -> None: ...


# The watchers; while there are any, the methods are wrapped.
_watchers: weakref.WeakSet[_Watcher] = weakref.WeakSet()


def watch_scalers(watcher: _Watcher) -> None:
    """Call *watcher* around each step of a scaler, and around its decision to step.

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
    def step(
        scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        begun = None
        with contextlib.suppress(Exception):
            begun = _step_of(scaler, optimizer)
        for each in list(_watchers):
            each.scaler_steps(begun)
        try:
            return original(scaler, optimizer, *args, **kwargs)
        finally:
            for each in list(_watchers):
                each.scaler_steps(None)

    return step


def _step_of(scaler: GradScaler, optimizer: Optimizer) -> ScalerStep:
    if not scaler.is_enabled():
        return ScalerStep(None, optimizer, False)
    state = scaler._per_optimizer_states.get(id(optimizer))
    is_unscaled = state is not None and state["stage"] is OptState.UNSCALED
    return ScalerStep(scaler._scale, optimizer, is_unscaled)


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
