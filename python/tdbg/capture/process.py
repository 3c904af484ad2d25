"""The sessions of this process: closed when it exits, inert in forked children.

Thread safety: any thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdbg.capture.session import Session

__all__ = ["at_exit", "replace_sessions", "watch_process"]


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_callbacks: list[Callable[[], None]] = []


def watch_process(session: Session) -> None:
    """Close the session when the process exits; keep it out of forked children."""
    _sessions.add(session)


def at_exit(callback: Callable[[], None]) -> None:
    """Call *callback* when this process exits, or a forked child, before all is closed.

    In a child of ``multiprocessing``, too, which does not call what ``atexit`` has.
    """
    _callbacks.append(callback)


def replace_sessions(run: bytes, rank: int) -> None:
    """Close the sessions that write to the same: a notebook has run its cell again."""
    for session in list(_sessions):
        if session.writes_as is not None and session.writes_as[:2] == (run, rank):
            session.close("another hook has taken the run over")


def _end() -> None:
    while _callbacks:
        with contextlib.suppress(Exception):
            _callbacks.pop(0)()
    _close_all()


def _close_all() -> None:
    # Set by the interpreter when an exception ends the program.
    error = getattr(sys, "last_value", None)
    reason = "the process exits" if error is None else type(error).__name__
    for session in list(_sessions):
        session.close(reason)


def _disarm_child() -> None:
    # The writer's thread does not exist here, and its files are the parent's.
    for session in list(_sessions):
        session.make_inert()
    _sessions.clear()
    # A child of multiprocessing ends by os._exit, before Python 3.12 without a call of
    # what atexit has; and what is registered for its end before it begins, it forgets.
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.register_after_fork(_end, _end_with_multiprocessing)


def _end_with_multiprocessing(_: object) -> None:
    util = sys.modules["multiprocessing.util"]
    util.Finalize(None, _end, exitpriority=0)


atexit.register(_end)
os.register_at_fork(after_in_child=_disarm_child)
