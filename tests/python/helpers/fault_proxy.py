"""A proxy between a client and a server of HTTP that does what networks and stores do.

    with FaultProxy(server_port) as proxy:
        proxy.faults = every(3, error(503, "SlowDown"))

A fault is a function of a request that returns what is done to it, or None.  The proxy
counts what it did, and remembers which requests came.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import random
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date"}


@dataclass
class Request:
    """A request, as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    number: int

    @property
    def key(self) -> str:
        """The path without its query."""
        return urlsplit(self.path).path

    @property
    def is_list(self) -> bool:
        return self.method == "GET" and "list-type=2" in self.path


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass
class Fault:
    """What is done to a request.

    Attributes:
        name: By which it is counted.
        answer: Given without asking the server.
        resets_request_at: The connection is reset when so many bytes of it were read.
        loses_answer: The server does it, and the client never hears of it.
        cuts_answer_at: The answer ends after so many bytes of its body.
        bytes_per_second: At which the answer comes.
        seconds: To wait before the answer.
    """

    name: str
    answer: Answer | None = None
    resets_request_at: int | None = None
    loses_answer: bool = False
    cuts_answer_at: int | None = None
    bytes_per_second: float | None = None
    seconds: float = 0.0


Plan = Callable[[Request], Fault | None]


def error(status: int, code: str) -> Callable[[Request], Fault]:
    """An error of a store, as S3 words it."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
        f"<Message>{code} by the proxy</Message></Error>"
    ).encode()

    def fault(request: Request) -> Fault:
        answer = Answer(status, [("Content-Type", "application/xml")], body)
        if request.method == "HEAD":
            answer.body = b""
        return Fault(f"{status} {code}", answer)

    return fault


def resets_after(n_bytes: int) -> Callable[[Request], Fault]:
    return lambda _: Fault("reset", resets_request_at=n_bytes)


def loses_answer(_: Request) -> Fault:
    return Fault("lost answer", loses_answer=True)


def cuts_answer(at: int) -> Callable[[Request], Fault]:
    return lambda _: Fault("cut answer", cuts_answer_at=at)


def slow(bytes_per_second: float) -> Callable[[Request], Fault]:
    return lambda _: Fault("slow", bytes_per_second=bytes_per_second)


def stalls(seconds: float) -> Callable[[Request], Fault]:
    return lambda _: Fault("stall", seconds=seconds)


def share(part: float, fault: Plan, seed: int) -> Plan:
    """The fault for this share of all requests."""
    source = random.Random(seed)
    lock = threading.Lock()

    def plan(request: Request) -> Fault | None:
        with lock:
            hit = source.random() < part
        return fault(request) if hit else None

    return plan


def first(n: int, fault: Plan) -> Plan:
    """The fault for the first so many requests."""
    counter = itertools.count()
    return lambda request: fault(request) if next(counter) < n else None


def only(wanted: Callable[[Request], bool], plan: Plan) -> Plan:
    """The plan for requests that are wanted."""
    return lambda request: plan(request) if wanted(request) else None


@dataclass
class FaultProxy:
    """A proxy in front of a server on this machine; see the module.

    Attributes:
        server_port: Of the server.
        faults: What is done to each request.
        port: Of the proxy; 0: a free one.
        n_bytes: Of the bodies of all answers.
        tls: Who the proxy says that it is to each connection; None: it speaks no TLS.
    """

    server_port: int
    faults: Plan = lambda _: None
    port: int = 0
    tls: Callable[[], ssl.SSLContext] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    requests: list[Request] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    n_bytes: int = 0
    stale_lists: bool = False
    connections: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self._lists: dict[str, Answer] = {}
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", self.port), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def url(self) -> str:
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        # Clients keep theirs for a while, and a thread waits for each.
        for each in self.connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def broken(self, plan: Plan) -> Iterator[None]:
        """Do what the plan says until the block is left."""
        self.faults = plan
        try:
            yield
        finally:
            self.faults = lambda _: None

    @property
    def n_faults(self) -> int:
        return sum(self.counts.values())

    def fault_of(self, request: Request) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            self.times.append(time.monotonic())
        fault = self.faults(request)
        if fault is not None:
            with self.lock:
                self.counts[fault.name] += 1
        return fault

    def count(self, body: bytes) -> None:
        with self.lock:
            self.n_bytes += len(body)

    def ask(self, request: Request) -> Answer:
        """What the server answers; an old listing, where they are stale."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port)
        try:
            connection.putrequest(
                request.method, request.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "expect"):
                    connection.putheader(name, value)
            if "transfer-encoding" in {name.lower() for name in request.headers}:
                connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body)
            got = connection.getresponse()
            answer = Answer(got.status, got.getheaders(), got.read())
        finally:
            connection.close()
        if request.is_list and self.stale_lists:
            with self.lock:
                before = self._lists.get(request.path, answer)
                self._lists[request.path] = answer
            return before
        return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        pass  # Clients that go away are what this is about.


class _Handler(BaseHTTPRequestHandler):
    owner: FaultProxy
    protocol_version = "HTTP/1.1"
    _numbers = itertools.count()

    def setup(self) -> None:
        if self.owner.tls is not None:
            self.request = self.owner.tls().wrap_socket(self.request, server_side=True)
        super().setup()
        self.owner.connections.append(self.connection)

    def finish(self) -> None:
        super().finish()
        if self.owner.tls is not None:
            self.connection.close()  # The server knows the one below it alone.

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        request = Request(
            self.command,
            self.path,
            dict(self.headers.items()),
            b"",
            next(self._numbers),
        )
        fault = self.owner.fault_of(request)
        if fault is not None and fault.resets_request_at is not None:
            self._read_body(fault.resets_request_at)
            self._reset()
            return
        request.body = self._read_body()
        if fault is not None and fault.answer is not None:
            self._give(fault.answer, request)
            return
        answer = self.owner.ask(request)
        if fault is not None:
            time.sleep(fault.seconds)
        if fault is not None and fault.loses_answer:
            self._reset()
            return
        self._give(answer, request, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

    def _read_body(self, most: int | None = None) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while (size := int(self.rfile.readline().split(b";")[0], 16)) > 0:
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        length = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(length if most is None else min(most, length))

    def _reset(self) -> None:
        self.connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        # The connection is closed with the last of these, and not before.
        self.rfile.close()
        self.wfile.close()
        self.connection.close()
        self.close_connection = True

    def _give(
        self, answer: Answer, request: Request, fault: Fault | None = None
    ) -> None:
        self.send_response_only(answer.status)
        length = str(len(answer.body))
        for name, value in answer.headers:
            if name.lower() == "content-length":
                length = value  # That of a HEAD tells of a body that is not sent.
            elif name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        body = b"" if request.method == "HEAD" else answer.body
        self.owner.count(body)
        if fault is not None and fault.cuts_answer_at is not None:
            self.wfile.write(body[: fault.cuts_answer_at])
            self.close_connection = True
            return
        if fault is not None and fault.bytes_per_second is not None:
            step = max(1, int(fault.bytes_per_second / 20))
            for at in range(0, len(body), step):
                self.wfile.write(body[at : at + step])
                time.sleep(0.05)
            return
        self.wfile.write(body)
