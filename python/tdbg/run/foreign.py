"""Directories that other tools wrote, and that can become runs.

Thread safety: pure functions of the file system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "IMPORT_FILE",
    "are_of_smdebug",
    "is_imported",
    "is_smdebug_output",
    "only_read",
    "part_of_smdebug",
]

# How far an import is, in the run that it makes.
IMPORT_FILE = "import.json"

# What smdebug's hook makes in its output directory: collections first, then an event
# and an index file for each step.
_COLLECTIONS = "collections"
_STEPS = {"index", "events", "training_job_end.ts"}
_FILE = re.compile(
    r"(?:(.*)/)?(?:(collections|events|index)/\d+/[^/]+|(training_job_end\.ts))"
)


def is_smdebug_output(directory: str | os.PathLike[str]) -> bool:
    """Whether smdebug's hook wrote a directory; False where we may not look into it."""
    try:
        return are_of_smdebug(entry.name for entry in os.scandir(Path(directory)))
    except OSError:
        return False


def are_of_smdebug(names: Iterable[str]) -> bool:
    """Whether these are the names in a directory that smdebug's hook wrote."""
    found = set(names)
    return _COLLECTIONS in found and not _STEPS.isdisjoint(found)


def part_of_smdebug(path: str) -> tuple[str, str] | None:
    """Return which output directory a file would be in, and in what of it.

    None: smdebug's hook writes no file of this name.

    Example:
        >>> part_of_smdebug("job/index/000000000/000000000000_worker_0.json")
        ('job', 'index')
    """
    found = _FILE.fullmatch(path)
    return (found[1] or "", found[2] or found[3]) if found else None


def only_read(place: object) -> str:
    """Say why what smdebug wrote at a path or URL is no run, and what to do."""
    how = f"'tdbg import smdebug {place} RUN' makes a run of it"
    return f"smdebug wrote it, so tdbg only reads it; {how}"


def is_imported(run: Path) -> bool:
    """Whether a run was made of what another tool wrote."""
    return (run / IMPORT_FILE).exists()
