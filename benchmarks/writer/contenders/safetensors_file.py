"""safetensors, one file a step."""

from __future__ import annotations

from safetensors.numpy import load_file, save_file

from benchmarks.writer.contenders import Arrays
from benchmarks.writer.contenders._files import FileStore


class Store(FileStore):
    """save_file, load_file."""

    def write(self, step: int) -> None:
        """One file."""
        save_file(dict(self._arrays), self.path(step))

    def read(self, step: int) -> Arrays:
        """All of it."""
        return load_file(self.path(step))
