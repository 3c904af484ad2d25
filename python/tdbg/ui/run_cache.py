"""The rows of runs that have ended, kept from one server to the next.

To say how a run is costs milliseconds, so a thousand of them take seconds.  A run that
has ended says the same until its files change: the cache holds it under the fingerprint
of the files.  It lies in ``$XDG_CACHE_HOME/tdbg`` (usually ``~/.cache/tdbg``), which
only its owner may read, and may be deleted at any time.

Thread safety: may be used from any thread, and by several servers at once.

Errors: none.  A cache that cannot be read or written is one that holds nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

__all__ = ["RunCache", "cache_file"]

# The rows that were read longest ago go first.
MOST_ROWS = 50_000
# Packages whose code decides what a row says.
SOURCES = ("tdbg.ui", "tdbg.view", "tdbg.query", "tdbg.compare", "tdbg.trial")
# Another server may hold the file for so long.
WAIT_SECONDS = 0.2
TABLE = """
CREATE TABLE IF NOT EXISTS runs (path TEXT PRIMARY KEY, files TEXT, row TEXT)
"""
CUT = "DELETE FROM runs WHERE rowid <= (SELECT max(rowid) - ? FROM runs)"


def cache_file() -> Path:
    """Return where the cache of this user lies.

    Each version of the code that makes rows has a file of its own.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(home) if Path(home).is_absolute() else Path.home() / ".cache"
    return folder / "tdbg" / f"runs-{_version()}.sqlite"


def _version() -> str:
    """Return what changes with the code: names, sizes and times of its files."""
    found = hashlib.sha256()
    for package in SOURCES:
        for entry in sorted(_files(package)):
            found.update(entry.encode())
    return found.hexdigest()[:12]


def _files(package: str) -> Iterator[str]:
    folder = Path(str(resources.files(package)))
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                yield f"{entry.path} {status.st_size} {status.st_mtime_ns}"


class RunCache:
    """Rows of the table of runs.

    Args:
        file: Where they lie; None: nowhere, and nothing is kept.
    """

    def __init__(self, file: Path | None) -> None:
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        if file is not None:
            with contextlib.suppress(OSError, sqlite3.Error):
                self._database = _opened(file)

    def get(self, path: str, files: int) -> dict[str, Any] | None:
        """Return what was kept of a run whose files are as they were then.

        Args:
            path: Directory of the run.
            files: The fingerprint of the run's files.
        """
        question = "SELECT row FROM runs WHERE path = ? AND files = ?"
        found = self._ask(question, (path, str(files)))
        with contextlib.suppress(ValueError, TypeError):
            row = json.loads(found[0][0]) if found else None
            return row if isinstance(row, dict) else None
        return None

    def put(self, path: str, files: int, row: dict[str, Any]) -> None:
        """Keep a row; that of the same run is replaced."""
        values = (path, str(files), json.dumps(row))
        self._ask("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", values)

    def _ask(self, question: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._database is None:
                return []
            try:
                return self._database.execute(question, values).fetchall()
            except sqlite3.OperationalError:  # Another server has it: not this time.
                return []
            except sqlite3.Error:
                self._database = None
                return []


def _opened(file: Path) -> sqlite3.Connection:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    database = sqlite3.connect(
        file, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )
    # What a power failure loses is made again.
    for setting in ("journal_mode = WAL", "synchronous = OFF"):
        database.execute(f"PRAGMA {setting}")
    database.execute(TABLE)
    database.execute(CUT, (MOST_ROWS,))
    return database
