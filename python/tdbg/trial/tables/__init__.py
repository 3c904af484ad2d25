"""A run as tables of other libraries.

Imports none of them before it is asked for one.
"""

from __future__ import annotations

from tdbg.trial.tables.columns import TABLES, Column, Kind, TableColumns

__all__ = ["TABLES", "Column", "Kind", "TableColumns"]
