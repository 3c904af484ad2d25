"""Half of a request, or of an answer, keeps nobody out."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dashboard import Dashboard, dashboard
from run_builder import simple_run
from tdbg.ui.server import MAX_WAITING

HEAD = b"GET / HTTP/1.1\r\nHost: local"
# A request whose body does not come.
BODY = (
    b"POST /api/stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    b"Content-Type: application/json\r\nX-Tdbg-Token: %b\r\n\r\n{}"
)


@pytest.fixture
def served(run_dir: Path) -> Iterator[Dashboard]:
    simple_run(run_dir)
    with dashboard(run_dir) as found:
        yield found


Connect = Callable[[bytes], socket.socket]


@pytest.fixture
def connect(served: Dashboard) -> Iterator[Connect]:
    """Connects to the server and sends something; all ends with the test."""
    with contextlib.ExitStack() as stack:

        def send(sent: bytes) -> socket.socket:
            made = socket.create_connection(("127.0.0.1", served.port), timeout=60)
            stack.enter_context(made).sendall(sent)
            return made

        yield send


def answer(connection: socket.socket) -> bytes:
    """Read an answer that is an object of JSON."""
    found = b""
    while not found.endswith(b"}"):
        part = connection.recv(1 << 16)
        assert part
        found += part
    return found


def has_ended(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("kind", ["nothing", "head", "body"])
def test_requests_that_are_not_complete_shut_nobody_out(
    served: Dashboard, connect: Connect, kind: str
) -> None:
    assert served.access.control
    sent = {"nothing": b"", "head": HEAD, "body": BODY % served.access.control.encode()}
    held = [connect(sent[kind]) for _ in range(70)]
    for _ in range(3):
        assert served.ask("/api/runs").status == 200
    assert len(held) == 70


def test_half_a_request_ends_in_time_however_slowly_it_comes(connect: Connect) -> None:
    held = connect(HEAD)
    held.settimeout(0.5)
    while not has_ended(held):
        with contextlib.suppress(OSError):
            held.sendall(b"h")


def test_of_too_many_connections_the_oldest_that_never_asked_is_closed(
    served: Dashboard, connect: Connect
) -> None:
    request = b"GET /api/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
    asked = connect(request)
    assert answer(asked).startswith(b"HTTP/1.1 401")
    held = [connect(HEAD) for _ in range(MAX_WAITING + 1)]
    assert served.ask("/api/runs").status == 200
    assert has_ended(held[0])
    asked.sendall(request)
    assert answer(asked).startswith(b"HTTP/1.1 401")
