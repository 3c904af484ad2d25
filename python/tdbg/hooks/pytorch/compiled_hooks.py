"""Hooks that come and go, and a compiler that looks at them once.

A graph has those hooks that were on the modules when it was traced.  So none may be
away while anything is traced, and none may go that is part of a graph: the compiler
would find one hook less, and compile anew.

Thread safety: any thread may compile.

Errors: none.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Protocol

from tdbg.hooks.pytorch.compiled import was_traced

__all__ = ["hooks_may_go"]


class _Parking(Protocol):
    born: int

    def park(self, is_quiet: bool) -> None: ...


_MARK = "_tdbg_puts_back"
# Those whose hooks are away.
_away: weakref.WeakSet[Any] = weakref.WeakSet()


def hooks_may_go(parking: _Parking) -> bool:
    """Whether hooks may be taken off now; they are put back before anything is traced.

    Args:
        parking: Its ``park(False)`` puts them back; ``born`` says since when it is.
    """
    if was_traced(parking.born):
        return False
    _away.add(parking)
    # A training that has not loaded the compiler does not use it: optimizers load it.
    compiler: Any = sys.modules.get("torch._dynamo.callback")
    handler = getattr(compiler, "callback_handler", None)
    callbacks = getattr(handler, "start_callbacks", None)
    if callbacks is not None and _put_back not in callbacks:
        callbacks.append(_put_back)
        _watch_reset(handler)
    return True


def _watch_reset(handler: Any) -> None:
    """``torch.compiler.reset()`` forgets all callbacks: hooks go back before it does.

    They may go again afterwards, and are then put back by a new callback.
    """
    clear = getattr(handler, "clear", None)
    if clear is None or hasattr(clear, _MARK):
        return

    @functools.wraps(clear)
    def put_back_and_clear(*args: Any, **kwargs: Any) -> Any:
        _put_back(None)
        return clear(*args, **kwargs)

    setattr(put_back_and_clear, _MARK, True)
    handler.clear = put_back_and_clear


def _put_back(_: Any) -> None:
    """The compiler is about to trace something, or forgets what it was told."""
    for parking in list(_away):
        parking.park(False)
    _away.clear()
