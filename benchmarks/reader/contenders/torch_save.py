"""torch.save: a file a step, loaded with mmap."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.reader.contenders import Array, Arrays
from benchmarks.reader.contenders._files import FilePerStep


class Format(FilePerStep):
    suffix = ".pt"

    def save(self, path: Path, arrays: Arrays) -> None:
        torch.save({n: torch.from_numpy(a.copy()) for n, a in arrays.items()}, path)

    def load(self, path: Path, names: list[str] | None) -> dict[str, Array]:
        found = torch.load(path, mmap=True, weights_only=True)
        return {name: found[name].numpy() for name in names or found}
