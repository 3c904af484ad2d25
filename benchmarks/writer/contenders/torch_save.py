"""torch.save of a state dictionary, one file a step."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.writer.contenders import Arrays
from benchmarks.writer.contenders._files import FileStore


class Store(FileStore):
    """torch.save, torch.load."""

    def __init__(self, folder: Path, arrays: Arrays) -> None:
        super().__init__(folder, arrays)
        self._tensors = {k: torch.from_numpy(v) for k, v in arrays.items()}

    def write(self, step: int) -> None:
        """One file."""
        torch.save(self._tensors, self.path(step))

    def read(self, step: int) -> Arrays:
        """All of it."""
        loaded = torch.load(self.path(step), weights_only=True)
        return {name: tensor.numpy() for name, tensor in loaded.items()}
