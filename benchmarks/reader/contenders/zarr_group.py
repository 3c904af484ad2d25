"""zarr 3: an array a tensor, a chunk a step, uncompressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import zarr

from benchmarks.reader.contenders import Array, Arrays


class Format:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.zarr"

    def write(self, steps: Iterator[Arrays]) -> None:
        kept: dict[str, list[Array]] = {}
        for arrays in steps:
            for name, array in arrays.items():
                kept.setdefault(name, []).append(array.copy())
        group = zarr.open_group(str(self.path), mode="w")
        for name, values in kept.items():
            whole = np.stack(values)
            table = group.create_array(
                name,
                shape=whole.shape,
                dtype="float32",
                chunks=(1, *whole.shape[1:]),
                compressors=None,
            )
            table[:] = whole

    def names(self) -> set[str]:
        return set(zarr.open_group(str(self.path), mode="r").array_keys())

    def one(self, step: int, name: str) -> Array:
        return self._table(name, step)

    def column(self, name: str) -> list[Array]:
        return list(self._table(name, slice(None)))

    def everything(self) -> Iterator[Array]:
        tables = [self._table(name, slice(None)) for name in sorted(self.names())]
        for step in range(len(tables[0])):
            for table in tables:
                yield table[step]

    def _table(self, name: str, which: int | slice) -> Array:
        group = zarr.open_group(str(self.path), mode="r")
        return np.asarray(group[name][which])
