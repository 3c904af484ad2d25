"""NumPy's npz, uncompressed, one file a step."""

from __future__ import annotations

import numpy as np

from benchmarks.writer.contenders import Arrays
from benchmarks.writer.contenders._files import FileStore


class Store(FileStore):
    """numpy.savez, numpy.load."""

    def write(self, step: int) -> None:
        """One file."""
        with self.path(step).open("wb") as file:
            np.savez(file, **self._arrays)

    def read(self, step: int) -> Arrays:
        """All of it."""
        with np.load(self.path(step)) as loaded:
            return {name: loaded[name] for name in loaded.files}
