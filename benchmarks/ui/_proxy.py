"""A proxy that counts the bytes that pass: any protocol, headers and streams too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

__all__ = ["Proxy", "counted"]


class Proxy:
    """Passes connections on to a port of this machine.

    Attributes:
        port: Where it listens.
        sent: Bytes that the server has sent so far.
        asked: Bytes that the page has sent so far.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self.sent = 0
        self.asked = 0

    async def connect(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection until either side closes it."""
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(
                self._pass(reader, upstream[1], "asked"),
                self._pass(upstream[0], writer, "sent"),
            )
        finally:
            upstream[1].close()
            writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 18):
                setattr(self, what, getattr(self, what) + len(data))
                writer.write(data)
                await writer.drain()
        with suppress(OSError):
            writer.close()


@contextmanager
def counted(target: int) -> Iterator[Proxy]:
    """A proxy before a port, in a thread."""
    proxy, is_ready = Proxy(target), threading.Event()
    ends: list[Callable[[], object]] = []

    async def listen() -> None:
        loop, is_over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(proxy.connect, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]
        ends.append(partial(loop.call_soon_threadsafe, is_over.set))
        is_ready.set()
        await is_over.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(listen(),), daemon=True)
    thread.start()
    is_ready.wait()
    try:
        yield proxy
    finally:
        ends[0]()
        thread.join()
