"""h5py: a dataset a tensor, which grows by steps in chunks of 64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from benchmarks.reader.contenders import Array, Arrays


class Format:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.h5"

    def write(self, steps: Iterator[Arrays]) -> None:
        kept: dict[str, list[Array]] = {}
        for arrays in steps:
            for name, array in arrays.items():
                kept.setdefault(name, []).append(array.copy())
        with h5py.File(self.path, "w") as file:
            for name, values in kept.items():
                whole = np.stack(values)
                chunks = (min(64, len(whole)), *whole.shape[1:])
                file.create_dataset(name, data=whole, chunks=chunks)

    def names(self) -> set[str]:
        with h5py.File(self.path) as file:
            return set(file)

    def one(self, step: int, name: str) -> Array:
        with h5py.File(self.path) as file:
            found: Array = file[name][step]
            return found

    def column(self, name: str) -> list[Array]:
        with h5py.File(self.path) as file:
            return list(file[name][:])

    def everything(self) -> Iterator[Array]:
        with h5py.File(self.path) as file:
            tables = [file[name][:] for name in sorted(file)]
        for step in range(len(tables[0])):
            for table in tables:
                yield table[step]
