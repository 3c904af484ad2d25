"""Calls of ``clip_grad_norm_`` and ``clip_grad_value_``.

PyTorch's functions call the code that clips from a closure.  While anybody watches,
that code is followed.  The functions stay the same objects, so a call is seen wherever
the program imported them.

Thread safety: the training's thread.

Errors: none into the program; errors of watchers are lost.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any, NamedTuple, Protocol

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.utils import clip_grad

from tdbg.hooks.pytorch.functions.diverted import WarnedLines

__all__ = ["ClipCall", "unwatch_clipping", "watch_clipping"]

# The functions, and the arguments that limit gradients.
_LIMITS = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value"}


class ClipCall(NamedTuple):
    """A call that is about to clip.

    Attributes:
        function: Its name.
        parameters: The tensors that it is given.
        limit: The largest norm or value; None: it is no number of Python's.
        is_used_up: Whether it is given an iterator that somebody has read to its end.
    """

    function: str
    parameters: tuple[torch.Tensor, ...]
    limit: float | None
    is_used_up: bool


class _Watcher(Protocol):
    def clips(self, call: ClipCall) -> None: ...


class _Followed(NamedTuple):
    """The cell that holds the code that clips, before and while it is followed."""

    cell: Any
    original: Callable[..., Any]
    followed: Callable[..., Any]
    lines: WarnedLines


# While there are any, the functions are followed.
_watchers: weakref.WeakSet[_Watcher] = weakref.WeakSet()
_followed: list[_Followed] = []


def watch_clipping(watcher: _Watcher) -> None:
    """Call *watcher* before each call that clips."""
    _watchers.add(watcher)
    if not _followed:
        _followed.extend(_follow())


def unwatch_clipping(watcher: _Watcher) -> None:
    """Call *watcher* no longer."""
    _watchers.discard(watcher)
    while _followed and not _watchers:
        each = _followed.pop()
        each.lines.end()
        if each.cell.cell_contents is each.followed:
            each.cell.cell_contents = each.original


def _follow() -> Iterator[_Followed]:
    for name in _LIMITS:
        function: Any = getattr(clip_grad, name, None)
        original: Any = inspect.unwrap(function)
        # The profiler may have wrapped what PyTorch has wrapped.
        while getattr(function, "__wrapped__", original) is not original:
            function = function.__wrapped__
        for cell in getattr(function, "__closure__", None) or ():
            if cell.cell_contents is original:
                followed = _following(name, original)
                lines = WarnedLines(original.__globals__, followed.__code__, followed)
                lines.begin()
                cell.cell_contents = followed
                yield _Followed(cell, original, followed, lines)


def _following(name: str, original: Callable[..., Any]) -> Any:
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():
            with contextlib.suppress(Exception):
                parameters, call = _read(name, parameters, args, kwargs)
                for each in list(_watchers):
                    each.clips(call)
        return original(parameters, *args, **kwargs)

    return functools.wraps(original)(clip)


def _read(
    name: str, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ClipCall]:
    """Return what to give on, since an iterator can be read once, and the call."""
    limit = args[0] if args else kwargs.get(_LIMITS[name])
    if not isinstance(limit, int | float):
        limit = None
    if isinstance(given, torch.Tensor):
        return given, ClipCall(name, (given,), limit, False)
    is_used_up = _is_used_up(given)
    every = tuple(given)
    call = ClipCall(name, every, limit, is_used_up)
    if isinstance(given, GeneratorType):
        return (each for each in every), call
    return (every if isinstance(given, Iterator) else given), call


def _is_used_up(given: Any) -> bool:
    """Return whether a generator has ended, or that of a filter."""
    if isinstance(given, GeneratorType):
        return given.gi_frame is None
    if isinstance(given, filter | map):
        reduced: Any = given.__reduce__()
        return any(map(_is_used_up, reduced[1][1:]))
    return False
