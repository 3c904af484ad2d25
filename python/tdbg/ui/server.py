"""Starts the server: an address on this machine, a token, a browser.

Nobody can hold a connection without asking.  A request counts when it is complete.
Whoever sends a part of one has some seconds for the rest, and so has whoever does not
take an answer.  If too many connections wait, one is closed: the oldest of those that
never asked anything, or else the oldest.

Thread safety: ``serve`` belongs to one thread, and returns when it is interrupted.
Connections belong to the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tdbg.errors import ConfigurationError
from tdbg.ui.app import create_app
from tdbg.ui.run_cache import cache_file
from tdbg.ui.runs import Runs
from tdbg.ui.security import Access, is_loopback

__all__ = ["MAX_WAITING", "BoundedProtocol", "Settings", "serve"]

DEFAULT_PORT = 8321
# Ports that are tried after the default one, before any that is free.
NEXT_PORTS = 20
KEEP_ALIVE_SECONDS = 30
# The training comes first on the machine.
NICENESS = 10
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - recognized here, bound only when asked for
#: How long a request may take to arrive, and an answer to be taken, in seconds.
PATIENCE_SECONDS = 10.0
#: So many connections may wait for a request.
MAX_WAITING = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the server is reached.

    Attributes:
        host: Address to listen at.
        port: Port; None: 8321, or one of the next that is free.
        allowed_hosts: Further names under which browsers address the server, such as
            that of a proxy.
        allow_control: Whether others than this machine may stop trainings.
        share: Whether the printed address is for looking only.
        browser: Whether to open a browser.
        judge: Whether the server judges by itself what it shows and nobody has judged.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    allowed_hosts: tuple[str, ...] = ()
    allow_control: bool = False
    share: bool = False
    browser: bool = True
    judge: bool = True

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the server."""
        return is_loopback(self.host.lower())

    def access(self) -> Access:
        """Fresh tokens, and the names of hosts."""
        hosts = {each.lower() for each in self.allowed_hosts}
        if not self.is_local and self.host not in ANYWHERE:
            hosts.add(self.host.lower())
        access = Access(hosts=frozenset(hosts))
        if self.is_local or self.allow_control:
            return access
        return Access(control=None, hosts=frozenset(hosts))


def serve(
    paths: Sequence[str],
    settings: Settings,
    announce: Callable[[str, Access], None],
    access: Access | None = None,
) -> None:
    """Serve the runs below *paths* until somebody interrupts.

    Args:
        paths: Runs, folders of runs, or patterns.
        settings: How the server is reached.
        announce: Called once, as soon as the server can be reached, with the address
            to print and the tokens.
        access: Who may do what; None: what the settings say, with fresh tokens.

    Raises:
        ConfigurationError: If the address cannot be listened at, or a path is that of
            another machine.
    """
    runs = Runs(paths, cache_file())
    listener = _listen(settings)
    access = access or settings.access()
    address = _address(settings, listener, access)
    application = create_app(runs, access, judges=settings.judge)
    config = uvicorn.Config(
        application,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=1,
    )
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    announce(address, access)
    if settings.browser:
        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def _listen(settings: Settings) -> socket.socket:
    """A socket that listens at the address."""
    asked = settings.port
    ports = (
        [*range(DEFAULT_PORT, DEFAULT_PORT + NEXT_PORTS), 0]
        if asked is None
        else [asked]
    )
    failure: OSError | None = None
    for port in ports:
        try:
            family = socket.getaddrinfo(settings.host, port)[0][0]
            listener = socket.create_server((settings.host, port), family=family)
            # Connections inherit it.  asyncio does so of sockets that it makes itself;
            # else the body of an answer waits 40 ms for the receipt of its headers.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            failure = error
        else:
            listener.setblocking(False)
            return listener
    where = settings.host if asked is None else f"{settings.host}, port {asked}"
    msg = f"cannot listen at {where}: {failure}; choose another --host or --port"
    raise ConfigurationError(msg) from failure


def _address(settings: Settings, listener: socket.socket, access: Access) -> str:
    port = listener.getsockname()[1]
    host = socket.gethostname() if settings.host in ANYWHERE else settings.host
    host = f"[{host}]" if ":" in host else host
    token = access.view if settings.share or access.control is None else access.control
    return f"http://{host}:{port}/#t={token}"


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 in which half a request, or half an answer, ends in time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reading, self._writing = _Deadline(self), _Deadline(self)
        self._has_asked = False
        self._since = 0.0  # When it began to wait.

    @property
    def is_waiting(self) -> bool:
        """Whether there is no complete request that is being answered."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, and close another connection if too many wait."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._reading.begin()
        waiting = [each for each in self.connections if _is_waiting(each)]
        if len(waiting) > MAX_WAITING:
            oldest: Any = min(waiting, key=_worth)
            oldest.transport.abort()

    def handle_events(self) -> None:
        """Handle what has come, and wait for the rest."""
        super().handle_events()
        if not self.is_waiting:
            self._has_asked = True
            self._since = self.loop.time()
            self._reading.end()
        elif self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self._reading.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines."""
        self._reading.end()
        self._writing.end()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to take what was sent."""
        super().pause_writing()
        self._writing.begin()

    def resume_writing(self) -> None:
        """Send on: the client has taken enough."""
        super().resume_writing()
        self._writing.end()


def _is_waiting(connection: object) -> bool:
    return isinstance(connection, BoundedProtocol) and connection.is_waiting


def _worth(connection: Any) -> tuple[bool, float]:
    return connection._has_asked, connection._since


class _Deadline:
    """Ends a connection after some seconds, unless it is met before."""

    def __init__(self, connection: BoundedProtocol) -> None:
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin to count, unless it has begun: bytes one by one do not put it off."""
        if self._timer is None:
            connection = self._connection
            self._timer = connection.loop.call_later(
                PATIENCE_SECONDS, connection.transport.abort
            )

    def end(self) -> None:
        """Count no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
