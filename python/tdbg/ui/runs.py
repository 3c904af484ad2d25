"""The runs that a server shows: found below folders, opened when asked for.

A page names a run by an id that the server gave it, never by a path.

Thread safety: may be used from any thread.

Errors: a run that cannot be read is one with an error; it hides no other.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tdbg.errors import ConfigurationError, QueryError
from tdbg.modes import TRAINING
from tdbg.run.annotations import (
    ANNOTATIONS_FILE,
    NOTHING,
    Annotation,
    annotations_in,
)
from tdbg.trial import Trial, create_trial
from tdbg.ui.judging import Judging
from tdbg.ui.places import Folder, FoundRun, LocalRun, folder_at
from tdbg.ui.run_cache import RunCache
from tdbg.view import ENDED, not_read

__all__ = ["OpenRun", "Runs"]

# Folders are listed again at most so often, a run is looked at, too.
LIST_SECONDS = 1.0
LOOK_SECONDS = 0.008
STATUS_SECONDS = 0.5
MAX_OPEN = 256
# A page counts exactly so far.
MOST_VERSION = (1 << 48) - 1
# What the table says of what smdebug wrote, before somebody opens it.
_NOT_READ = not_read("open it: that reads it").to_json()
_Value = TypeVar("_Value")


def _complete_to(trial: Trial) -> int:
    """Read what is new; return the training step up to which nothing more comes."""
    last = trial.last_complete_step
    with trial.no_refresh():
        (step,) = trial.training_steps_at([last])
        # More evaluation may come at the same place, and the step of training itself.
        return step if trial.mode(last) in TRAINING else step - 1


class OpenRun:
    """A run that is read.

    Attributes:
        id: What pages call it.
        trial: The run.
        judging: How far it is where this server judges it; None where it does not.
        seen_judging: How far it was when the run was last looked at.
        last_step: The training step up to which it was complete, evaluation included,
            when it was last looked at.
        epoch: ``Trial.epoch`` then.
    """

    def __init__(self, id_: str, address: str) -> None:
        self.id = id_
        self.trial: Trial = create_trial(address)
        self.judging: Judging | None = None
        self.seen_judging: Judging | None = None
        self.last_step = -1
        self.epoch = 0
        self._looking = threading.Lock()
        self._seen: tuple[object, ...] = ()
        self._version = 0
        self._status = ""
        self._next_look = self._next_status = 0.0
        self._kept: dict[str, tuple[int, Any]] = {}

    def version(self) -> int:
        """A number that grows when anything of the run has changed.

        A look that finds nothing costs some 50 us, and there is one in LOOK_SECONDS at
        most, however many ask.
        """
        with self._looking:
            now = time.monotonic()
            if now >= self._next_look:
                self._next_look = now + LOOK_SECONDS
                if now >= self._next_status:
                    self._next_status = now + STATUS_SECONDS
                    self._status = self.trial.status
                # Before the run is read: what was judged by then is seen.
                self.seen_judging = self.judging
                self.last_step = _complete_to(self.trial)
                with self.trial.no_refresh() as trial:
                    self.epoch, n_bytes = trial.epoch, trial.n_bytes
                read = n_bytes, self.last_step, self.epoch, self._status
                seen = *read, self.seen_judging
                if seen != self._seen:
                    self._seen = seen
                    self._version += 1
            return self._version

    def known(self, what: str) -> Any | None:
        """Return a result computed for the run as it is now; None if there is none."""
        version = self.version()
        found = self._kept.get(what)
        return None if found is None or found[0] != version else found[1]

    def kept(self, what: str, compute: Callable[[], _Value]) -> _Value:
        """Return the result of *compute*, computed anew only if the run has changed."""
        version = self.version()
        found = self._kept.get(what)
        if found is None or found[0] != version:
            found = self._kept[what] = (version, compute())
        value: _Value = found[1]
        return value


class _Annotations:
    """Tags and notes of runs, read again when their file has changed."""

    def __init__(self) -> None:
        self._held: dict[Path, tuple[object, dict[str, Annotation]]] = {}

    def of(self, run: LocalRun) -> Annotation:
        folder = run.folder
        stamp, held = _stamp(folder), self._held.get(folder)
        if held is None or held[0] != stamp:
            held = self._held[folder] = stamp, annotations_in(folder)
        return held[1].get(run.description.uuid.hex(), NOTHING)

    def stamp(self, folders: Iterable[Path]) -> object:
        return frozenset((folder, _stamp(folder)) for folder in folders)


def _stamp(folder: Path) -> object:
    """Return what changes with the annotations of a folder."""
    try:
        status = (folder / ANNOTATIONS_FILE).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class Runs:
    """The runs below some folders.

    Args:
        paths: Runs, folders of runs, or patterns such as ``runs/*``; URLs of stores.
        cache: File in which what is said of runs outlives the server; None: none.

    Raises:
        ConfigurationError: If there can be no run at one.
        StorageError: If one is in a store that does not answer, or refuses.
    """

    def __init__(self, paths: Sequence[str], cache: Path | None = None) -> None:
        self._folders = [folder_at(path) for path in paths]
        self._lock = threading.Lock()
        self._listed = -LIST_SECONDS
        self._found: dict[str, FoundRun] = {}
        self._names: dict[str, str] = {}
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._ended: dict[str, tuple[int, dict[str, Any]]] = {}
        self._at_rest: dict[str, tuple[float, int]] = {}
        self._cache = RunCache(cache)
        self._annotations = _Annotations()

    @property
    def places(self) -> list[str]:
        """Where runs are looked for."""
        return [each.shown for each in self._folders]

    @property
    def troubles(self) -> list[str]:
        """Why some of these places cannot be listed now."""
        return [each.trouble for each in self._folders if each.trouble]

    def found(self) -> dict[str, str]:
        """The paths and URLs of the runs, by id, in order of their paths."""
        with self._lock:
            return {id_: run.address for id_, run in self._look().items()}

    def _look(self) -> dict[str, FoundRun]:
        now = time.monotonic()
        if now - self._listed >= LIST_SECONDS:
            self._take(self._list())
            self._listed = time.monotonic()
        return self._found

    def _list(self) -> dict[str, Folder]:
        return {run: folder for folder in self._folders for run in folder.runs()}

    def _take(self, found: Mapping[str, Folder]) -> None:
        """These are the runs from now on; only new ones are looked at."""
        known = {run.address: run for run in self._found.values()}
        if found.keys() == known.keys():
            return
        runs = [
            known.get(address) or folder.found(address)
            for address, folder in found.items()
        ]
        self._found = {_id_of(run.home): run for run in runs}
        parts = {id_: run.home.split("/") for id_, run in self._found.items()}
        folders = [each[:-1] for each in parts.values()]
        n_common = _n_common(folders)
        self._names = {id_: "/".join(each[n_common:]) for id_, each in parts.items()}

    def name(self, id_: str) -> str:
        """The path of a run below what all runs have in common.

        Raises:
            QueryError: If there is no such run.
        """
        self._run(id_)
        with self._lock:
            return self._names[id_]

    def glance(self, id_: str) -> dict[str, Any]:
        """When a run was ``created``, and its ``state``; its records are not opened.

        Raises:
            QueryError: If there is no such run.
            TdbgError: If it cannot be read.
        """
        run = self._run(id_)
        return run.glance() if run.is_read() else _NOT_READ

    def is_far(self, id_: str) -> bool:
        """Whether a run is in a store.

        Raises:
            QueryError: If there is no such run.
        """
        return self._run(id_).folder is None

    def open(self, id_: str) -> OpenRun:
        """The run of that id.

        Raises:
            QueryError: If there is no such run, or not any more.
            TdbgError: If it cannot be read.
        """
        found = self._run(id_)
        with self._lock:
            run = self._open.get(id_)
            if run is not None:
                self._open.move_to_end(id_)
                return run
        run = OpenRun(id_, found.address)
        with self._lock:
            run = self._open.setdefault(id_, run)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
            return run

    def row(
        self,
        id_: str,
        read: Callable[[str], dict[str, Any]],
        describe: Callable[[Trial], dict[str, Any]],
    ) -> dict[str, Any]:
        """What the table says of a run, asked again only when the run has changed.

        What it says of a run that has ended is kept, in the cache also when the server
        ends, for as long as the files stay what they are: to list thousands reads none
        a second time, and holds none open.

        Args:
            id_: The run.
            read: Reads the row of one that has ended, at a path.
            describe: Makes the row of one that is open.

        Raises:
            QueryError: If there is no such run, or not any more.
            TdbgError: If it cannot be read.
        """
        place = self._run(id_)
        files = place.files()
        run = self._opened(id_)
        if run is None:
            kept = self._kept(id_, place, files)
            if kept is not None:
                return kept
            if not place.is_read():
                return _NOT_READ
            if place.is_over():
                found = read(place.address)
                if found["state"] in ENDED:
                    self._keep(id_, place, files, found)
                    return found
            run = self.open(id_)
        found = run.kept("row", lambda: describe(run.trial))
        if run.trial.status in ENDED:
            self._keep(id_, place, files, found)
            if place.folder is None:  # It takes threads and memory to follow one.
                self._close(id_)
        return found

    def known(self, id_: str) -> dict[str, Any] | None:
        """What ``row`` would say without reading the run; None: it would have to.

        Raises:
            QueryError: If there is no such run, or not any more.
        """
        place, run = self._run(id_), self._opened(id_)
        if run is not None:
            return run.known("row")
        return self._kept(id_, place, place.files())

    def seen(self, id_: str) -> tuple[int, int, int]:
        """Version, last complete step and epoch of a run that somebody watches.

        One that has ended is not opened for that: its files are looked at once in
        ``LIST_SECONDS``, and its last step is unknown, -1.

        Raises:
            QueryError: If there is no such run, or not any more.
            TdbgError: If it cannot be read.
        """
        place, run = self._run(id_), self._opened(id_)
        if run is None:
            until, version = self._at_rest.get(id_, (0.0, 0))
            if time.monotonic() < until:
                return version, -1, 0
            if place.folder is None or not place.is_read() or place.is_over():
                version = place.files() & MOST_VERSION
                self._at_rest[id_] = time.monotonic() + LIST_SECONDS, version
                return version, -1, 0
            run = self.open(id_)
        return run.version(), run.last_step, run.epoch

    def _opened(self, id_: str) -> OpenRun | None:
        with self._lock:
            return self._open.get(id_)

    def _close(self, id_: str) -> None:
        with self._lock:
            self._open.pop(id_, None)

    def _keep(self, id_: str, place: FoundRun, files: int, row: dict[str, Any]) -> None:
        with self._lock:
            self._ended[id_] = (files, row)
        if place.folder is not None:
            self._cache.put(place.address, files, row)

    def _kept(self, id_: str, place: FoundRun, files: int) -> dict[str, Any] | None:
        """Return what was said of a run that had ended and has not changed since."""
        with self._lock:
            held = self._ended.get(id_)
        if held is not None:
            return held[1] if held[0] == files else None
        if place.folder is None:
            return None
        found = self._cache.get(place.address, files)
        if found is not None:
            with self._lock:
                self._ended[id_] = (files, found)
        return found

    def annotation(self, id_: str) -> Annotation:
        """What somebody said about a run.

        Raises:
            QueryError: If there is no such run, or not any more.
            StorageError: If the run, or what is said of it, cannot be read.
        """
        run = self._run(id_)
        if not isinstance(run, LocalRun) or not run.is_read():
            return NOTHING
        return self._annotations.of(run)

    def place(self, id_: str) -> Path:
        """Where a run of this machine lies, which is to be changed.

        Raises:
            QueryError: If there is no such run, or not any more.
            ConfigurationError: If it is in a store.
        """
        run = self._run(id_)
        if not isinstance(run, LocalRun):
            msg = f"{run.address} is in a store: the page changes runs of this machine"
            raise ConfigurationError(msg)
        return run.path

    def forget(self, id_: str) -> None:
        """Close a run, and look for runs anew when the next one asks."""
        with self._lock:
            self._open.pop(id_, None)
            self._listed = -LIST_SECONDS

    def listing(self) -> str:
        """A text, another one when runs have come or gone, or one was annotated."""
        with self._lock:
            found = dict(self._look())
        folders = {run.folder for run in found.values() if run.folder is not None}
        return f"{hash((*found, self._annotations.stamp(folders))):x}"

    def _run(self, id_: str) -> FoundRun:
        with self._lock:
            found = self._look().get(id_)
            if found is None:
                for held in (self._open, self._ended, self._at_rest):
                    held.pop(id_, None)
        if found is None:
            msg = "there is no such run, or no longer"
            raise QueryError(msg)
        return found


def _n_common(paths: Sequence[Sequence[str]]) -> int:
    """Return how many parts all paths have in common at their beginning."""
    alike = [len(set(parts)) == 1 for parts in zip(*paths, strict=False)]
    return [*alike, False].index(False)


def _id_of(home: str) -> str:
    """Return an id that stays the same for a place, so that links stay good."""
    return hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
