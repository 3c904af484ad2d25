"""zarr v3: one group a step, one array of one chunk a tensor, no compression."""

from __future__ import annotations

import numpy as np
import zarr

from benchmarks.writer.contenders import Arrays
from benchmarks.writer.contenders._files import FileStore


class Store(FileStore):
    """A folder of folders."""

    def write(self, step: int) -> None:
        """One group."""
        group = zarr.open_group(self.path(step), mode="w")
        for name, array in self._arrays.items():
            group.create_array(name, data=array, chunks=array.shape, compressors=None)

    def read(self, step: int) -> Arrays:
        """All of it."""
        group = zarr.open_group(self.path(step), mode="r")
        return {name: np.asarray(group[name][...]) for name in self._arrays}
