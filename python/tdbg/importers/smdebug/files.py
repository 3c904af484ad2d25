"""The files of an output directory, wherever it lies.

The importer lists folders and reads ranges, and nothing else, so that a place is two
small classes.

Thread safety: none.

Errors: ``Damage`` for a file that cannot be read; ``StorageError`` if the place does
not answer, so that the file may be sound.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from tdbg.errors import NotARun, StorageError
from tdbg.importers.smdebug.damage import Damage
from tdbg.remote import Fetcher, Listed, Store, is_url, open_store
from tdbg.run.directory import local_path
from tdbg.run.foreign import are_of_smdebug

__all__ = ["Entry", "Files", "LocalFiles", "OpenFile", "StoreFiles", "files_at"]

# An object of a store is fetched as a whole up to this size, else by ranges.
WHOLE_BYTES = 64 << 20


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
        """Return bytes ``start <= i < start + length``; fewer where the file ends.

        Raises:
            Damage: If they cannot be read.
            StorageError: If the place does not answer.
        """


class Files(Protocol):
    """An output directory; each question raises StorageError if there is no answer.

    Attributes:
        path: How the user names it.
        identity: A text that is another one for another directory.
    """

    path: str
    identity: str

    def refresh(self) -> None:
        """See what is there now."""

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder, by name; nothing if there is no such folder."""

    def stamp(self, file: str) -> str:
        """Return the stamp of a file without reading it; "" if there is none."""

    def open(self, file: str) -> AbstractContextManager[OpenFile]:
        """Open a file.

        Raises:
            Damage: If there is none, it cannot be read, or is no regular file.
            StorageError: If the place does not answer.
        """


class LocalFiles:
    """A directory of this machine; links in it are not followed.

    Args:
        path: The directory.

    Raises:
        StorageError: If there is no such directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._root = Path(path).resolve()
        with self._errors("open"):
            status = self._root.stat()
        self.identity = f"{self._root} {status.st_dev} {status.st_ino}"

    def refresh(self) -> None:
        """Do nothing: the file system tells what is there when it is asked."""

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder, by name; nothing if there is no such folder."""
        with self._errors("list"):
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
        with self._errors("look at"):
            try:
                status = (self._root / file).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return ""
        return _stamp(status)

    def open(self, file: str) -> LocalFile:
        """Open a file."""
        return LocalFile(self._root / file)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError.of(error, what, self.path) from error


class LocalFile:
    """An open file of this machine; read by position, closed with its block."""

    def __init__(self, path: Path) -> None:
        # A FIFO would block the open; O_NONBLOCK makes it return at once.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with _damage():
            self._descriptor = os.open(path, flags)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            msg = "not a regular file"
            raise Damage(msg)
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
            with _damage():
                piece = os.pread(self._descriptor, length, start)
            if not piece:
                break
            pieces.append(piece)
            start += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """Say of a file that the system refuses to read what it says."""
    try:
        yield
    except OSError as error:
        raise Damage(error.strerror or str(error)) from error


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}"


class StoreFiles:
    """A folder of an object store, as one listing of it shows it.

    Args:
        store: Whose URL is that of the folder.

    Raises:
        StorageError: If the store does not answer, or refuses.
    """

    def __init__(self, store: Store) -> None:
        self.path = self.identity = store.url
        self._fetcher = Fetcher(store)
        self.refresh()

    def refresh(self) -> None:
        """List the folder."""
        listed = self._fetcher.again(self._fetcher.store.list)
        self._objects = {each.name: each for each in listed}
        self._folders: dict[str, set[Entry]] = {}
        for name in self._objects:
            is_folder = False
            while name:
                name, _, base = name.rpartition("/")  # noqa: PLW2901 - upwards
                self._folders.setdefault(name, set()).add(Entry(base, is_folder))
                is_folder = True

    def entries(self, folder: str) -> list[Entry]:
        """Return what is in a folder, by name; nothing if there is no such folder."""
        return sorted(self._folders.get(folder, ()))

    def stamp(self, file: str) -> str:
        """Return size and version of an object; "" if there is none."""
        found = self._objects.get(file)
        return f"{found.size}:{found.version}" if found is not None else ""

    def open(self, file: str) -> StoredFile:
        """Open an object."""
        found = self._objects.get(file)
        if found is None:
            msg = "no such object"
            raise Damage(msg)
        return StoredFile(self._fetcher, found)


class StoredFile:
    """An object of a store, as it was listed."""

    def __init__(self, fetcher: Fetcher, listed: Listed) -> None:
        self.size = listed.size
        self.stamp = f"{listed.size}:{listed.version}"
        self._fetcher, self._name = fetcher, listed.name
        self._whole: bytes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._whole = None

    def read(self, start: int, length: int) -> bytes:
        """Return a range; never more than the object has."""
        length = min(length, self.size - start)
        if length <= 0:
            return b""
        if self.size > WHOLE_BYTES:
            return self._fetcher.range(self._name, start, length)
        if self._whole is None:
            self._whole = self._fetcher.read(self._name)
            if len(self._whole) != self.size:
                shown = f"{self._fetcher.store.url}/{self._name}"
                msg = f"{shown} was replaced since it was listed; import it again"
                raise StorageError(msg, file=shown, kind="io")
        return self._whole[start : start + length]


def files_at(path: str | os.PathLike[str]) -> Files:
    """Return the output directory at a path or URL.

    Raises:
        NotARun: If smdebug wrote none there.
        StorageError: If the place does not answer.
        ConfigurationError: If there can be none.
    """
    text = os.fspath(path)
    files: Files
    if is_url(text) and not text.startswith("file://"):
        files = StoreFiles(open_store(text))
    else:
        files = LocalFiles(local_path(text))
    if not are_of_smdebug(entry.name for entry in files.entries("")):
        msg = f"{text} is not what smdebug's hook wrote: it has no collections"
        raise NotARun(msg, file=text, kind="missing")
    return files
