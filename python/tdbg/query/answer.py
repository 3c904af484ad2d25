"""The answer to a query, as rows and as tables of other libraries.

Thread safety: a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tdbg.config.libraries import library

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

__all__ = ["QueryAnswer"]

# So many rows are printed.
_MOST_PRINTED = 20


class QueryAnswer:
    """The answer to a query.

    Attributes:
        unreadable: Runs that could not be read, and why; the answer lacks them.

    Example:
        >>> answer = tdbg.sql("select state, count(*) as n from runs group by state")
        >>> answer.columns
        ['state', 'n']
    """

    def __init__(self, table: pa.Table, unreadable: Mapping[str, str]) -> None:
        self._table = table
        self.unreadable = dict(unreadable)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as tuples."""
        return zip(*(self._column(i) for i in range(len(self.columns))), strict=True)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries; null is None, and times have a zone."""
        return [dict(zip(self.columns, row, strict=True)) for row in self]

    def _column(self, i: int) -> list[Any]:
        import pyarrow as pa

        column = self._table.column(i)
        if pa.types.is_timestamp(column.type):
            # Python has no nanoseconds.
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
        values: list[Any] = column.to_pylist()
        return values

    def to_arrow(self) -> pa.Table:
        """Return the answer as a table of Arrow."""
        return self._table

    def to_pandas(self) -> pd.DataFrame:
        """Return the answer as a frame of pandas.

        Raises:
            ConfigurationError: If pandas is not installed.
        """
        library("pandas", "'tdbg[tables]'")
        return self._table.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return the answer as a frame of polars.

        Raises:
            ConfigurationError: If polars is not installed.
        """
        found: pl.DataFrame = library("polars", "polars").from_arrow(self._table)
        return found

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the answer as a stream of Arrow's C interface."""
        return self._table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"QueryAnswer({len(self)} rows: {', '.join(self.columns)})"

    def __str__(self) -> str:
        shown = QueryAnswer(self._table.slice(0, _MOST_PRINTED), {})
        rows = [self.columns, *([_text(value) for value in row] for row in shown)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True))
            for row in rows
        ]
        more = len(self) - len(shown)
        lines += [f"and {more:,} more rows"] if more > 0 else []
        return "\n".join(each.rstrip() for each in lines)


def _text(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    return "" if value is None else str(value)
