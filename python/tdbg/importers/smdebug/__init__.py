"""Reads what smdebug wrote, and makes runs of it; smdebug itself is not needed.

docs/smdebug-runs.md says what becomes of what.
"""

from __future__ import annotations

from tdbg.importers.smdebug.files import Files, LocalFiles, files_at
from tdbg.importers.smdebug.importer import Changed, Importer, ImportPass, has_state

__all__ = [
    "Changed",
    "Files",
    "ImportPass",
    "Importer",
    "LocalFiles",
    "files_at",
    "has_state",
]
