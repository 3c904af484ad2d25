"""The files of an output directory, wherever it lies.

The importer lists folders and reads ranges, and nothing else, so that a place is two
small classes.

Thread safety: none.

Errors: ``OSError``, as the place raises it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol, Self

__all__ = ["Entry", "Files", "LocalFiles", "OpenFile"]


class Entry(NamedTuple):
    """A file or a folder in a folder.

    Attributes:
        name: Its name, without the folder.
        is_folder: Whether it is a folder.
    """

    name: str
    is_folder: bool


class OpenFile(Protocol):
    """A file that ranges are read of.

    Attributes:
        size: Its size in bytes, when it was opened.
        stamp: A text that is another one once the file was written anew.
    """

    size: int
    stamp: str

    def read(self, start: int, length: int) -> bytes:
        """Return bytes ``start <= i < start + length``; fewer where the file ends."""


class Files(Protocol):
    """An output directory.

    Attributes:
        path: How the user names it.
        identity: A text that is another one for another directory.
    """

    path: str
    identity: str

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder, by name; nothing if there is no such folder."""

    def stamp(self, file: str) -> str:
        """Return the stamp of a file without reading it; "" if there is none."""

    def open(self, file: str) -> AbstractContextManager[OpenFile]:
        """Open a file.

        Raises:
            FileNotFoundError: If there is none.
            OSError: If it cannot be read, or is no regular file.
        """


class LocalFiles:
    """A directory of this machine; links in it are not followed.

    Args:
        path: The directory.

    Raises:
        OSError: If there is no such directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._root = Path(path).resolve()
        status = self._root.stat()
        self.identity = f"{self._root} {status.st_dev} {status.st_ino}"

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder, by name; nothing if there is no such folder."""
        try:
            with os.scandir(self._root / folder) as found:
                entries = [
                    Entry(each.name, each.is_dir(follow_symlinks=False))
                    for each in found
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(entries)

    def stamp(self, file: str) -> str:
        """Return size and time of a file; "" if there is none."""
        try:
            status = (self._root / file).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        return _stamp(status)

    def open(self, file: str) -> LocalFile:
        """Open a file."""
        return LocalFile(self._root / file)


class LocalFile:
    """An open file of this machine; read by position, closed with its block."""

    def __init__(self, path: Path) -> None:
        # A FIFO would block the open; O_NONBLOCK makes it return at once.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(path, flags)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        self.size = status.st_size
        self.stamp = _stamp(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, start: int, length: int) -> bytes:
        """Return a range; never more than the file has."""
        length = min(length, self.size - start)
        pieces = []
        while length > 0:
            piece = os.pread(self._descriptor, length, start)
            if not piece:
                break
            pieces.append(piece)
            start += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}"
