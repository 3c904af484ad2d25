"""NumPy's npz: an archive a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.reader.contenders import Array, Arrays
from benchmarks.reader.contenders._files import FilePerStep


class Format(FilePerStep):
    suffix = ".npz"

    def save(self, path: Path, arrays: Arrays) -> None:
        np.savez(path, **arrays)

    def names(self) -> set[str]:
        with np.load(self.path(0)) as file:
            return set(file.files)

    def load(self, path: Path, names: list[str] | None) -> dict[str, Array]:
        with np.load(path) as file:
            return {name: file[name] for name in names or file.files}
