"""Files of an export: they appear whole, and replace nothing without being told to.

Thread safety: functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tdbg.errors import StorageError
from tdbg.trial import Trial

__all__ = ["FilesReport", "NewFile", "Progress", "in_place", "refuse_existing"]

#: Called with how much is done, and of how much.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class FilesReport:
    """What an export of values or rows wrote.

    Attributes:
        run: The directory of the run.
        out: The file or folder.
        tensors: How many tensors it has; 0 for a table that has none.
        steps: How many steps.
        first_step: The first of them; -1: there is none.
        last_step: The last one.
        rows: How many rows a table has.
        n_bytes: Size of the file, or of all files of the folder.
        left_out: What could not be written, by name, and why.
        lost_records: What the run lacks: ``LostRecords.to_json``.
        complete: Whether the training has ended.
    """

    run: str
    out: str
    tensors: int
    steps: int
    first_step: int
    last_step: int
    rows: int
    n_bytes: int
    left_out: dict[str, str] = field(default_factory=dict)
    lost_records: dict[str, Any] = field(default_factory=dict)
    complete: bool = True

    @classmethod
    def of(
        cls,
        trial: Trial,
        out: Path,
        *,
        steps: Sequence[int],
        tensors: int,
        rows: int = 0,
        left_out: dict[str, str] | None = None,
    ) -> FilesReport:
        """Make the report of files that were written."""
        return cls(
            run=trial.path,
            out=str(out),
            tensors=tensors,
            steps=len(steps),
            first_step=min(steps, default=-1),
            last_step=max(steps, default=-1),
            rows=rows,
            n_bytes=_size(out),
            left_out=left_out or {},
            lost_records=trial.lost_records().to_json(),
            complete=trial.loaded_all_steps,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)


def refuse_existing(path: Path, force: bool) -> None:
    """Refuse to write to a path that exists.

    Raises:
        StorageError: If it exists and *force* was not given, or it is a folder.
    """
    if path.is_dir():
        msg = f"{path} is a folder: say which file to write"
        raise StorageError(msg, file=str(path), kind="io")
    if path.exists() and not force:
        msg = f"{path} exists: pass --force (force=True) to replace it"
        raise StorageError(msg, file=str(path), kind="io")


class NewFile:
    """A file that has its name once it is published.

    Attributes:
        file: What is open for writing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".tdbg-{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file: BinaryIO = self._temporary.open("w+b")
        except OSError as error:
            raise StorageError.of(error, "write", path) from error

    def publish(self) -> None:
        """Give the file its name, durably.

        Raises:
            StorageError: If the disk refuses.
        """
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            self._temporary.replace(self._path)
        except OSError as error:
            raise StorageError.of(error, "write", self._path) from error

    def close(self) -> None:
        """Remove what was not published."""
        self.file.close()
        self._temporary.unlink(missing_ok=True)


def in_place(path: Path) -> NewFile:
    """Begin a file that is to appear at *path*.

    Raises:
        StorageError: If it cannot be written.
    """
    return NewFile(path)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
