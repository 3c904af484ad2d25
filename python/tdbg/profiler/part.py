"""A part of the profiler: one thing that is observed, from open to close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.run.schema import EventKind

__all__ = ["ProfilerPart", "Start", "write_off"]


class ProfilerPart(Protocol):
    """One thing that is observed.

    A part may have a method ``change(settings)``, which is called when a request has
    changed what it may change (``tdbg.config.profiler.CHANGEABLE``).

    A part may have a method ``forked()``.  A forked child calls it in place of
    ``close()``: the part then lets go of what the parent still uses, and does nothing
    from there on.
    """

    def close(self) -> None:
        """Stop observing, and write what is left.  It is called once."""


Start = Callable[[Session, ProfilerConfig], ProfilerPart | None]
"""Starts a part of a session; returns None if there is nothing to observe."""


def write_off(session: Session, part: str, why: object) -> None:
    """Write down that a part of the profiler is off, and why."""
    content = {"what": "profiler", "part": part, "off": str(why)[:500]}
    session.write_event(EventKind.CHANGE, content)
