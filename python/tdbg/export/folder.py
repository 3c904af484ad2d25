"""The folder that an export goes to: a sub-folder for each mode, one file in each.

A run has one file in a sub-folder, whose name says which run it is.  It appears whole,
in place of the one that an earlier export made, so that exporting again never makes
anything appear twice.  Files of others are left alone.

Thread safety: none.  Between processes: one exports into a folder at a time.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from tdbg.errors import ConfigurationError, StorageError
from tdbg.modes import ModeKeys

__all__ = ["EventFile", "ExportFolder"]

LOOK_SECONDS = 0.05
_BUFFER = 1 << 20
_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_MODES = tuple(mode.name for mode in ModeKeys)


class EventFile:
    """A file that records are appended to; in its place when it is published.

    Attributes:
        path: Where it will be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".tdbg-{path.name}.tmp")
        self._is_published = False
        with _storage(path, "write"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.parent.is_symlink():
                raise OSError(errno.ELOOP, "the folder is a symbolic link")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._temporary, flags, 0o666)
            self._file: BinaryIO = os.fdopen(descriptor, "wb", _BUFFER)

    def append(self, record: bytes) -> None:
        """Append a record.

        Raises:
            StorageError: If it cannot be written.
        """
        with _storage(self.path, "write"):
            self._file.write(record)

    def publish(self) -> None:
        """Let others see what was appended so far.

        Raises:
            StorageError: If it cannot be written.
        """
        with _storage(self.path, "write"):
            self._file.flush()
            if not self._is_published:
                self._temporary.replace(self.path)
                self._is_published = True

    def close(self) -> None:
        """Let go of it; what was never published is gone."""
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._is_published:
            self._temporary.unlink(missing_ok=True)


class ExportFolder:
    """Where one run is exported to, held against other exports until it is closed.

    Args:
        out: The folder; made if it does not exist.
        uuid: The run's identity, in hex.
        created: When the run was made, as ISO 8601 text.
        beside: Whether other runs may have been exported to the same folder.
        wait: Seconds to wait for another export into it.

    Raises:
        ConfigurationError: If another run was exported there.
        StorageError: If it cannot be written, or another export writes there.
    """

    def __init__(
        self,
        out: Path,
        uuid: str,
        created: str,
        *,
        beside: bool = False,
        wait: float = 0.0,
    ) -> None:
        self.out = out
        self.created = _seconds(created)
        self._name = f"events.out.tfevents.{int(self.created):010d}.tdbg.{uuid}"
        self._files: dict[str, EventFile] = {}
        with _storage(out, "make"):
            out.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._lock = os.open(out, flags)
        try:
            self._hold(wait)
            other = next((path for path in self._exports(of_others=True)), None)
            if other is not None and not beside:
                msg = (
                    f"{out} holds the export of another run ({other.parent.name}/"
                    f"{other.name}), and TensorBoard would show both as one: choose "
                    "another folder for this one"
                )
                raise ConfigurationError(msg)
            self._sweep()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def files(self) -> dict[str, str]:
        """Paths of the files by mode."""
        return {mode: str(file.path) for mode, file in sorted(self._files.items())}

    def file(self, mode: str) -> EventFile | None:
        """The file of a mode, if it was begun."""
        return self._files.get(mode)

    def begin(self, mode: str) -> EventFile:
        """Begin the file of a mode.

        Raises:
            StorageError: If it cannot be written.
        """
        file = self._files[mode] = EventFile(self.out / mode / self._name)
        return file

    def publish(self) -> None:
        """Let others see everything; what an earlier export had beyond that goes.

        Raises:
            StorageError: If it cannot be written.
        """
        for file in self._files.values():
            file.publish()
        for path in self._exports(of_others=False):
            if path.parent.name not in self._files:
                with _storage(path, "remove"):
                    path.unlink(missing_ok=True)

    def restart(self) -> None:
        """Begin all files anew; until they are published the old ones stay."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def close(self) -> None:
        """Let go of the folder; what was not published is gone."""
        self.restart()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _hold(self, wait: float) -> None:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _BUSY:
                    return  # A file system without locks.
                if time.monotonic() >= deadline:
                    msg = f"another export is writing to {self.out}"
                    raise StorageError(msg, file=str(self.out), kind="busy") from error
                time.sleep(LOOK_SECONDS)
            else:
                return

    def _exports(self, *, of_others: bool) -> Iterator[Path]:
        for mode in _MODES:
            for path in sorted((self.out / mode).glob("events.out.tfevents.*.tdbg.*")):
                if (path.name != self._name) == of_others:
                    yield path

    def _sweep(self) -> None:
        """Remove what exports left that were killed."""
        for mode in _MODES:
            for path in (self.out / mode).glob(".tdbg-*.tmp"):
                with contextlib.suppress(OSError):
                    path.unlink()


def _seconds(created: str) -> float:
    try:
        return max(0.0, dt.datetime.fromisoformat(created).timestamp())
    except (ValueError, OverflowError):
        return 0.0


@contextlib.contextmanager
def _storage(path: Path, what: str) -> Iterator[None]:
    """Failures as StorageErrors that name the path."""
    try:
        yield
    except OSError as error:
        msg = f"cannot {what} {path}: {error.strerror or error}"
        result = StorageError(msg, file=str(path), kind="io")
        result.errno = error.errno
        raise result from error
