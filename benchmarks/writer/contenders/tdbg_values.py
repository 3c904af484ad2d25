"""tdbg's writer, values as they are (codec "none"), until readers see the step."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.writer.contenders import Arrays
from tdbg import _core
from tdbg.collections import Role
from tdbg.modes import ModeKeys
from tdbg.run_directory import create_run


class Store:
    """One run.  ``offered``: seconds of the last step until the caller could go on."""

    def __init__(self, folder: Path, arrays: Arrays) -> None:
        run = create_run(folder / "run")
        self._arrays = arrays
        self._capture = _core.Capture(
            str(run.path),
            run_uuid=run.uuid,
            attempt_uuid=bytes(16),
            min_free_bytes=0,
            codec="none",
        )
        self._ids = [
            self._capture.define(name, int(Role.WEIGHT), array.dtype.name, array.shape)
            for name, array in arrays.items()
        ]
        self._pointers = [array.ctypes.data for array in arrays.values()]
        self.offered = 0.0

    def write(self, step: int) -> None:
        """Offer every tensor, end the step, and wait until it is visible."""
        start = time.perf_counter()
        values = self._capture.values
        for id_, pointer in zip(self._ids, self._pointers, strict=True):
            values(step, id_, pointer)
        self._capture.end_step(step, ModeKeys.TRAIN.value, step)
        self.offered = time.perf_counter() - start
        self._capture.flush()

    def read(self, step: int) -> Arrays:
        """Through a reader that knows nothing yet."""
        reader = _core.RunReader(self._capture.directory)
        names = {one.id: one.name for one in reader.definitions()}
        table = reader.tensors()
        found = {}
        for index in np.flatnonzero(table["step"] == step):
            name = names[int(table["definition"][index])]
            array = self._arrays[name]
            raw = reader.read_tensor(int(index))
            found[name] = raw.view(array.dtype).reshape(array.shape)
        return found

    def forget(self, step: int) -> None:
        """Steps share a shard."""

    def close(self) -> None:
        """Seal the shard; everything must have been written."""
        self._capture.close()
        counters = self._capture.counters()
        if counters["written"] != counters["offered"]:
            msg = f"tdbg lost records: {counters}"
            raise OSError(msg)
