"""Connections that nobody can hold without asking: deadlines, and a bound on them.

A request counts when it is complete.  Whoever sends a part of one has some seconds for
the rest, and so has whoever does not take an answer.  If too many connections wait,
one is closed: the oldest of those that never asked anything, or else the oldest.

Thread safety: none; the event loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["MAX_WAITING", "PATIENCE_SECONDS", "BoundedProtocol"]

#: How long a request may take to arrive, and an answer to be taken, in seconds.
PATIENCE_SECONDS = 10.0
#: So many connections may wait for a request.
MAX_WAITING = 256


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
