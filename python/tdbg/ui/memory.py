"""Gives memory back to the system that answers have used, and the allocator keeps.

Thread safety: none; the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes

__all__ = ["GivesBack"]

# It takes milliseconds, so it is done once for the answers of so long a time.
_SECONDS = 1.0


class GivesBack:
    """Gives memory back a while after an answer."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Note that there was an answer."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_SECONDS, self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        loop.run_in_executor(None, _trim)


def _trim() -> None:
    with contextlib.suppress(OSError, AttributeError):  # No glibc.
        ctypes.CDLL(None).malloc_trim(0)
