"""Where a run lies: in a directory of this machine, or in an object store.

Thread safety: one thread at a time, but for what a reader does by itself.

Errors: opening raises NotARun, UnsupportedFeature, StorageError or, for a URL that
can never work, ConfigurationError.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdbg._core import RunReader, look_at_writer
from tdbg.errors import ConfigurationError, NotARun
from tdbg.importers import local_run, trouble_of, wait_for_run
from tdbg.run.directory import (
    WriterDirectory,
    local_path,
    open_run,
    writer_directories,
)
from tdbg.trial.places import RunPlace

if TYPE_CHECKING:
    from tdbg.remote import Uploads

__all__ = ["LocalPlace", "RemotePlace", "open_place", "reader_options"]

# A directory that has not changed for so long is not listed again; clocks of file
# systems are coarse.
SETTLED_NS = 1_000_000_000
_WAIT_SECONDS = 1.0


class LocalPlace:
    """A run in a directory of this machine: see ``RunPlace``."""

    def __init__(self, path: Path, name: str = "") -> None:
        self.run = open_run(path)
        self.name = name or self.run.path.name
        self.path = str(self.run.path)
        self.uuid, self.created = self.run.uuid, self.run.created
        self._folder = str(self.run.path / "w")
        self._listed: tuple[int, int] | None = None
        self._has_writers = False

    @property
    def trouble(self) -> str:
        """See ``RunPlace``: of what smdebug wrote to a store that does not answer."""
        return trouble_of(self.run.path)

    def changed(self) -> bool:
        """See ``RunPlace``: by the time of the folder of writers."""
        try:
            status = os.stat(self._folder)  # noqa: PTH116 - each question asks
        except OSError:
            return not self._has_writers
        found = (status.st_ino, status.st_mtime_ns)
        recent = time.time_ns() - status.st_mtime_ns < SETTLED_NS
        changed = recent or found != self._listed
        self._listed = found
        return changed

    def writers(self) -> list[WriterDirectory]:
        """See ``RunPlace``."""
        found = writer_directories(self.run)
        self._has_writers = bool(found)
        return found

    def open(self, writer: WriterDirectory, **options: Any) -> RunReader:
        """See ``RunPlace``."""
        return RunReader(str(writer.path), self.uuid, **options)

    def files(self, writer: WriterDirectory) -> Mapping[str, object]:
        """See ``RunPlace``: sizes and times; empty where the system does not tell."""
        found = {}
        with contextlib.suppress(OSError), os.scandir(writer.path) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                found[entry.name] = status.st_size, status.st_mtime_ns
        return found

    def page(self, writer: WriterDirectory) -> dict[str, Any] | None:
        """See ``RunPlace``."""
        return look_at_writer(str(writer.path))

    def uploads(self) -> None:
        """See ``RunPlace``."""


class RemotePlace:
    """A run in an object store: see ``RunPlace``."""

    def __init__(self, url: str) -> None:
        # Who reads runs of this machine alone loads nothing of this.
        from tdbg.remote import FollowedRun

        self._run = FollowedRun(url)
        self.path = self._run.url
        self.name = self.path.rpartition("/")[2]
        self.uuid, self.created = self._run.uuid, self._run.created
        self._n_listed = 0

    @property
    def trouble(self) -> str:
        """See ``RunPlace``."""
        return self._run.trouble

    def changed(self) -> bool:
        """See ``RunPlace``: reads new manifests, if it is time to."""
        self._run.poll()
        return len(self._run.writers) != self._n_listed

    def writers(self) -> list[WriterDirectory]:
        """See ``RunPlace``; their paths are relative to the URL."""
        names = list(self._run.writers)
        self._n_listed = len(names)
        return sorted(_writer_of(name) for name in names)

    def open(self, writer: WriterDirectory, **options: Any) -> RunReader:
        """See ``RunPlace``."""
        followed = self._run.writers[writer.path.name]
        path = f"{self.path}/w/{followed.name}"
        return RunReader(path, self.uuid, files=followed.files, **options)

    def files(self, writer: WriterDirectory) -> Mapping[str, object]:
        """See ``RunPlace``: sizes, which never change."""
        return dict(self._run.writers[writer.path.name].sizes)

    def page(self, writer: WriterDirectory) -> dict[str, Any] | None:
        """See ``RunPlace``."""
        return self._run.writers[writer.path.name].page()

    def uploads(self) -> Uploads:
        """See ``RunPlace``."""
        return self._run.uploads()


def open_place(path: str | os.PathLike[str], wait: float = 0.0) -> RunPlace:
    """The run at a path or URL.

    Args:
        path: Of its directory, or of what smdebug wrote, or the URL of either.
        wait: Seconds to wait for the run to come into being.

    Raises:
        NotARun: If there is no run; the message says what is there instead.
        UnsupportedFeature: If a later tdbg made it.
        StorageError: If it cannot be read.
        ConfigurationError: If no run can be there.
    """
    deadline = time.monotonic() + wait
    if not _is_remote(path):
        given = local_path(path)
        directory = wait_for_run(given, lambda: time.monotonic() >= deadline)
        return LocalPlace(directory, given.resolve().name)
    url = os.fspath(path)
    while True:
        try:
            return RemotePlace(url)
        except NotARun as error:
            if error.kind == "smdebug":
                return LocalPlace(local_run(url), url.rstrip("/").rpartition("/")[2])
            if time.monotonic() >= deadline or error.kind != "missing":
                raise
            time.sleep(_WAIT_SECONDS)


def reader_options(map_files: bool, max_tensor_bytes: int | None) -> dict[str, Any]:
    """What every reader of a run is opened with.

    Raises:
        ConfigurationError: If an argument can never work.
    """
    options: dict[str, Any] = {"map_files": bool(map_files)}
    if max_tensor_bytes is not None:
        given: object = max_tensor_bytes
        if not isinstance(given, int) or not 0 <= given < 1 << 63:
            msg = f"max_tensor_bytes must be a number of bytes, not {given!r}"
            raise ConfigurationError(msg)
        options["max_tensor_bytes"] = given
    return options


def _is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL; one of this machine's files is one if it was shipped."""
    text = str(path)
    if "://" not in text:
        return False
    if not text.startswith("file://"):
        return True
    from tdbg.remote import MANIFESTS

    return (local_path(text) / MANIFESTS).is_dir()


def _writer_of(name: str) -> WriterDirectory:
    role, rank, generation = name.split("-")
    return WriterDirectory(role, int(rank), int(generation), Path("w") / name)
