"""The tables of a profile as they lie in the run.

A table is read when it is asked for, one read for each record.  What was read stays,
so that a live run costs its new rows only.

Thread safety: none; the trial's lock is held around every use.

Errors: none.  Records that cannot be read are missing, and ``problems()`` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import Role
from tdbg.run.profile_tables import (
    NOT_MEASURED,
    TABLES,
    core_type,
    parse_columns,
    parse_table_name,
)
from tdbg.trial.shards import role_of
from tdbg.trial.writers import WriterReader

__all__ = ["ProfileTables", "TablePart", "fitted", "joined", "type_of"]

Rows = NDArray[np.void]

# A row may lie behind the end of what was asked for and still tell of it: samplers
# write one in a minute at least.
_MARGIN_NS = 61_000_000_000


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows of one table that one writer wrote.

    Attributes:
        writer: Who wrote them.
        instance: Whose they are where a table has several: a disk, ...
        rows: In the order of their records, of the type that they were stored with.
    """

    writer: WriterReader
    instance: str
    rows: Rows


@dataclass(slots=True)
class _Known:
    """The definition of a table, and its rows as far as they were read."""

    number: int
    instance: str
    columns: np.dtype[Any]
    parts: list[Rows]
    after: int = 0


class ProfileTables:
    """The tables of all writers of a run."""

    def __init__(self) -> None:
        self._of_writers: dict[str, _OfWriter] = {}

    def names(self, writers: Sequence[WriterReader]) -> set[str]:
        """Return the names of the tables that there are."""
        return {name for writer in writers for name in self._of(writer).known}

    def read(
        self,
        writers: Sequence[WriterReader],
        table: str,
        times: tuple[int | None, int | None] = (None, None),
    ) -> list[TablePart]:
        """Return the rows of a table.

        Args:
            writers: Whose rows.
            table: Name of the table.
            times: Only records that may have rows from here on and before there; a
                record beyond is added.  Monotonic ns.
        """
        found = []
        for writer in writers:
            for known in self._of(writer).known.get(table, ()):
                rows = _read(writer, known, times)
                if len(rows):
                    found.append(TablePart(writer, known.instance, rows))
        return found

    def _of(self, writer: WriterReader) -> _OfWriter:
        found = self._of_writers.get(writer.name)
        if found is None or found.n_openings != writer.n_openings:
            found = self._of_writers[writer.name] = _OfWriter(writer)
        found.take_in()
        return found


class _OfWriter:
    """The tables of one writer, by name."""

    def __init__(self, writer: WriterReader) -> None:
        self._writer = writer
        self.n_openings = writer.n_openings
        self.known: dict[str, list[_Known]] = {}
        self._n_definitions = 0

    def take_in(self) -> None:
        """Note the definitions that have come."""
        reader = self._writer.reader
        if reader.n_definitions == self._n_definitions:
            return
        new = reader.definitions(self._n_definitions)
        self._n_definitions += len(new)
        for definition in new:
            name = parse_table_name(definition.name)
            if name is None or role_of(definition) is not Role.TABLE:
                continue
            try:
                columns = parse_columns(definition.dtype)
            except ValueError:
                continue  # Of a later tdbg.
            if columns.itemsize == definition.item_size:
                table, instance = name
                of_table = self.known.setdefault(table, [])
                of_table.append(_Known(definition.id, instance, columns, []))


def _read(
    writer: WriterReader, known: _Known, times: tuple[int | None, int | None]
) -> Rows:
    start, stop = times
    if times != (None, None) and not known.parts:
        stop = None if stop is None else stop + _MARGIN_NS
        data, _ = writer.reader.read_samples(known.number, start, stop)
        return data.view(known.columns)
    data, known.after = writer.reader.read_samples(known.number, after=known.after)
    if len(data):
        known.parts.append(data.view(known.columns))
    if len(known.parts) > 1:
        known.parts = [np.concatenate(known.parts)]
    return known.parts[0] if known.parts else np.empty(0, known.columns)


def type_of(table: str, parts: Sequence[TablePart]) -> np.dtype[Any]:
    """Return the type in which rows of a table are given: the newest of this tdbg.

    Cores: as many as the widest host has.  A table that this tdbg does not know has
    the columns that it was first stored with.
    """
    if table == "core":
        widths = [part.rows.dtype["busy"].shape[0] for part in parts if _is_core(part)]
        return core_type(max(widths, default=1))
    known = TABLES.get(table)
    if known is not None:
        return known
    return parts[0].rows.dtype if parts else np.dtype([("time", "<i8")])


def _is_core(part: TablePart) -> bool:
    names = part.rows.dtype.names or ()
    return "busy" in names and part.rows.dtype["busy"].shape != ()


def fitted(rows: Rows, table: np.dtype[Any]) -> Rows:
    """Return rows as another type of the same table has them, by names of columns.

    Columns that they lack are not measured; those that *table* lacks are left out.
    """
    if rows.dtype == table:
        return rows
    found = np.zeros(len(rows), table)
    for name in table.names or ():
        column = found[name]
        column[...] = _not_measured(column.dtype)
        if name not in (rows.dtype.names or ()):
            continue
        given = rows[name]
        if given.ndim == column.ndim == 2:
            width = min(given.shape[1], column.shape[1])
            column[:, :width] = given[:, :width]
        elif given.ndim == column.ndim:
            column[...] = given
    return found


def _not_measured(column: np.dtype[Any]) -> Any:
    if column.kind == "f":
        return np.nan
    if column.kind == "u":
        return NOT_MEASURED >> (64 - 8 * column.itemsize)
    return -1


def joined(parts: Sequence[Rows], table: np.dtype[Any]) -> Rows:
    """All rows, by time; those of the same time in the order of their workers."""
    rows = np.concatenate(parts) if parts else np.empty(0, table)
    if len(rows) and (np.diff(rows["time"]) < 0).any():
        rows = rows[np.argsort(rows["time"], kind="stable")]
    return rows
