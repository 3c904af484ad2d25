"""Who may ask the server what: checked before anything else is done with a request.

Implements the table of docs/dashboard.md, "Security".  Against pages that the user
visits meanwhile (rebinding, requests from other sites), other users of the machine, and
text in runs of somebody else.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "MAX_BODY", "TOKEN_HEADER", "Access", "Guard", "host_name"]

TOKEN_HEADER = "x-tdbg-token"  # noqa: S105 - a header's name
MAX_BODY = 65_536
MAX_URL = 65_536
# Requests that are answered at once, and streams of events beside them.
MAX_ANSWERING = 64
EVENTS = "/api/events"
# 192 bits.
TOKEN_BYTES = 24

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'self'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def host_name(header: str) -> str:
    """The name in a ``Host`` header, without port and brackets, in lower case.

    Example:
        >>> host_name("LocalHost:8080"), host_name("[::1]:80")
        ('localhost', '::1')
    """
    header = header.strip().lower()
    if header.startswith("["):
        name, bracket, rest = header[1:].partition("]")
        is_whole = bracket and (not rest or (rest[0] == ":" and rest[1:].isdigit()))
        return name if is_whole else header
    name, _, port = header.rpartition(":")
    return name if name and port.isdigit() else header


def is_loopback(name: str) -> bool:
    """Whether a host's name or address can only be this machine."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what.

    Attributes:
        view: The token that may look.
        control: The token that may also stop a training and ask it to capture; None:
            nobody may.
        hosts: Names, besides those of this machine, under which the server may be
            addressed.
    """

    view: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    control: str | None = field(
        default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES)
    )
    hosts: frozenset[str] = frozenset()

    def may_view(self, token: str) -> bool:
        """Whether the token may look; in constant time."""
        is_view = _same(token, self.view)
        return self.may_control(token) or is_view

    def may_control(self, token: str) -> bool:
        """Whether the token may ask a training for something; in constant time."""
        return self.control is not None and _same(token, self.control)

    def is_host(self, headers: Iterable[str]) -> bool:
        """Whether these ``Host`` headers, one at most, address this server."""
        names = [host_name(header) for header in headers]
        if len(names) != 1:
            return False
        return is_loopback(names[0]) or names[0] in self.hosts


class Guard:
    """Refuses what may not be asked, and adds the headers of every answer.

    403: the ``Host`` is another's, or the request comes from another site; 401: the
    token is missing or may not do this; 413, 414, 415: size, length of the address, or
    type; 503: too many requests are being answered.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        # Of requests, and of streams of events, which last.
        self._n_answering = [0, 0]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # A WebSocket: there are none here.

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                pairs = ((n.encode(), v.encode()) for n, v in HEADERS.items())
                message["headers"] = [*message.get("headers", []), *pairs]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(with_headers, *refusal)
            return
        if scope["method"] == "POST":
            body = await _body(receive)
            if body is None:
                await _refuse(with_headers, 413, f"more than {MAX_BODY} bytes")
                return
            receive = _again(body, receive)
        kind = scope["path"] == EVENTS
        if self._n_answering[kind] >= MAX_ANSWERING:
            await _refuse(with_headers, 503, "too many requests at once: ask again")
            return
        self._n_answering[kind] += 1
        try:
            await self._app(scope, receive, with_headers)
        finally:
            self._n_answering[kind] -= 1

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason why the request is refused; None: it may go on."""
        values: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            values.setdefault(name.decode("latin-1"), []).append(
                value.decode("latin-1")
            )
        if not self._access.is_host(values.get("host", [])):
            return 403, "this server does not answer to that Host: use --allowed-host"
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_URL:
            return 414, "the address is too long"
        if scope["method"] == "POST":
            refusal = _post_refusal(values)
            if refusal is not None:
                return refusal
        if not scope["path"].startswith("/api/"):
            return None
        token = (values.get(TOKEN_HEADER) or [""])[0]
        if not self._access.may_view(token):
            return 401, "a token is missing: open the address that tdbg ui printed"
        if scope["method"] == "POST" and not self._access.may_control(token):
            return 401, "this token only lets you look"
        return None


def _post_refusal(values: dict[str, list[str]]) -> tuple[int, str] | None:
    if values.get("sec-fetch-site", ["same-origin"]) != ["same-origin"]:
        return 403, "requests from other sites are refused"
    kind = (values.get("content-type") or [""])[0].partition(";")[0].strip().lower()
    if kind != "application/json":
        return 415, "a request must be application/json"
    return None


async def _body(receive: Receive) -> bytes | None:
    """The body, whatever its length was said to be; None if too long, or cut."""
    parts, n_bytes, more = [], 0, True
    while more and n_bytes <= MAX_BODY:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        n_bytes += len(parts[-1])
        more = message.get("more_body", False)
    return b"".join(parts) if n_bytes <= MAX_BODY else None


def _again(body: bytes, receive: Receive) -> Receive:
    """Receives a body that was read before, and then what comes."""
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


async def _refuse(send: Send, status: int, reason: str) -> None:
    content = json.dumps({"error": reason}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
