"""A cache of its own for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tdbg.importers import opening


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What one test converts, or follows, is not there for the next."""
    monkeypatch.setenv("TDBG_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "smdebug"
    for each in list(opening._followers.values()):
        each.close()
    opening._followers.clear()
