"""Sessions and the life of the process: exit and fork.

Holds the only registry of the package: the live sessions, weakly.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import Protocol

__all__ = ["replace_sessions", "watch_process"]


class _Session(Protocol):
    @property
    def writes_to(self) -> object: ...

    def close(self, reason: str, timeout: float = 5.0) -> bool: ...

    def make_inert(self) -> None: ...


_sessions: weakref.WeakSet[_Session] = weakref.WeakSet()


def watch_process(session: _Session) -> None:
    """Close the session when the process exits; keep it out of forked children."""
    _sessions.add(session)


def replace_sessions(writes_to: object) -> None:
    """Close the sessions that write there: a notebook has run its cell again."""
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
