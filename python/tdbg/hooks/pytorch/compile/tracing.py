"""Keep the compiler away from code of tdbg, and hooks in place while it traces.

Hooks that capture nothing are taken off their modules.  The compiler guards the hooks
of a module and would recompile each time.  So hooks go only while no hook is part of a
graph, and they are back before the compiler traces anything.

Thread safety: any thread may trace; hooks are taken off by the training's thread.

Errors: none.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from tdbg.capture.session import Session

__all__ = ["hooks_may_go", "never_compiled", "note_trace", "now"]

_numbers = itertools.count()
_state = {"traced": -1}


def now() -> int:
    """Return the present, as ``born`` in ``hooks_may_go``."""
    return next(_numbers)


def note_trace() -> None:
    """Note that a hook becomes part of a graph."""
    _state["traced"] = next(_numbers)


def never_compiled(*functions: Callable[..., Any]) -> None:
    """Make the compiler run these functions of tdbg as they are.

    It runs the hooks of the module that it was given outside the graph, and would
    compile each by itself.  This changes nothing for a function that it traces as part
    of another one.
    """
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    strategy = getattr(frames, "_FrameExecStrategy", None)
    if strategy is None:
        return  # Another PyTorch.  It compiles them, which is slow but not wrong.
    skip = frames._FrameAction.SKIP
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is not None:
            frames.set_code_exec_strategy(code, strategy(skip, skip))


never_compiled(Session.run)


class _RemovableHooks(Protocol):
    born: int

    def set_idle(self, is_idle: bool) -> None: ...


_MARK = "_tdbg_puts_back"
# The objects whose hooks are off.
_away: weakref.WeakSet[Any] = weakref.WeakSet()


def hooks_may_go(removable: _RemovableHooks) -> bool:
    """Return whether hooks may be taken off now.

    They are put back before the compiler traces anything.

    Args:
        removable: The hooks; ``set_idle(False)`` puts them back, and ``born`` says when
            they were made.
    """
    if _state["traced"] > removable.born:
        return False
    _away.add(removable)
    # Optimizers load the compiler; where it is not loaded nothing uses it.
    callback: Any = sys.modules.get("torch._dynamo.callback")
    handler = getattr(callback, "callback_handler", None)
    callbacks = getattr(handler, "start_callbacks", None)
    if callbacks is not None and _put_back not in callbacks:
        callbacks.append(_put_back)
        _watch_reset(handler)
    return True


def _watch_reset(handler: Any) -> None:
    """Put hooks back before ``torch.compiler.reset()`` forgets all callbacks.

    They may go again afterwards; a new callback then puts them back.
    """
    clear = getattr(handler, "clear", None)
    if clear is None or hasattr(clear, _MARK):
        return

    @functools.wraps(clear)
    def put_back_and_clear(*args: Any, **kwargs: Any) -> Any:
        _put_back()
        return clear(*args, **kwargs)

    setattr(put_back_and_clear, _MARK, True)
    handler.clear = put_back_and_clear


def _put_back(*_: Any) -> None:
    """Put all hooks back: the compiler is about to trace or to forget its callbacks.

    PyTorch 2.7 calls this without an argument; later versions pass what they compile.
    """
    for removable in list(_away):
        removable.set_idle(False)
    _away.clear()
