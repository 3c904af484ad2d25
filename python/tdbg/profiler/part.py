"""What a part of the profiler is: one thing that is observed, from open to close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tdbg.capture.session import Session

__all__ = ["ProfilerPart", "ProfilerSettings", "Start"]


class ProfilerSettings(Protocol):
    """Settings of the profiler; parts may read more of them."""

    @property
    def enabled(self) -> bool:
        """Whether anything is observed."""

    @property
    def python_interval(self) -> float | None:
        """Seconds between two samples of the Python stack; None: there are none."""


class ProfilerPart(Protocol):
    """One thing that is observed.

    A part may have a method ``change(settings)``, which is called when a request has
    changed what it may change (``tdbg.config.profiler.CHANGEABLE``).

    A part may have a method ``forked()``.  A forked child calls it in place of
    ``close()``: the part then lets go of what the parent still uses, and does nothing
    from there on.
    """

    def close(self) -> None:
        """Observe no longer; write what is left.  It is called once."""


Start = Callable[[Session, ProfilerSettings], ProfilerPart | None]
"""Starts a part of a session; returns None if there is nothing to observe."""
