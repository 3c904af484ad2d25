"""Where runs lie that tests make of smdebug's output, and a server of S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from moto_proxy import moto_port, proxy

__all__ = ["moto_port", "proxy"]


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tests, in place of the user's."""
    monkeypatch.setenv("TDBG_CACHE", str(shared_cache))
    return shared_cache
