"""What a filter of a query says about parts of a table, without reading them.

A part is described by a *guarantee*, an expression that holds for all of its rows, such
as ``tensor == "fc.weight"``.  Arrow tells whether a filter can hold beside it.

Thread safety: a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

__all__ = ["Filter"]

_FORMAT = ds.ParquetFileFormat()
# Nothing is opened: the fragments are names.
_NOWHERE = pyarrow.fs.LocalFileSystem()


class Filter:
    """The filter of a query.

    Args:
        expression: As DuckDB pushes it down.
        schema: Of the table.
    """

    def __init__(self, expression: ds.Expression, schema: pa.Schema) -> None:
        self.expression = expression
        self._schema = pa.schema([_plain(field) for field in schema])

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns that it names."""
        rows = self._schema.empty_table()
        return frozenset(
            name for name in rows.column_names if not self._binds(rows, name)
        )

    def _binds(self, rows: pa.Table, without: str) -> bool:
        try:
            rows.drop_columns([without]).filter(self.expression)
        except pa.ArrowInvalid:
            return False
        return True

    def possible(self, parts: Sequence[ds.Expression]) -> list[int]:
        """Return the numbers of the parts that may have a row for which it holds."""
        return self._kept(self.expression, parts)

    def certain(self, parts: Sequence[ds.Expression]) -> bool:
        """Whether it holds for every row of these parts."""
        return not self._kept(~self.expression, parts)

    def _kept(
        self, expression: ds.Expression, parts: Sequence[ds.Expression]
    ) -> list[int]:
        fragments = [
            _FORMAT.make_fragment(str(i), _NOWHERE, partition_expression=part)
            for i, part in enumerate(parts)
        ]
        whole = ds.FileSystemDataset(fragments, self._schema, _FORMAT, _NOWHERE)
        return [int(each.path) for each in whole.get_fragments(filter=expression)]


def _plain(field: pa.Field) -> pa.Field:
    """Return the field with text for the numbers of a dictionary."""
    if pa.types.is_dictionary(field.type):
        return pa.field(field.name, field.type.value_type)
    return field
