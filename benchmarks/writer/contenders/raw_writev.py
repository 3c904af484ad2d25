"""The least there is: the bytes of all tensors, appended to one open file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from benchmarks.writer.contenders import Arrays

IOV_MAX = 1024


class Store:
    """One file; a step is found by its number."""

    def __init__(self, folder: Path, arrays: Arrays) -> None:
        self._arrays = arrays
        self._path = folder / "raw"
        self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._views = [memoryview(array).cast("B") for array in arrays.values()]
        self._n_bytes = sum(view.nbytes for view in self._views)
        self._offsets: dict[int, int] = {}
        self._length = 0

    def write(self, step: int) -> None:
        """Append, 1024 tensors a call."""
        self._offsets[step] = self._length
        for start in range(0, len(self._views), IOV_MAX):
            views = self._views[start : start + IOV_MAX]
            requested = sum(view.nbytes for view in views)
            done = os.writev(self._file, views)
            if done != requested:
                msg = f"wrote {done} of {requested} bytes"
                raise OSError(msg)
        self._length += self._n_bytes

    def read(self, step: int) -> Arrays:
        """Cut the step's bytes into the tensors that it was made of."""
        stored = np.fromfile(
            self._path, np.uint8, count=self._n_bytes, offset=self._offsets[step]
        )
        found, at = {}, 0
        for name, array in self._arrays.items():
            part = stored[at : at + array.nbytes]
            found[name] = part.view(array.dtype).reshape(array.shape)
            at += array.nbytes
        return found

    def forget(self, step: int) -> None:
        """Steps share a file."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
