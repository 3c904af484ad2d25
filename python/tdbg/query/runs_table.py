"""The table ``runs``: a row for each run.

Thread safety: may be used from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tdbg.query.dataset import RUN, Scan
from tdbg.query.filters import Filter
from tdbg.query.runs import RunRecord, record_of, unreadable
from tdbg.query.snapshot import Snapshot
from tdbg.trial import TABLES, Column, arrow_type

__all__ = ["TableRuns"]


class TableRuns(ds.Dataset):  # type: ignore[misc]
    """The table ``runs``.

    Args:
        snapshot: The runs.
        by_name: Those of the columns with values by name that the query may use: their
            fields follow from what all runs have, so that each is read for them.
    """

    def __init__(self, snapshot: Snapshot, by_name: Sequence[str]) -> None:
        self._snapshot = snapshot
        self._by_name = by_name
        self._columns = [
            each
            for each in (RUN, *TABLES["runs"])
            if each.kind not in ("numbers", "values") or each.name in by_name
        ]
        records = self._records(snapshot.names, by_name) if by_name else {}
        self._schema = pa.schema(
            [_field_of(each, list(records.values())) for each in self._columns]
        )

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,  # noqa: A002 - pyarrow's name
        **_: Any,
    ) -> Scan:
        """Return the rows for which the filter holds; see ``TableOfRuns.scanner``."""
        chosen = [self._schema.field(name) for name in columns or self._schema.names]
        names, needed = self._snapshot.names, {each.name for each in chosen}
        if filter is not None:
            asked = Filter(filter, self._schema)
            needed |= asked.columns
            kept = asked.possible([ds.field(RUN.name) == name for name in names])
            names = [names[i] for i in kept]
        fields = [each for each in self._schema if each.name in needed]
        rows = self._rows(names, fields)
        rows = rows if filter is None else rows.filter(filter)
        rows = rows.select([each.name for each in chosen])
        return Scan(rows.schema, iter(rows.to_batches()))

    def _rows(self, names: Sequence[str], fields: Sequence[pa.Field]) -> pa.Table:
        asked = [each.name for each in fields if each.name != RUN.name]
        records = self._records(names, asked)
        arrays = [
            pa.array([_value(name, records[name], field) for name in names], field.type)
            for field in fields
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _records(
        self, names: Sequence[str], columns: Sequence[str]
    ) -> dict[str, RunRecord]:
        trials = self._snapshot.open(names)

        def record(name: str) -> RunRecord:
            if name in trials:
                return record_of(trials[name], columns)
            runs = self._snapshot.runs
            return unreadable(runs.path(name), runs.unreadable[name], columns)

        found = self._snapshot.workers.map(record, names)
        return dict(zip(names, found, strict=True))


def _field_of(column: Column, records: Sequence[RunRecord]) -> pa.Field:
    if column.kind not in ("numbers", "values"):
        kind = pa.string() if column.kind == "word" else arrow_type(column.kind)
        return pa.field(column.name, kind)
    values = [getattr(each, column.name) for each in records]
    names = dict.fromkeys(name for each in values for name in each)
    fields = [
        pa.field(name, _type_of(each.get(name) for each in values)) for name in names
    ]
    # Arrow has structs without fields, and DuckDB has none.
    return pa.field(column.name, pa.struct(fields or [pa.field("none", pa.float64())]))


def _type_of(values: Iterable[Any]) -> pa.DataType:
    """Return the type of what runs say: numbers if all of them say numbers."""
    known = [_number(value) for value in values if value is not None]
    if all(isinstance(each, int) for each in known):
        return pa.int64()
    return pa.string() if None in known else pa.float64()


def _number(value: Any) -> int | float | None:
    """Return a setting as a number; of one that changes the greatest value."""
    if isinstance(value, tuple):
        return float(value[1])
    for kind in (int, float):
        try:
            found = kind(value) if isinstance(value, str) else value
        except ValueError:
            continue
        return found if abs(found) < 2**63 or isinstance(found, float) else None
    return None


def _value(name: str, record: RunRecord, field: pa.Field) -> Any:
    if field.name == RUN.name:
        return name
    if not pa.types.is_struct(field.type):
        return record.values[field.name]
    found: Mapping[str, Any] = getattr(record, field.name)
    return {
        each.name: _as(found[each.name], each.type)
        for each in field.type
        if each.name in found
    }


def _as(value: Any, type_: pa.DataType) -> Any:
    if not pa.types.is_string(type_):
        return _number(value)
    return f"{value[0]} to {value[1]}" if isinstance(value, tuple) else str(value)
