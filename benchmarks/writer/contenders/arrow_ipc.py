"""Arrow IPC: one file a step, one row a tensor (name, bytes)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.writer.contenders import Arrays
from benchmarks.writer.contenders._files import FileStore

SCHEMA = pa.schema([("name", pa.string()), ("bytes", pa.large_binary())])


class Store(FileStore):
    """A record batch; its bytes are one buffer, so one copy comes first."""

    def write(self, step: int) -> None:
        """One file of one batch."""
        parts = [array.reshape(-1).view(np.uint8) for array in self._arrays.values()]
        ends = np.cumsum([0, *(part.nbytes for part in parts)], dtype=np.int64)
        joined = np.concatenate(parts)
        values = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(),
            len(parts),
            [None, pa.py_buffer(ends), pa.py_buffer(joined)],
        )
        batch = pa.record_batch([pa.array(list(self._arrays)), values], schema=SCHEMA)
        with (
            pa.OSFile(str(self.path(step)), "wb") as file,
            pa.ipc.new_file(file, SCHEMA) as writer,
        ):
            writer.write_batch(batch)

    def read(self, step: int) -> Arrays:
        """All of it, mapped."""
        with pa.memory_map(str(self.path(step))) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
            found = {}
            for row, name in enumerate(batch["name"].to_pylist()):
                array = self._arrays[name]
                raw = np.frombuffer(batch["bytes"][row].as_buffer(), array.dtype)
                found[name] = raw.reshape(array.shape).copy()
            return found
