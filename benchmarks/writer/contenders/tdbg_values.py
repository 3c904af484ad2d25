"""tdbg's writer, values as they are (codec "none"), until readers see the step."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.writer.contenders import Arrays
from tdbg import _core
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.directory import create_run


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
        # One call for all of them, as the hooks make it.
        self._batch_capture = _core.BatchCapture(self._capture, (torch.Tensor,))
        if not self._batch_capture.can_read:
            msg = f"torch {torch.__version__} has no C exchange API"
            raise OSError(msg)
        self._entries = tuple(
            _core.TensorEntry(name, int(Role.WEIGHT)) for name in arrays
        )
        self._tensors = tuple(torch.from_numpy(array) for array in arrays.values())
        self._wanted = (_core.schema()["CaptureFlag"]["VALUES"],) * len(arrays)
        self.offered = 0.0

    def write(self, step: int) -> None:
        """Offer every tensor, end the step, and wait until it is visible."""
        start = time.perf_counter()
        left = self._batch_capture.take(
            step, self._entries, self._tensors, self._wanted, 0, 0, 1.0, False
        )
        if left is not None:
            msg = f"{len(left)} tensors were not taken"
            raise OSError(msg)
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
