"""A store of S3 in a process of its own, behind a proxy that adds latency and counts.

    with RemoteStore(folder, server="rclone") as store:
        store.latency(0.02)
        ...
        requests, n_bytes = store.counts()

Server and proxy are those of the tests (tests/python/helpers).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from benchmarks._harness import check
from benchmarks._harness.machine import ROOT

__all__ = ["BUCKET", "SERVERS", "RemoteStore"]

BUCKET = "s3://bucket"
SERVERS = ("rclone", "moto")
# For a part of an object rclone gives the checksum of the whole.
_CHECKSUMS = {
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
}
HELPERS = str(ROOT / "tests" / "python" / "helpers")


class RemoteStore:
    """The store; while it is open, the environment leads clients to it.

    Args:
        folder: Where it keeps objects.
        server: One of ``SERVERS``.
    """

    def __init__(self, folder: Path, server: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, folder, server), daemon=True
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        self._before = dict(os.environ)
        os.environ.update({**self._ask("environment"), **_CHECKSUMS})
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.clear()
        os.environ.update(self._before)
        self._connection.close()
        self._process.join()

    def latency(self, seconds: float) -> None:
        """Add so much to each request from now on."""
        self._ask(seconds)

    def counts(self) -> tuple[int, int]:
        """The requests since the last call, and the bytes of their answers."""
        requests, n_bytes = self._ask("counts")
        return requests, n_bytes

    def _ask(self, what: Any) -> Any:
        self._connection.send(what)
        check(self._connection.poll(60), "the store does not answer")
        return self._connection.recv()


def _serve(connection: Connection, folder: Path, server: str) -> None:
    """In the process of the store."""
    sys.path.append(HELPERS)
    from fault_proxy import FaultProxy, stalls
    from object_stores import environment, moto_server, rclone_server

    with ExitStack() as stack:
        made = rclone_server(folder) if server == "rclone" else moto_server()
        proxy = stack.enter_context(FaultProxy(stack.enter_context(made)))
        while True:
            try:
                asked = connection.recv()
            except EOFError:
                return
            if asked == "environment":
                connection.send(environment(proxy.url))
            elif asked == "counts":
                connection.send((len(proxy.requests), proxy.n_bytes))
                proxy.requests.clear()
                proxy.n_bytes = 0
            else:
                proxy.faults = stalls(asked)
                connection.send(None)
