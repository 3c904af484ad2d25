"""What stores have in common that write a file for each step."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.writer.contenders import Arrays


class FileStore:
    """A file, or a folder, for each step."""

    def __init__(self, folder: Path, arrays: Arrays) -> None:
        self._folder = folder
        self._arrays = arrays

    def path(self, step: int) -> Path:
        """Where a step is stored."""
        return self._folder / f"step-{step}"

    def forget(self, step: int) -> None:
        """Delete a step."""
        path = self.path(step)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def close(self) -> None:
        """Nothing is open."""
