"""Directories that other tools wrote, and that can become runs.

Thread safety: pure functions of the file system.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["are_of_smdebug", "is_smdebug_output"]

# What smdebug's hook makes in its output directory: collections first, then an event
# and an index file for each step.
_COLLECTIONS = "collections"
_STEPS = {"index", "events", "training_job_end.ts"}


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
