"""Calls that begin backward passes, and the scaling of losses before them.

``torch.autograd.backward`` and ``GradScaler.scale`` are wrapped while anybody watches.

Thread safety: the training's thread watches; any thread may call.

Errors: none into the program; errors of watchers are logged and lost.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import compiler
from torch._C import _current_graph_task_id
from torch.amp.grad_scaler import GradScaler
from torch.compiler import is_dynamo_compiling

from tdbg.hooks.pytorch.compile.tracing import never_compiled
from tdbg.hooks.pytorch.functions.timed_calls import time_call, untime_call
from tdbg.hooks.pytorch.model.call_context import NOT_IN_BACKWARD
from tdbg.run.profile_tables import Phase

if TYPE_CHECKING:
    from tdbg._core import CountedCall, StepCounter

__all__ = ["BackwardRoots", "unscaled"]

_log = logging.getLogger("tdbg")

_ORIGINAL, _CALLS = "_tdbg_original", "_tdbg_calls"
# The watchers; while there are any, the functions are wrapped.
_watchers: tuple[weakref.ref[BackwardRoots], ...] = ()
# The latest result of a scaler, and the number before scaling.
_scaled: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []


class BackwardRoots:
    """Report the single number that a backward pass is about to begin at.

    Args:
        report: Called with the number, a tensor with its graph; its errors are lost.
            None: passes are only timed (``timed_calls``).
        counter: The counter of a training, whose steps that are only counted are not
            reported; None: all are.  It works only if all watchers have the same one.

    Attributes:
        report: As it was given.
    """

    def __init__(
        self,
        report: Callable[[torch.Tensor], None] | None = None,
        counter: StepCounter | None = None,
    ) -> None:
        self.report = report
        self._counter = counter
        _wrap(torch.autograd, "backward", _backward)
        _watch((*_watchers, weakref.ref(self, _forget_watcher)))
        if report is not None:
            _wrap(GradScaler, "scale", _scale)

    @property
    def counter(self) -> StepCounter | None:
        """The counter, as given or set later."""
        return self._counter

    @counter.setter
    def counter(self, counter: StepCounter | None) -> None:
        self._counter = counter
        _watch(_watchers)

    def remove(self) -> None:
        """Watch no longer."""
        _watch(tuple(each for each in _watchers if each() is not self))
        if not _watchers:
            _scaled.clear()
            calls: _Calls | None = getattr(torch.autograd.backward, _CALLS, None)
            if calls is not None:
                untime_call(calls.plain)
                untime_call(calls.followed)
            _unwrap(torch.autograd, "backward")
            _unwrap(GradScaler, "scale")


def unscaled(root: torch.Tensor) -> torch.Tensor:
    """Return the number that a backward pass begins at, before scaling."""
    for result, before in _scaled:
        if result() is root:
            return before
    return root.detach()


class _Calls:
    """What is called in the place of a function.

    Attributes:
        plain: The function, timed.
        followed: The same, reported.
        now: One of both.
    """

    __slots__ = ("followed", "now", "plain")

    def __init__(self, plain: CountedCall, followed: CountedCall) -> None:
        self.plain, self.followed = plain, followed
        self.now = plain


def _watch(watchers: tuple[weakref.ref[BackwardRoots], ...]) -> None:
    global _watchers  # noqa: PLW0603
    _watchers = watchers
    calls: _Calls | None = getattr(torch.autograd.backward, _CALLS, None)
    if calls is not None:
        living = [found for each in watchers if (found := each()) is not None]
        counters = {each.counter for each in living}
        calls.followed.counter = counters.pop() if len(counters) == 1 else None
        is_followed = any(each.report is not None for each in living)
        calls.now = calls.followed if is_followed else calls.plain


def _forget_watcher(gone: weakref.ref[BackwardRoots]) -> None:
    _watch(tuple(each for each in _watchers if each is not gone))


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def followed(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        # No calls of functions where there is nothing to report.
        if not (
            is_dynamo_compiling()
            or compiler._is_compiling_flag
            or _current_graph_task_id() != NOT_IN_BACKWARD
        ):
            root = tensors
            if isinstance(root, tuple | list) and len(root) == 1:
                root = root[0]
            if isinstance(root, torch.Tensor) and root.numel() == 1:
                for each in _watchers:
                    watcher = each()
                    try:
                        if watcher is not None and watcher.report is not None:
                            watcher.report(root)
                    except Exception:
                        _log.debug("a backward pass was not seen", exc_info=True)
        return original(tensors, *args, **kwargs)

    make = import_module("tdbg._core").CountedCall
    phase = int(Phase.BACKWARD)
    calls = _Calls(
        time_call(make(original, original, phase)),
        time_call(make(original, followed, phase)),
    )

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        return calls.now(*args, **kwargs)

    setattr(backward, _CALLS, calls)
    # Code behind a graph break calls it, and the compiler would compile it by itself.
    never_compiled(followed, backward)
    return backward


def _scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(scaler: GradScaler, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if isinstance(result, torch.Tensor) and isinstance(outputs, torch.Tensor):
            _scaled[:] = [(weakref.ref(result), outputs.detach())]
        return result

    return scale


def _wrap(
    owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    original = getattr(owner, name)
    if not hasattr(original, _ORIGINAL):
        wrapper = wrap(original)
        setattr(wrapper, _ORIGINAL, original)
        setattr(owner, name, wrapper)


def _unwrap(owner: Any, name: str) -> None:
    original = getattr(getattr(owner, name), _ORIGINAL, None)
    if original is not None:
        setattr(owner, name, original)
