"""Reads that end when nobody waits for them, of which nobody has many at once.

What memory they used is given back to the system.

Thread safety: a ``Reading`` may be used from any thread; ``Turns`` and
``GivesBack`` belong to one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive

__all__ = ["GivesBack", "ReaderGone", "Reading", "Turns", "in_threads"]

_Part = TypeVar("_Part")

# Heavy reads of all clients at once; each has a thread.
AT_ONCE = 4


class ReaderGone(Exception):
    """The reader has gone, or looks at something else by now."""


class Reading:
    """An answer that is being made, for as long as somebody waits for it."""

    def __init__(self) -> None:
        self._gone = threading.Event()

    def check(self) -> None:
        """Go on, or end: called between parts of a read.

        Raises:
            ReaderGone: If nobody waits for the answer any more.
        """
        if self._gone.is_set():
            raise ReaderGone

    async def watch(self, receive: Receive) -> None:
        """Wait until the client disconnects, and let the read end then."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone.set()


class Turns:
    """Whose turn it is to read much: one read of a client, and few of all, at once.

    Args:
        at_once: Reads of all clients.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._all = asyncio.Semaphore(at_once)
        self._clients: dict[str, tuple[asyncio.Lock, int]] = {}

    @contextlib.asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for the client's turn; others of the same client wait until it is over.

        Waiting takes no thread.
        """
        lock, n = self._clients.get(client, (asyncio.Lock(), 0))
        self._clients[client] = lock, n + 1
        try:
            async with lock, self._all:
                yield
        finally:
            lock, n = self._clients.pop(client)
            if n > 1:
                self._clients[client] = lock, n - 1


async def in_threads(parts: Generator[_Part]) -> AsyncGenerator[_Part]:
    """Yield the parts of a read as they are made, in threads.

    It ends when nobody waits for more.
    """
    try:
        while (part := await run_in_threadpool(next, parts, None)) is not None:
            yield part
    finally:  # Whoever has gone waits for nothing.
        asyncio.get_running_loop().run_in_executor(None, parts.close)


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
