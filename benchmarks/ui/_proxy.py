"""A proxy that counts what passes, and may be far away: any protocol, streams too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

__all__ = ["Proxy", "counted"]

# Parts of 256 KiB that wait for their time.
MOST_UNDER_WAY = 256


class Proxy:
    """Passes connections on to a port of this machine.

    Attributes:
        port: Where it listens.
        sent: Bytes that the server has sent so far.
        asked: Bytes that the page has sent so far.
    """

    def __init__(self, target: int, delay: float = 0.0) -> None:
        self._target = target
        self._delay = delay
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
            # Cancelled at the end of the benchmark.
            with suppress(asyncio.CancelledError):
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
        """Pass on what comes, each part as late as the delay says."""
        clock = asyncio.get_running_loop().time
        parts: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_UNDER_WAY)
        delivering = asyncio.create_task(self._deliver(parts, writer))
        with suppress(OSError):
            while data := await reader.read(1 << 18):
                setattr(self, what, getattr(self, what) + len(data))
                await parts.put((clock() + self._delay, data))
        await parts.put((clock() + self._delay, b""))
        await delivering

    async def _deliver(
        self, parts: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, data = await parts.get()
            await asyncio.sleep(max(0.0, due - clock()))
            if not data:
                break
            with suppress(OSError):  # Who has gone takes no more.
                writer.write(data)
                await writer.drain()
        with suppress(OSError):
            writer.close()


@contextmanager
def counted(target: int, delay: float = 0.0) -> Iterator[Proxy]:
    """A proxy before a port, in a thread; each way takes *delay* seconds."""
    proxy, is_ready = Proxy(target, delay), threading.Event()
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
