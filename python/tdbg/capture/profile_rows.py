"""Rows of a profile on their way to the run: collected, and written in few records.

Thread safety: any thread.

Errors: for rows that are no table.  Rows that cannot be written are counted by the
core, as all records are.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdbg.run.profile_tables import table_name, written_columns

if TYPE_CHECKING:
    from tdbg.capture.writer import Writer

__all__ = ["ProfileRows"]

# Rows of a table wait for so long at most, while any table gains rows.
_PATIENCE_NS = 1_000_000_000
_MAX_BYTES = 64 << 10

# A name and its columns, as the core takes them.
_Key = tuple[str, str]


class ProfileRows:
    """Appends rows to tables, and writes each as a record about once a second."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._waiting: dict[_Key, bytearray] = {}
        self._columns: dict[np.dtype[Any], str] = {}
        self._due_ns = 0

    def append(self, table: str, rows: NDArray[Any], instance: str = "") -> None:
        """Append rows of one of the types in ``tdbg.run.profile_tables``.

        Args:
            table: Name of the table, such as ``"step"``.
            rows: A structured array; its first column is ``time``.
            instance: Whose rows these are where a table has several: a disk, ...

        Raises:
            ValueError: If the first column is no ``time``.
        """
        columns = self._columns.get(rows.dtype)
        if columns is None:
            if (rows.dtype.names or ("",))[0] != "time":
                msg = f"rows of {table} are of {rows.dtype}, whose first is no time"
                raise ValueError(msg)
            columns = self._columns[rows.dtype] = written_columns(rows.dtype)
        key = table_name(table, instance), columns
        data = rows.tobytes()
        now = time.monotonic_ns()
        with self._lock:
            if not self._waiting:
                self._due_ns = now + _PATIENCE_NS
            waiting = self._waiting.setdefault(key, bytearray())
            waiting += data
            if now >= self._due_ns:
                due, self._waiting = self._waiting, {}
            elif len(waiting) >= _MAX_BYTES:
                due = {key: self._waiting.pop(key)}
            else:
                return
        self._write(due)

    def flush(self) -> None:
        """Hand everything that waits to the core."""
        with self._lock:
            due, self._waiting = self._waiting, {}
        self._write(due)

    def _write(self, due: dict[_Key, bytearray]) -> None:
        # Without the lock: the core may wait for the disk.
        for (name, columns), rows in due.items():
            self._writer.samples(name, columns, rows)
