"""docs/tables.md names the columns that tables have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdbg.trial import TABLES

PAGE = Path(__file__).parents[3] / "docs" / "tables.md"
KINDS = {
    "word": "category",
    "time": "UTC time",
    "numbers": "numbers by name",
    "values": "numbers or text by name",
}


@pytest.mark.parametrize("table", TABLES)
def test_every_column_stands_on_the_page(table: str) -> None:
    section = PAGE.read_text().partition(f"\n### {table}\n")[2].partition("\n### ")[0]
    told = [line for line in section.splitlines() if line.startswith("| `")]
    assert told == [
        f"| `{each.name}` | {KINDS.get(each.kind, each.kind)}"
        f"{' or null' if each.nullable else ''} | {each.unit} | {each.meaning} |"
        for each in TABLES[table]
    ]
