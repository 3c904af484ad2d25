"""Servers of HTTP and SMTP that behave as badly as servers can."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["MAIL_BEHAVIOURS", "WEB_BEHAVIOURS", "HostileServer"]

# What does not end does after so much: a client that waits for the end is then wrong,
# and no test hangs.
ENOUGH_BYTES = 192 << 20
ENOUGH_PIECES = 1500
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
GONE = (BrokenPipeError, ConnectionResetError, TimeoutError, ssl.SSLError, OSError)

Client = socket.socket
Behaviour = Callable[["HostileServer", Client], None]


class HostileServer:
    """Accepts connections, and does with each what *behave* does.

    Args:
        behave: Called in a thread of the connection's own.
        certificate: A file with a certificate and its key, for TLS.

    Attributes:
        n_connections: How many there were.
        n_sent: Bytes that clients took.
        heard: What clients sent, as far as it was read.
        port: The port of 127.0.0.1.
    """

    def __init__(self, behave: Behaviour, certificate: Path | None = None) -> None:
        self.n_connections = self.n_sent = 0
        self.heard: list[bytes] = []
        self._behave = behave
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._clients: list[Client] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}/hook?token=secret"

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        for client in self._clients:
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join()

    def send(self, client: Client, data: bytes) -> None:
        client.sendall(data)
        self.n_sent += len(data)

    def hear(self, client: Client, end: bytes = b"\r\n\r\n") -> bytes:
        """Read up to *end*."""
        said = b""
        while end not in said:
            more = client.recv(65536)
            if not more:
                raise BrokenPipeError
            said += more
        self.heard.append(said)
        return said

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.n_connections += 1
            self._clients.append(client)
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: Client) -> None:
        try:
            client.settimeout(60)
            if self._context is not None:
                client = self._context.wrap_socket(client, server_side=True)
            self._behave(self, client)
        except GONE:
            pass
        finally:
            client.close()


# ---- HTTP ------------------------------------------------------------------------


def say_nothing(server: HostileServer, client: Client) -> None:
    server.hear(client)
    client.recv(1 << 20)  # The body, if it comes apart; then until the client goes.
    client.recv(1)


def drip(server: HostileServer, client: Client) -> None:
    """A byte at a time, of headers that do come to an end, some day."""
    server.hear(client)
    for byte in OK[:17] + b"X: " + b"x" * ENOUGH_PIECES + OK[15:]:
        server.send(client, bytes([byte]))
        time.sleep(0.005)


def drip_in_vain(server: HostileServer, client: Client) -> None:
    """One answer after the other that says: go on."""
    server.hear(client)
    for _ in range(ENOUGH_PIECES):
        server.send(client, b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.005)
    server.send(client, OK)


def endless_header(server: HostileServer, client: Client) -> None:
    server.hear(client)
    server.send(client, b"HTTP/1.1 200 OK\r\nX: ")
    while server.n_sent < ENOUGH_BYTES:
        server.send(client, b"x" * 65536)


def endless_headers(server: HostileServer, client: Client) -> None:
    server.hear(client)
    server.send(client, b"HTTP/1.1 200 OK\r\n")
    while server.n_sent < ENOUGH_BYTES:
        server.send(client, b"X: y\r\n" * 1000)


def endless_body_of(code: int) -> Behaviour:
    def endless_body(server: HostileServer, client: Client) -> None:
        server.hear(client)
        server.send(client, b"HTTP/1.1 %d Whatever\r\n\r\n" % code)
        while server.n_sent < ENOUGH_BYTES:
            server.send(client, b"x" * 65536)

    return endless_body


def reset(server: HostileServer, client: Client) -> None:
    server.hear(client)
    server.send(client, OK[:7])
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def close_at_once(_: HostileServer, client: Client) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def another_protocol(server: HostileServer, client: Client) -> None:
    server.send(client, b"SSH-2.0-OpenSSH_9.2\r\n" + bytes(range(256)))
    server.hear(client)


def redirect_to(location: str) -> Behaviour:
    def redirect(server: HostileServer, client: Client) -> None:
        server.hear(client)
        answer = f"HTTP/1.1 307 There\r\nLocation: {location}\r\n"
        server.send(client, answer.encode() + b"Content-Length: 0\r\n\r\n")

    return redirect


WEB_BEHAVIOURS: dict[str, Behaviour] = {
    "says nothing": say_nothing,
    "a byte at a time": drip,
    "go on, for ever": drip_in_vain,
    "a header without end": endless_header,
    "headers without end": endless_headers,
    "a reset": reset,
    "closed at once": close_at_once,
    "another protocol": another_protocol,
    "an endless refusal": endless_body_of(404),
}


# ---- SMTP ------------------------------------------------------------------------


def no_greeting(_: HostileServer, client: Client) -> None:
    client.recv(1)


def endless_greeting(server: HostileServer, client: Client) -> None:
    for _ in range(10 * ENOUGH_PIECES):
        server.send(client, b"220-and more\r\n")
        time.sleep(0.001)


def take_mail(server: HostileServer, client: Client) -> None:
    """As servers do, up to the end of the message."""
    server.send(client, b"220 here\r\n")
    while True:
        line = server.hear(client, b"\r\n")
        word = line[:4].upper()
        if word == b"DATA":
            server.send(client, b"354 go on\r\n")
            server.hear(client, b"\r\n.\r\n")
            break
        server.send(client, b"250 fine\r\n")


def accept_mail(server: HostileServer, client: Client) -> None:
    take_mail(server, client)
    server.send(client, b"250 taken\r\n")
    server.hear(client, b"\r\n")
    server.send(client, b"221 bye\r\n")


def hang_after_data(server: HostileServer, client: Client) -> None:
    take_mail(server, client)
    client.recv(1)


def endless_after_data(server: HostileServer, client: Client) -> None:
    take_mail(server, client)
    while server.n_sent < 16 * ENOUGH_BYTES:
        server.send(client, b"250-and more\r\n" * 4000)


MAIL_BEHAVIOURS: dict[str, Behaviour] = {
    "no greeting": no_greeting,
    "a greeting without end": endless_greeting,
    "nothing after the message": hang_after_data,
    "an answer without end": endless_after_data,
}
