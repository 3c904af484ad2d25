"""Hooks that come and go, and a compiler that looks at them once.

A graph has those hooks that were on the modules when it was traced.  So none may be
away while anything is traced, and none may go that is part of a graph: the compiler
would find one hook less, and compile anew.

Thread safety: any thread may compile.

Errors: none.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Protocol

from tdbg.hooks.pytorch.compiled import was_traced

__all__ = ["hooks_may_go"]


class _Parking(Protocol):
    born: int

    def park(self, is_quiet: bool) -> None: ...


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
    return True


def _put_back(_: Any) -> None:
    """The compiler is about to trace something."""
    for parking in list(_away):
        parking.park(False)
    _away.clear()
