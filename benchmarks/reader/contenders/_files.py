"""One file a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.reader.contenders import Array, Arrays


class FilePerStep:
    """What contenders share that write a file of their own for each step."""

    suffix = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, steps: Iterator[Arrays]) -> None:
        for step, arrays in enumerate(steps):
            self.save(self.path(step), arrays)

    def column(self, name: str) -> list[Array]:
        return [self.load(path, [name])[name] for path in self.paths()]

    def one(self, step: int, name: str) -> Array:
        return self.load(self.path(step), [name])[name]

    def names(self) -> set[str]:
        return set(self.load(self.path(0), None))

    def everything(self) -> Iterator[Array]:
        for path in self.paths():
            found = self.load(path, None)
            for name in sorted(found):
                yield found[name]

    def path(self, step: int) -> Path:
        return self.folder / f"{step:06}{self.suffix}"

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{self.suffix}"))

    def save(self, path: Path, arrays: Arrays) -> None:
        raise NotImplementedError

    def load(self, path: Path, names: list[str] | None) -> dict[str, Array]:
        """These tensors of a step, or all."""
        raise NotImplementedError
