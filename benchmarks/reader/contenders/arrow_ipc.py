"""Arrow IPC: a record batch a step, mapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.reader.contenders import Array, Arrays


class Format:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.arrow"

    def write(self, steps: Iterator[Arrays]) -> None:
        with pa.OSFile(str(self.path), "wb") as sink:
            writer = None
            for arrays in steps:
                names = sorted(arrays)
                batch = pa.record_batch([pa.array(arrays[n]) for n in names], names)
                if writer is None:
                    writer = pa.ipc.new_file(sink, batch.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()

    def names(self) -> set[str]:
        with pa.memory_map(str(self.path)) as source:
            return set(pa.ipc.open_file(source).schema.names)

    def one(self, step: int, name: str) -> Array:
        with pa.memory_map(str(self.path)) as source:
            batch = pa.ipc.open_file(source).get_batch(step)
            return np.asarray(batch.column(name).to_numpy())

    def column(self, name: str) -> list[Array]:
        with pa.memory_map(str(self.path)) as source:
            file = pa.ipc.open_file(source)
            batches = map(file.get_batch, range(file.num_record_batches))
            return [batch.column(name).to_numpy() for batch in batches]

    def everything(self) -> Iterator[Array]:
        with pa.memory_map(str(self.path)) as source:
            file = pa.ipc.open_file(source)
            for step in range(file.num_record_batches):
                for column in file.get_batch(step).columns:
                    yield column.to_numpy()
