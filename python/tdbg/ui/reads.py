"""Reads that end when nobody waits for them, and of which nobody has many at once.

Thread safety: a ``Reading`` may be used from any thread; ``Turns`` belongs to one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

from starlette.types import Receive

__all__ = ["ReaderGone", "Reading", "Turns"]

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
