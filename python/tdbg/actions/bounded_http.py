"""Requests over HTTP that end in time, whatever the server does.

A timeout of urllib3's is one of each call of the system: a server that sends a byte a
second, or headers without end, is never late.  Here a request has so many seconds up
to the end of the answer's headers, and the body is not read.

Thread safety: that of urllib3.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from tdbg.errors import ConfigurationError

__all__ = ["bounded_pool", "bounded_session", "host_of"]

# How often a connection is looked for that was not there when the time was over.
_LOOK_SECONDS = 0.1


def host_of(action: str, parameter: str, url: object) -> str:
    """Return the host of a URL, which whatever will send there must take.

    Raises:
        ConfigurationError: If it is no URL of http or https, or nothing can be sent
            to it.  The error does not print the URL: it may hold a secret.
    """
    import urllib3

    why = "begin with http://HOST or https://HOST"
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        try:
            host = urllib3.util.parse_url(url).host
            if host:
                # Encodes the name as for a connection.
                host.strip("[]").encode("idna")
                urllib3.PoolManager().connection_from_url(url)
                return str(host)
        except (ValueError, urllib3.exceptions.HTTPError):
            why = "name a host and a port that a connection can be made to"
    msg = f"action {action}: its {parameter} must {why}"
    raise ConfigurationError(msg)


def bounded_pool(seconds: float, **options: Any) -> Any:
    """Make a ``urllib3.PoolManager`` whose requests end within *seconds*.

    Connecting is bounded by the request's own timeout, which should be no longer.

    Args:
        seconds: From the request to the end of the answer's headers.
        options: Those of ``PoolManager``.
    """
    import urllib3

    def bounded(pool: Any) -> Any:
        class Connection(pool.ConnectionCls):  # type: ignore[misc]
            def request(self, *args: Any, **kwargs: Any) -> None:
                self.tdbg_watch = _Watch(self, seconds)
                try:
                    super().request(*args, **kwargs)
                except BaseException:
                    self.tdbg_watch.end()
                    raise

            def getresponse(self) -> Any:
                error = answer = None
                try:
                    answer = super().getresponse()
                except Exception as met:
                    error = met
                finally:
                    self.tdbg_watch.end()
                # Headers that were cut may look whole.
                if self.tdbg_watch.is_late:
                    if answer is not None:
                        answer.close()
                    self.close()
                    msg = "the answer took too long"
                    raise TimeoutError(msg) from error
                if error is not None:
                    raise error
                return answer

        return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

    manager = urllib3.PoolManager(**options)
    manager.pool_classes_by_scheme = {
        "http": bounded(urllib3.HTTPConnectionPool),
        "https": bounded(urllib3.HTTPSConnectionPool),
    }
    return manager


def bounded_session(seconds: float) -> Any:
    """Make a ``requests.Session`` whose requests end within *seconds*.

    Its answers have no body, and a redirection, which may lead anywhere, is a refusal:
    status 400.

    Args:
        seconds: From the request to the end of the answer's headers.
    """
    import requests

    class Adapter(requests.adapters.HTTPAdapter):
        def init_poolmanager(
            self, connections: int, maxsize: int, block: bool = False, **options: Any
        ) -> None:
            self.poolmanager = bounded_pool(
                seconds, num_pools=connections, maxsize=maxsize, block=block, **options
            )

        def send(self, request: Any, *args: Any, **options: Any) -> Any:
            answer = super().send(request, *args, **{**options, "stream": True})
            answer.raw.close()  # Not given back to its pool, as it may still send.
            short = requests.Response()
            code = answer.status_code
            short.status_code = 400 if 300 <= code < 400 else code
            short.reason, short.url = answer.reason, answer.url
            short.request = request
            if pause := answer.headers.get("Retry-After", ""):
                short.headers["Retry-After"] = pause[:64]
            return short

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, Adapter())
    return session


class _Watch:
    """Shuts a connection when its time is over; its reader then meets the end."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._has_ended = threading.Event()
        self.is_late = False
        thread = threading.Thread(target=self._run, name="tdbg-http", daemon=True)
        thread.start()

    def end(self) -> None:
        self._has_ended.set()

    def _run(self) -> None:
        wait = self._seconds
        while not self._has_ended.wait(wait):
            self.is_late = True
            wait = _LOOK_SECONDS
            connected = self._connection.sock
            if connected is not None:
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
