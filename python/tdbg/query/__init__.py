"""Questions about many runs at once.

Imports neither DuckDB nor Arrow before a question is asked.
"""

from __future__ import annotations

from tdbg.query.runs import (
    RUN_COLUMNS,
    RunRecord,
    is_higher_better,
    record_of,
    unreadable,
)

__all__ = ["RUN_COLUMNS", "RunRecord", "is_higher_better", "record_of", "unreadable"]
