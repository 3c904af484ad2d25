"""Opens what another tool wrote, as a run.

The run is made at the first opening, and kept.  While the other tool still writes, a
thread of the process that opened it first takes in what comes.

Thread safety: may be used from any thread and by several processes.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tdbg.errors import NotARun, RunInUse, TdbgError
from tdbg.importers import cache
from tdbg.run.directory import is_run, local_path, open_run
from tdbg.run.foreign import is_smdebug_output

if TYPE_CHECKING:
    from tdbg.importers.smdebug import Files, Importer

__all__ = ["is_converted", "local_run", "wait_for_run"]

FOLLOW_SECONDS = 1.0
_WAIT_SECONDS = 0.1
# Who waits so long is told what for.
_PATIENCE_SECONDS = 1.0
_CLOSE_SECONDS = 10.0

_lock = threading.Lock()
_followers: dict[str, _Follower] = {}


def local_run(path: str | os.PathLike[str]) -> Path:
    """Return the directory of the run at *path*.

    That is *path* itself, unless smdebug wrote it: of its output a run is made, in the
    user's cache, and what was made before is not made again.  Whether there is a run
    is not looked at.

    Args:
        path: A directory, as of ``local_path``.

    Raises:
        ConfigurationError: If it is no path of this machine.
        StorageError: If the output cannot be listed, or the run cannot be written.
    """
    directory = local_path(path)
    if is_run(directory) or not is_smdebug_output(directory):
        return directory
    # Who opens runs of tdbg alone loads nothing of this.
    from tdbg.importers.smdebug import LocalFiles

    return _converted(LocalFiles(directory))


def is_converted(path: str | os.PathLike[str]) -> bool:
    """Whether ``local_run`` has nothing to do but to look for what is new."""
    directory = local_path(path)
    if is_run(directory) or not is_smdebug_output(directory):
        return True
    from tdbg.importers.smdebug import LocalFiles, has_state

    return has_state(cache.newest(LocalFiles(directory).identity))


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


def _converted(files: Files) -> Path:
    from tdbg.importers.smdebug import Changed, Importer, has_state

    with _lock:
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
        self._importer = importer
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._follow, name="tdbg-import", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def take_in(self) -> bool:
        """Take in what has come; False if this follower is at its end."""
        with self._lock:
            if self._is_over.is_set():
                return False
            try:
                if not self._importer.convert().has_ended:
                    return True
            except TdbgError:
                # Whoever opens it next is told.
                self._end()
                return False
            self._end()
            return True

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
        while not self._is_over.wait(FOLLOW_SECONDS):
            self.take_in()


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
