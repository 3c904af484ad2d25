"""HDF5 by h5py: one file a step, one dataset a tensor."""

from __future__ import annotations

import h5py

from benchmarks.writer.contenders import Arrays
from benchmarks.writer.contenders._files import FileStore


class Store(FileStore):
    """Contiguous datasets, no compression."""

    def write(self, step: int) -> None:
        """One file."""
        with h5py.File(self.path(step), "w") as file:
            for name, array in self._arrays.items():
                file.create_dataset(name, data=array)

    def read(self, step: int) -> Arrays:
        """All of it."""
        with h5py.File(self.path(step), "r") as file:
            return {name: file[name][()] for name in self._arrays}
