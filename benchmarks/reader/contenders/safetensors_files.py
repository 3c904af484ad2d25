"""safetensors: a file a step, opened with its mapping."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import save_file

from benchmarks.reader.contenders import Array, Arrays
from benchmarks.reader.contenders._files import FilePerStep


class Format(FilePerStep):
    suffix = ".safetensors"

    def save(self, path: Path, arrays: Arrays) -> None:
        save_file(dict(arrays), path)

    def names(self) -> set[str]:
        with safe_open(self.path(0), "numpy") as file:
            return set(file.keys())

    def load(self, path: Path, names: list[str] | None) -> dict[str, Array]:
        with safe_open(path, "numpy") as file:
            requested = file.keys() if names is None else names
            return {name: file.get_tensor(name) for name in requested}
