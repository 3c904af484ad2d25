"""Fixtures: moto's server of S3, and a proxy in front of it that can do harm.

The conftest of a folder names them for its tests.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import pytest

from fault_proxy import FaultProxy
from object_stores import environment, moto_server, reset_moto
from tdbg.remote import fetching


@pytest.fixture(scope="module")
def moto_port() -> Iterator[int]:
    """The port of a server."""
    with moto_server() as port:
        yield port


@pytest.fixture
def proxy(moto_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy in front of the server, whose bucket is empty; clients find it."""
    reset_moto(moto_port)
    with proxied(moto_port, monkeypatch) as proxy:
        yield proxy


@contextlib.contextmanager
def proxied(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy in front of any server: clients find it, and soon try again."""
    with FaultProxy(port) as proxy:
        for name, value in environment(proxy.url, token=True).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(fetching, "PAUSES", (0.0, 0.0, 0.01))
        yield proxy
        gc.collect()  # Clients close their connections.
