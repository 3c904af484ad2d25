"""Parquet: a row a step, a column a tensor, whose values are the bytes of an array."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.reader.contenders import Array, Arrays

# Rows of a group, as long as the values of one tensor in it stay below a MiB.
MOST_ROWS, MOST_BYTES = 64, 1 << 20


class Format:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.parquet"

    def write(self, steps: Iterator[Arrays]) -> None:
        """Nothing is compressed; a dictionary and statistics would only cost."""
        first = next(steps)
        n_bytes = max(array.nbytes for array in first.values())
        n_rows = max(1, min(MOST_ROWS, MOST_BYTES // n_bytes))
        names = sorted(first)
        schema = pa.schema([(name, pa.binary(first[name].nbytes)) for name in names])
        plain = {
            "compression": "NONE",
            "use_dictionary": False,
            "write_statistics": False,
        }
        rest = chain([first], steps)
        with pq.ParquetWriter(self.path, schema, **plain) as writer:
            while group := list(islice(rest, n_rows)):
                rows = {name: [a[name].tobytes() for a in group] for name in names}
                writer.write_table(pa.table(rows, schema))

    def names(self) -> set[str]:
        with self._open() as file:
            return set(file.schema_arrow.names)

    def one(self, step: int, name: str) -> Array:
        with self._open() as file:
            n_rows = file.metadata.row_group(0).num_rows
            group, row = divmod(step, n_rows)
            return _arrays(file, group, [name])[0][row]

    def column(self, name: str) -> list[Array]:
        with self._open() as file:
            groups = range(file.num_row_groups)
            return [one for g in groups for one in _arrays(file, g, [name])[0]]

    def everything(self) -> Iterator[Array]:
        with self._open() as file:
            for group in range(file.num_row_groups):
                for row in zip(*_arrays(file, group, None), strict=True):
                    yield from row

    def _open(self) -> pq.ParquetFile:
        return pq.ParquetFile(self.path, memory_map=True)


def _arrays(file: pq.ParquetFile, group: int, names: list[str] | None) -> list[Array]:
    """Of each column of a group: rows x elements."""
    table = file.read_row_group(group, columns=names, use_threads=False)
    found = []
    for column in table.columns:
        (values,) = column.chunks
        plain = np.frombuffer(values.buffers()[1], np.float32)
        found.append(plain.reshape(len(values), -1))
    return found
