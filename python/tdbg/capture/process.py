"""The sessions of this process: closed when it exits, inert in forked children.

Thread safety: any thread.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdbg.capture.session import Session

__all__ = ["replace_sessions", "watch_process"]


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def watch_process(session: Session) -> None:
    """Close the session when the process exits; keep it out of forked children."""
    _sessions.add(session)


def replace_sessions(writes_to: object) -> None:
    """Close the sessions that write to the same: a notebook has run its cell again."""
    for session in list(_sessions):
        if session.writes_to == writes_to:
            session.close("another hook has taken the run over")


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


atexit.register(_close_all)
os.register_at_fork(after_in_child=_disarm_child)
