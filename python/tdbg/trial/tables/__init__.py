"""A run as tables of other libraries: docs/tables.md.

Imports none of them before it is asked for one.
"""

from __future__ import annotations

from tdbg.trial.tables.arrow import arrow_type, record_batch, schema_of
from tdbg.trial.tables.batch import Batch, Scope, Words
from tdbg.trial.tables.columns import TABLES, Column, Kind, TableColumns
from tdbg.trial.tables.step_numbers import STEP_COLUMNS, StepNumbers
from tdbg.trial.tables.table import RunTable

__all__ = [
    "STEP_COLUMNS",
    "TABLES",
    "Batch",
    "Column",
    "Kind",
    "RunTable",
    "Scope",
    "StepNumbers",
    "TableColumns",
    "Words",
    "arrow_type",
    "record_batch",
    "schema_of",
]
