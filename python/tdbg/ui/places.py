"""Where runs lie that a server shows: in folders of this machine, or in a store.

Thread safety: may be used from any thread.

Errors: what cannot be read raises when it is asked, as ``tdbg.run`` and
``tdbg.remote`` say.
"""

from __future__ import annotations

import contextlib
import glob
import threading
import time
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from tdbg import remote
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.importers import is_converted, local_run
from tdbg.run.directory import Run, find_runs, fingerprint, local_path, open_run
from tdbg.run.in_use import state_at_a_glance
from tdbg.view import ENDED

__all__ = [
    "FAR_OPENERS",
    "FarFolder",
    "FarRun",
    "Folder",
    "FoundRun",
    "LocalFolder",
    "LocalRun",
    "folder_at",
]

# A store is asked for its runs so often, or less if its answer takes a twentieth of it.
FAR_LIST_SECONDS = 10.0
_PATIENCE = 20
# So many threads wait for answers of stores at once.
FAR_OPENERS = 16
# What is known of a run in a store that has ended is believed for so long.
FAR_SECONDS = 300.0


class FoundRun(Protocol):
    """A run that was found, and that nobody has opened."""

    @property
    def address(self) -> str:
        """Its path or URL."""

    @property
    def home(self) -> str:
        """Its address without links, by which it has its id and name."""

    @property
    def folder(self) -> Path | None:
        """The folder of this machine that it lies in; None: it is in a store."""

    def is_read(self) -> bool:
        """Whether to open it takes no longer than to open a run.

        What smdebug wrote is read when somebody opens it, and not to list it.
        """

    def files(self) -> int:
        """Return a number that is another one when its files may have changed."""

    def is_over(self) -> bool:
        """Whether it is known to have ended, without reading it."""

    def glance(self) -> dict[str, Any]:
        """Return when it was ``created`` and its ``state``, or "" for both."""


class LocalRun:
    """A run in a folder of this machine: see ``FoundRun``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = str(path)
        real = _real_path(path)
        self.home, self.folder = str(real), real.parent

    @cached_property
    def description(self) -> Run:
        """What it says of itself.

        Raises:
            TdbgError: If it cannot be read.
        """
        return open_run(local_run(self.path))

    def is_read(self) -> bool:
        """See ``FoundRun``."""
        return is_converted(self.path)

    def files(self) -> int:
        """See ``FoundRun``."""
        return fingerprint(self.path)

    def is_over(self) -> bool:
        """See ``FoundRun``."""
        return state_at_a_glance(self.description) in ENDED

    def glance(self) -> dict[str, Any]:
        """See ``FoundRun``."""
        created, state = self.description.created, state_at_a_glance(self.description)
        return {"created": created, "state": state}


class FarRun:
    """A run in a store, known by its URL alone: see ``FoundRun``."""

    def __init__(self, url: str) -> None:
        self.address = self.home = url
        self.folder = None

    def is_read(self) -> bool:
        """See ``FoundRun``."""
        return is_converted(self.address)

    def files(self) -> int:
        """See ``FoundRun``: as long as it is believed, so that none is asked."""
        begun = hash(self.address) % FAR_SECONDS  # Not all at once.
        return int((time.monotonic() + begun) / FAR_SECONDS)

    def is_over(self) -> bool:
        """See ``FoundRun``."""
        return False

    def glance(self) -> dict[str, Any]:
        """See ``FoundRun``."""
        return {"created": "", "state": ""}


class Folder(Protocol):
    """Where runs are looked for.

    Attributes:
        shown: How pages call it.
        trouble: Why it cannot be listed now; empty: it can.
    """

    shown: str
    trouble: str

    def runs(self) -> list[str]:
        """Return the paths or URLs of the runs."""

    def found(self, address: str) -> FoundRun:
        """Return the run at one of them."""


class LocalFolder:
    """A run of this machine, a folder of runs, or a pattern: see ``Folder``."""

    trouble = ""

    def __init__(self, path: str) -> None:
        self.shown = str(local_path(path))

    def runs(self) -> list[str]:
        """See ``Folder``: listed each time."""
        path = Path(self.shown)
        places = [path]
        if glob.has_magic(self.shown) and not path.exists():
            names = glob.glob(self.shown)  # noqa: PTH207 - of any folder
            places = [Path(each) for each in sorted(names)]
        found: list[str] = []
        for place in places:
            with contextlib.suppress(TdbgError):
                found += map(str, find_runs(place))
        return found

    def found(self, address: str) -> FoundRun:
        """See ``Folder``."""
        return LocalRun(Path(address))


class FarFolder:
    """A run in a store, or a folder of runs: see ``Folder``.

    Listed when it is made, then in a thread of its own.

    Raises:
        ConfigurationError: If it is no URL of a folder, or what reads it is missing.
        StorageError: If the store does not answer, or refuses.
    """

    def __init__(
        self, url: str, list_runs: Callable[[str], list[str]] = remote.find_runs
    ) -> None:
        self.shown = remote.check_url(url)
        if glob.has_magic(url):
            msg = f"{url}: patterns are for paths of this machine; give the folder"
            raise ConfigurationError(msg)
        self.trouble = ""
        self._list = list_runs
        self._lock = threading.Lock()
        self._due = 0.0
        self._runs: list[str] = []
        self._look()
        if self.trouble:
            raise self._error

    def runs(self) -> list[str]:
        """See ``Folder``: as it was listed last."""
        with self._lock:
            if time.monotonic() >= self._due:
                self._due = float("inf")
                threading.Thread(target=self._look, daemon=True).start()
            return self._runs

    def found(self, address: str) -> FoundRun:
        """See ``Folder``."""
        return FarRun(address)

    def _look(self) -> None:
        began, trouble = time.monotonic(), ""
        try:
            self._runs = self._list(self.shown)
        except TdbgError as error:  # What was found stays.
            self._error, trouble = error, str(error)
        now = time.monotonic()
        self.trouble = trouble
        self._due = now + max(FAR_LIST_SECONDS, _PATIENCE * (now - began))


def folder_at(given: str) -> Folder:
    """The folder at a path or URL.

    Raises:
        ConfigurationError: If there can be none.
        StorageError: If it is in a store that does not answer, or refuses.
    """
    if remote.is_url(given) and not given.startswith("file://"):
        return FarFolder(given)
    return LocalFolder(given)


def _real_path(path: Path) -> Path:
    return path.resolve() if path.is_symlink() else _real(path.parent) / path.name


@lru_cache(maxsize=4096)
def _real(folder: Path) -> Path:
    return folder.resolve()
