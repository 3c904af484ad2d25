"""Opens what another tool wrote, as a run.

The run is made at the first opening, and kept.  While the other tool still writes, a
thread of the process that opened it first takes in what comes, from a store as long as
that answers.

Thread safety: may be used from any thread and by several processes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tdbg.errors import NotARun, RunInUse, StorageError, TdbgError
from tdbg.importers import cache
from tdbg.remote import ListedRun, is_url
from tdbg.run.directory import is_run, local_path, open_run
from tdbg.run.foreign import is_smdebug_output

if TYPE_CHECKING:
    from tdbg.importers.smdebug import Files, Importer

__all__ = ["is_converted", "local_run", "trouble_of", "wait_for_run"]

# What is new is looked for so often, or less if to look takes a twentieth of it.
FOLLOW_SECONDS = 1.0
_PATIENCE = 20
_WAIT_SECONDS = 0.1
# Who waits so long is told what for.
_PATIENCE_SECONDS = 1.0
_CLOSE_SECONDS = 10.0

# One for each directory: to convert a large one keeps nobody else waiting.
_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_followers: dict[str, _Follower] = {}


def local_run(path: str | os.PathLike[str]) -> Path:
    """Return the directory of this machine in which the run at *path* is.

    That is *path* itself, unless smdebug wrote it: of its output a run is made, in the
    user's cache, and what was made before is not made again.  Whether there is a run
    is not looked at.

    Args:
        path: A directory, as of ``local_path``, or the URL of what smdebug wrote.

    Raises:
        ConfigurationError: If nothing can be there.
        NotARun: If it is the URL of something else.
        StorageError: If the output cannot be listed, or the run cannot be written.
    """
    if not _is_far(path):
        directory = local_path(path)
        if is_run(directory) or not is_smdebug_output(directory):
            return directory
    # Who opens runs of tdbg alone loads nothing of this.
    from tdbg.importers.smdebug import files_at

    return _converted(files_at(path))


def is_converted(path: str | os.PathLike[str]) -> bool:
    """Whether ``local_run`` has nothing to do but to look for what is new.

    No store is asked: a URL counts as that of a run unless a listing says otherwise.
    """
    if _is_far(path):
        if not isinstance(path, ListedRun) or not path.is_of_smdebug:
            return True
        identity = str(path)
    else:
        directory = local_path(path)
        if is_run(directory) or not is_smdebug_output(directory):
            return True
        from tdbg.importers.smdebug import LocalFiles

        identity = LocalFiles(directory).identity
    from tdbg.importers.smdebug import has_state

    return has_state(cache.newest(identity))


def trouble_of(run: Path) -> str:
    """Return why what is new cannot be taken into a run; empty: nothing is wrong."""
    followers = list(_followers.values())
    return next((each.trouble for each in followers if each.place == run), "")


def wait_for_run(path: str | os.PathLike[str], is_over: Callable[[], bool]) -> Path:
    """Return what ``local_run`` returns, as soon as there is a run.

    Args:
        path: The directory.
        is_over: Whether to give up; called ten times a second.

    Raises:
        NotARun: If there is no run when the wait is over, or a damaged one before.
        UnsupportedFeature: If a later tdbg made the run.
        StorageError: If RUN.json cannot be read.
    """
    while True:
        # Asked before the run is opened: the run may appear between the two.
        is_last = is_over()
        place = local_run(path)
        try:
            open_run(place)
        except NotARun as error:
            if is_last or error.kind != "missing":
                raise
            time.sleep(_WAIT_SECONDS)
        else:
            return place


def _is_far(path: str | os.PathLike[str]) -> bool:
    return is_url(path) and not str(path).startswith("file://")


def _converted(files: Files) -> Path:
    from tdbg.importers.smdebug import Changed, Importer, has_state

    with _locks[files.identity]:
        follower = _followers.get(files.identity)
        if follower is not None and follower.take_in():
            return follower.place
        place = cache.newest(files.identity)
        told = _Told(files.path)
        while True:
            try:
                importer = Importer(files, place, told)
                break
            except Changed:
                place = cache.next_after(place)
            except RunInUse:
                # Another process makes it, or has made it and follows.
                if has_state(place):
                    cache.use(place)
                    return place
                time.sleep(_WAIT_SECONDS)
        cache.use(place)
        try:
            has_ended = importer.convert().has_ended
        except BaseException:
            importer.close()
            raise
        told.end()
        if has_ended:
            importer.close()
        else:
            _followers[files.identity] = _Follower(importer, place)
        cache.evict()
        return place


class _Follower:
    """Takes in what comes, in a thread of its own, until the training has ended."""

    def __init__(self, importer: Importer, place: Path) -> None:
        self.place = place
        self.trouble = ""
        self._importer = importer
        self._lock = threading.Lock()
        self._pause = FOLLOW_SECONDS
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._follow, name="tdbg-import", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def take_in(self) -> bool:
        """Take in what has come; False if this follower is at its end.

        Raises:
            StorageError: If the store does not answer; the follower goes on.
        """
        with self._lock:
            if self._is_over.is_set():
                return False
            began = time.monotonic()
            try:
                done = self._importer.convert()
            except TdbgError as error:
                self.trouble = str(error)
                self._pause = self._pause_after(began)
                if _is_silence(error):
                    raise
                # Whoever opens it next is told.
                self._end()
                return False
            self.trouble = ""
            # To convert takes what it takes: it is to look that must not cost much.
            self._pause = FOLLOW_SECONDS if done.steps else self._pause_after(began)
            if done.has_ended:
                self._end()
            return True

    def _pause_after(self, began: float) -> float:
        return max(FOLLOW_SECONDS, _PATIENCE * (time.monotonic() - began))

    def close(self) -> None:
        """End, and let another process go on."""
        with self._lock:
            self._end()
        self._thread.join(_CLOSE_SECONDS)

    def _end(self) -> None:
        if not self._is_over.is_set():
            self._is_over.set()
            try:
                self._importer.close()
            finally:
                atexit.unregister(self.close)

    def _follow(self) -> None:
        while not self._is_over.wait(self._pause):
            # Whoever asks the run is told of its trouble.
            with contextlib.suppress(StorageError):
                self.take_in()


def _is_silence(error: TdbgError) -> bool:
    """Whether a store did not answer, which may pass."""
    return isinstance(error, StorageError) and error.kind == "io" and is_url(error.file)


class _Told:
    """Tells who waits at a terminal how far a long conversion is."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = self._last = time.monotonic()
        self._is_shown = False

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self._began < _PATIENCE_SECONDS or now - self._last < _WAIT_SECONDS:
            return
        self._last = now
        if sys.stderr is not None and sys.stderr.isatty():
            self._is_shown = True
            text = f"\rreading what smdebug wrote to {self._path}: {done:,} of {of:,}"
            sys.stderr.write(text)
            sys.stderr.flush()

    def end(self) -> None:
        """End the line."""
        if self._is_shown:
            sys.stderr.write("\n")
