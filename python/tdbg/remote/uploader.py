"""Ships a run directory to a store: all its writers, and its requests.

A hook starts a process that runs this (``tdbg.remote.process``), and ``tdbg ship`` runs
it, too.  It follows the directory, and ends when nobody writes to it any more and
everything is there.

Thread safety: none; one thread owns it, and sends files by a pool of its own.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.errors import NotARun, StorageError
from tdbg.remote.attempts import Attempts, GivenUp
from tdbg.remote.complete_files import complete_files
from tdbg.remote.layout import MANIFESTS, newest_manifests
from tdbg.remote.request_mirror import RequestMirror
from tdbg.remote.shipment import Shipment
from tdbg.remote.stores import Store, scrub
from tdbg.run.directory import (
    RUN_FILE,
    create_run,
    write_new_file,
    writer_directories,
)
from tdbg.run.json_values import load_json

__all__ = ["Progress", "Uploader"]

THREADS = 4
PAUSE_SECONDS = 0.2
PREPARE_SECONDS = 20.0
# What a store says that it will say again.
REFUSALS = ("denied", "missing", "exists", "damage")
_WRITER = re.compile(r"(train|engine|profiler)-\d{1,10}-\d{1,10}")


class Progress(NamedTuple):
    """How far an uploader is.

    Attributes:
        n_files: How many files are in the store, named by manifests.
        n_bytes: Their sizes together.
        pending_bytes: Complete files that are not.
        writers: The state of each writer, as in its manifests, or why it is not sent.
        uploads: Counts of requests, failures and retries.
        error: Why the last request failed; "" once one has succeeded.
    """

    n_files: int
    n_bytes: int
    pending_bytes: int
    writers: dict[str, str]
    uploads: dict[str, int]
    error: str


class Uploader:
    """Ships a run directory.

    Args:
        run: The directory: a spool, or a local run.
        url: Where the run is to be.
        empties: Whether files are deleted here once they are there.
        is_guest: Whether the run is others', and must be there: none is made, and its
            requests are theirs.
        is_over: Whether to give up, asked often.

    Raises:
        ConfigurationError: If the URL is bad, or a library is missing.
    """

    def __init__(
        self,
        run: Path,
        url: str,
        *,
        empties: bool,
        is_guest: bool = False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url
        self._run = run
        self._empties = empties
        self._deadline: float | None = None
        self._attempts = Attempts(url, lambda: is_over() or self._is_late())
        self._mirror = None if is_guest else RequestMirror(run, self._attempts)
        self._description: dict[str, Any] = {}
        self._shipments: dict[str, Shipment] = {}
        self._refused: dict[str, str] = {}

    def prepare(self, seconds: float = PREPARE_SECONDS) -> None:
        """Make the run there, or join it, and know here which writers it has had.

        Args:
            seconds: How long to ask a store that does not answer.

        Raises:
            StorageError: If the store refuses, or holds another run there.
            NotARun: If what is there is no run.
        """
        self._deadline = time.monotonic() + seconds
        try:
            content = self._attempts.until_done(self._join, answers=REFUSALS)
            self._description = load_json(content)
            if self._empties:
                self._make_places()
        except GivenUp:
            msg = f"{self.url} does not answer: {self._attempts.error}"
            raise StorageError(msg, file=self.url, kind="io") from None
        finally:
            self._deadline = None

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _join(self, store: Store) -> bytes:
        """RUN.json, the same here and there."""
        there = _read_if_there(store, RUN_FILE)
        here = _read_here(self._run / RUN_FILE)
        if there is None and self._mirror is None:
            shown = f"{store.url}/{RUN_FILE}"
            msg = f"{store.url} is no run: it has no {RUN_FILE}"
            raise NotARun(msg, file=shown, kind="missing")
        if there is None:
            if here is None:
                create_run(self._run)
                here = (self._run / RUN_FILE).read_bytes()
            try:
                store.write(RUN_FILE, here, is_new=True)
            except StorageError as error:
                if error.kind != "exists":
                    raise
            # Where a store cannot tell, another process may have been faster.
            there = store.read(RUN_FILE)
        identity = _uuid_of(there, f"{store.url}/{RUN_FILE}")
        if here is not None and _uuid_of(here, str(self._run)) != identity:
            self._replace(there)
        elif here is None:
            self._write_here(there)
        return there

    def _replace(self, there: bytes) -> None:
        """Take the identity of the run there, where nothing here would be lost."""
        left = [
            file.path
            for writer in writer_directories(self._run)
            for file in complete_files(writer.path, has_ended=True)
        ]
        if left or not self._empties:
            msg = (
                f"{self._run} and {self.url} are two different runs; send it to a URL "
                f"of its own: `tdbg ship {self._run} URL`"
            )
            raise StorageError(msg, file=str(self._run), kind="exists")
        (self._run / RUN_FILE).unlink()
        self._write_here(there)

    def _write_here(self, content: bytes) -> None:
        for folder in (self._run, self._run / "ctl", self._run / "w"):
            folder.mkdir(mode=0o700, exist_ok=True)
        write_new_file(self._run / RUN_FILE, content)

    def _make_places(self) -> None:
        """An empty folder for each writer there: what starts now is one generation on.

        They look old, so that nobody waits for a writer to appear in one.
        """
        listed = self._attempts.until_done(lambda store: store.list(MANIFESTS))
        for name in newest_manifests([each.name for each in listed]):
            place = self._run / "w" / name
            if _WRITER.fullmatch(name) and not place.exists():
                place.mkdir(mode=0o700)
                os.utime(place, (0, 0))

    def step(self, pool: futures.ThreadPoolExecutor) -> bool:
        """Send what is new; True when all writers have ended and are there.

        Raises:
            GivenUp: If it was over.
        """
        if self._mirror is not None:
            self._mirror.step()
        for writer in writer_directories(self._run):
            name = writer.path.name
            if name not in self._shipments and name not in self._refused:
                self._begin(writer.path)
        for name, shipment in list(self._shipments.items()):
            try:
                shipment.step(pool)
            except FileNotFoundError as error:
                self._refuse(name, f"{error} was deleted before it was sent")
        return all(shipment.is_done for shipment in self._shipments.values())

    def _begin(self, folder: Path) -> None:
        is_place = not (folder / "COMMIT").exists()
        if is_place and not complete_files(folder, has_ended=True):
            return
        shipment = Shipment(
            folder, self._description, self._attempts, empties=self._empties
        )
        try:
            if shipment.begin():
                self._shipments[folder.name] = shipment
            else:
                self._refused[folder.name] = shipment.trouble
        except StorageError as error:
            self._refused[folder.name] = scrub(error)

    def _refuse(self, name: str, why: str) -> None:
        del self._shipments[name]
        self._refused[name] = why

    def run(
        self,
        *,
        is_needed: Callable[[], bool] = lambda: False,
        tell: Callable[[Progress], None] = lambda _: None,
    ) -> bool:
        """Follow the directory until everything that was written there is sent.

        Args:
            is_needed: Whether somebody may still write; asked when all have ended.
            tell: Called with the progress, several times a second.

        Returns:
            Whether everything is there.
        """
        pool = futures.ThreadPoolExecutor(THREADS, "tdbg-upload")
        try:
            while True:
                needed = is_needed()
                is_done = self.step(pool)
                tell(self.progress())
                if is_done and not needed:
                    return not self._refused
                self.pause()
        except GivenUp:
            return False
        finally:
            tell(self.progress())
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def is_refused(self) -> bool:
        """Whether the store has refused the last request."""
        return self._attempts.kind == "denied"

    @property
    def refused(self) -> dict[str, str]:
        """Writers that are not sent, for good, and why."""
        return self._refused

    def pause(self) -> None:
        """Wait until it may be worth a look again."""
        time.sleep(PAUSE_SECONDS)

    def progress(self) -> Progress:
        """How far it is."""
        shipments = self._shipments.values()
        return Progress(
            sum(each.n_files for each in shipments),
            sum(each.n_bytes for each in shipments),
            sum(each.pending_bytes for each in shipments),
            {
                **{name: each.state for name, each in self._shipments.items()},
                **self._refused,
            },
            self._attempts.counts,
            self._attempts.error,
        )


def _read_if_there(store: Store, name: str) -> bytes | None:
    try:
        return store.read(name)
    except StorageError as error:
        if error.kind != "missing":
            raise
        return None


def _read_here(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _uuid_of(content: bytes, where: str) -> uuid.UUID:
    try:
        return uuid.UUID(hex=load_json(content)["uuid"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{where} is not the description of a run"
        raise NotARun(msg, file=where, kind="damage") from error
