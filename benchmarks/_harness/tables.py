"""Tables: text for the terminal, Markdown for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Table"]


@dataclass
class Table:
    """Rows of text under a title.

    Tables of the same title in several results are one table of the report: later
    results replace rows whose first cell they repeat.
    """

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    #: Said below the table: what the figures are, how many, what is wrong with them.
    note: str = ""

    def add(self, *cells: object) -> None:
        """Append a row.

        Raises:
            ValueError: If there are more or fewer cells than columns.
        """
        if len(cells) != len(self.columns):
            msg = f"{len(cells)} cells for {len(self.columns)} columns: {cells}"
            raise ValueError(msg)
        self.rows.append([str(cell) for cell in cells])

    def merge(self, other: Table) -> None:
        """Take over the rows of *other*, replacing those of the same first cell."""
        merged = {row[0]: row for row in self.rows}
        merged.update({row[0]: row for row in other.rows})
        self.columns, self.rows = other.columns, list(merged.values())
        self.note = other.note or self.note

    def text(self) -> str:
        """Aligned columns."""
        lines = [list(map(str, self.columns)), *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        printed = [
            "  ".join(
                cell.ljust(width) for cell, width in zip(line, widths, strict=True)
            )
            for line in lines
        ]
        note = [self.note] if self.note else []
        return "\n".join(
            [self.title, *(f"  {line.rstrip()}" for line in printed), *note]
        )

    def markdown(self) -> str:
        """A table of docs/benchmarks.md."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        note = f"\n\n{self.note}" if self.note else ""
        return f"### {self.title}\n\n{body}{note}\n"
