"""Questions about many runs at once: docs/tables.md.

Imports neither DuckDB nor Arrow before a question is asked.
"""

from __future__ import annotations

from tdbg.query.answer import QueryAnswer
from tdbg.query.database import Database, sql
from tdbg.query.found import FoundRuns, Runs
from tdbg.query.runs import (
    RUN_COLUMNS,
    RunRecord,
    is_higher_better,
    record_of,
    unreadable,
)

__all__ = [
    "RUN_COLUMNS",
    "Database",
    "FoundRuns",
    "QueryAnswer",
    "RunRecord",
    "Runs",
    "is_higher_better",
    "record_of",
    "sql",
    "unreadable",
]
