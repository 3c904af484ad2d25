"""Sessions in a process that is not theirs: exits, forked children, errors of tdbg.

They are closed when the process exits, inert in forked children, and rest after some
errors of their own.

Thread safety: any thread; two errors at once may count as one.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from tdbg.capture.ranks import WriterIdentity

__all__ = [
    "MAX_FAULTS",
    "Faults",
    "after_close",
    "at_exit",
    "replace_sessions",
    "watch_process",
]

_log = logging.getLogger("tdbg")


class OpenSession(Protocol):
    """A session as far as its process ends it."""

    @property
    def writes_as(self) -> WriterIdentity | None:
        """The run, rank and attempt that it writes; None if it writes nothing."""

    @property
    def is_closed(self) -> bool:
        """Whether the run has ended."""

    def before_next_event(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, before the next event."""

    def close(self, reason: str = ...) -> bool:
        """End the run; return True if everything was written."""

    def make_inert(self) -> None:
        """Do nothing any more, in a forked child."""


_sessions: weakref.WeakSet[OpenSession] = weakref.WeakSet()
_callbacks: list[Callable[[], None]] = []
_last_callbacks: list[Callable[[], None]] = []


def watch_process(session: OpenSession) -> None:
    """Close the session when the process exits; keep it out of forked children."""
    _sessions.add(session)


def at_exit(callback: Callable[[], None]) -> None:
    """Call *callback* when this process exits, or a forked child, before all is closed.

    In a child of ``multiprocessing``, too, which does not call what ``atexit`` has.
    """
    _callbacks.append(callback)


def after_close(callback: Callable[[], None]) -> None:
    """Call *callback* when this process exits and all sessions are closed."""
    _last_callbacks.append(callback)


def replace_sessions(run: bytes, rank: int, directory: Path) -> None:
    """Deal with the sessions of this process that write to the same.

    Somebody at a prompt has run the cell of a notebook again: they are closed.  A
    program may still train with them: they go on beside the new one.
    """
    for session in list(_sessions):
        if session.writes_as is None or session.writes_as[:2] != (run, rank):
            continue
        if hasattr(sys, "ps1"):
            session.close("another hook has taken over the run")
            _log.warning(
                "the hook that wrote to %s is closed: a new hook takes the run over. "
                "To capture several models at once, register them all with one hook, "
                "or give each hook a directory of its own",
                directory,
            )
        else:
            session.before_next_event(partial(_warn_of_rival, session, directory))


def _warn_of_rival(session: OpenSession, directory: Path) -> None:
    if not session.is_closed:
        _log.warning(
            "two hooks of this process write to %s at the same time. Both are "
            "recorded, as two attempts, and the later one hides the steps of the "
            "earlier one. Register all models with one hook, or give each hook a "
            "directory of its own",
            directory,
        )


def _end() -> None:
    _call_all(_callbacks)
    _close_all()
    _call_all(_last_callbacks)


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    while callbacks:
        with contextlib.suppress(Exception):
            callbacks.pop(0)()


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


def _is_child_of_multiprocessing() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


atexit.register(_end)
# One that was forked before this module was imported, as by a server of forks, which
# is how Python 3.14 starts them: it has run what it does after the fork.
if _is_child_of_multiprocessing():
    _end_with_multiprocessing(None)
os.register_at_fork(after_in_child=_disarm_child)


MAX_FAULTS = 10
"""After so many errors of its own a session captures nothing any more."""


class Faults:
    """Counts the errors of one session, and logs the first and the last that it bears.

    Attributes:
        n: How many there were.
    """

    def __init__(self) -> None:
        self.n = 0

    def bear(self, error: Exception) -> bool:
        """Count an error; whether capture may go on."""
        self.n += 1
        with contextlib.suppress(Exception):
            if self.n == 1:
                _log.warning(
                    "tdbg ran into an internal error; the training continues",
                    exc_info=error,
                )
            if self.n == MAX_FAULTS:
                _log.warning(
                    "tdbg ran into %d internal errors and captures nothing from now on",
                    self.n,
                )
        return self.n < MAX_FAULTS
