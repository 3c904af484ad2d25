"""One writer's way to a store: its files, the block objects, and the manifests.

Implements docs/format.md, "A run in an object store".  Files are sent by threads of the
uploader's pool, several at a time, and named in their order by its own thread.

Thread safety: none; owned by the uploader's thread.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.errors import StorageError
from tdbg.remote.attempts import Attempts
from tdbg.remote.complete_files import CompleteFile, complete_files, opening_bytes
from tdbg.remote.layout import (
    CLOSED,
    COMMIT_BYTES,
    COMMIT_HEADER_BYTES,
    DEAD,
    INTERVAL_SECONDS,
    MANIFESTS,
    MANIFESTS_KEPT,
    OPEN,
    BlockObject,
    Manifest,
    ShippedFile,
    blocks_name,
    manifest_name,
    manifest_number,
    newest_manifests,
)
from tdbg.remote.stores import Store

__all__ = ["Shipment"]

# A block object that still grows, and the most to which a full one is joined.
GROWING_BYTES = 1 << 20
JOINED_BYTES = 8 << 20
# The most files that a manifest names for the first time.
FILES_A_MANIFEST = 512
# Without any sign of life for so long, a writer whose process is gone is dead, and one
# whose process cannot be seen from here.
DEAD_SECONDS = 2.0
SILENT_SECONDS = 10.0
_LIVES = ("running", "stalled")


class _Block(NamedTuple):
    """A block object that manifests name; its files while it may still grow."""

    name: str
    size: int
    files: tuple[ShippedFile, ...] | None


class Shipment:
    """Sends what a writer has completed, and says so in manifests.

    Args:
        folder: The writer's, in the spool or in a local run.
        run: What RUN.json holds.
        attempts: Asks the store.
        empties: Whether files are deleted here once a manifest names them.

    Attributes:
        name: The writer's.
        state: As in its manifests: ``open``, ``closed`` or ``dead``.
        is_done: Whether everything of it is in the store.
        trouble: Why nothing of it is sent, for good; or "".
        n_files: How many files manifests name.
        n_bytes: Their sizes together.
    """

    def __init__(
        self, folder: Path, run: Mapping[str, Any], attempts: Attempts, *, empties: bool
    ) -> None:
        self.name = folder.name
        self.state = OPEN
        self.is_done = False
        self.trouble = ""
        self.n_files = self.n_bytes = 0
        self._folder = folder
        self._run = run
        self._attempts = attempts
        self._empties = empties
        self._number = 0
        self._published = 0.0
        self._blocks: list[_Block] = []
        self._named: set[str] = set()
        self._sending: deque[tuple[CompleteFile, Future[ShippedFile]]] = deque()
        self._objects: dict[int, list[str]] = {}  # Of each manifest that is kept.
        self._stale: list[str] = []
        self._may_delete = True
        self._page, self._changed = b"", time.monotonic()

    @property
    def pending_bytes(self) -> int:
        """Bytes of complete files that no manifest names yet."""
        return sum(file.size for file, _ in self._sending)

    def begin(self) -> bool:
        """Find out what is in the store already; False: it is another writer's.

        Raises:
            GivenUp: If the store did not answer in time.
        """
        self._page = self._commit_page()
        known = self._newest() or self._claim() or self._newest()
        mine = self._page[:COMMIT_HEADER_BYTES].rstrip(b"\0")
        if known is None or known.owner.rstrip(b"\0") != mine:
            self.trouble = (
                f"another training writes {self.name} there; send this one to a URL "
                "of its own"
            )
            return False
        if known.number != self._number:
            self._resume(known)
        return True

    def step(self, pool: Executor) -> None:
        """Send what is complete, name what was sent; returns soon.

        Raises:
            GivenUp: If the store did not answer in time.
        """
        if self.is_done:
            return
        state = self._look()
        on_the_way = {file.path.name for file, _ in self._sending}
        known = self._named | on_the_way
        has_ended = state != OPEN
        for file in complete_files(self._folder, has_ended=has_ended, known=known):
            name = file.path.name
            if name not in known:
                self._sending.append((file, pool.submit(self._send, file)))
            elif name in self._named:
                self._delete(file.path)
        self._publish_if_due(state)

    # ---- what the writer does -------------------------------------------------

    def _look(self) -> str:
        """The state of the writer, as far as that can be seen from here."""
        page = self._commit_page()
        now = time.monotonic()
        if page != self._page:
            self._page, self._changed = page, now
        told = import_module("tdbg._core").look_at_writer(str(self._folder))
        if told is not None and told["state"] == CLOSED:
            return CLOSED
        if told is not None and told["state"] == DEAD:
            ago = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - told["heartbeat_ns"]
            return DEAD if ago >= DEAD_SECONDS * 1e9 else OPEN
        if told is not None and told["state"] in _LIVES:
            return OPEN
        return DEAD if now - self._changed >= SILENT_SECONDS else OPEN

    def _commit_page(self) -> bytes:
        with contextlib.suppress(OSError), (self._folder / "COMMIT").open("rb") as file:
            return file.read(COMMIT_BYTES)
        return b""

    # ---- files ----------------------------------------------------------------

    def _send(self, file: CompleteFile) -> ShippedFile:
        """Send a file, on a thread of the pool."""
        target = f"w/{self.name}/{file.path.name}"
        ranges = opening_bytes(file)

        def request(store: Store) -> None:
            if not file.path.is_file():
                raise FileNotFoundError(str(file.path))  # Here, not there.
            store.write_file(target, file.path)
            _check_size(store, target, file.size)

        self._attempts.until_done(request)
        return ShippedFile(file.path.name, file.size, ranges)

    def _delete(self, path: Path) -> None:
        if self._empties:
            path.unlink(missing_ok=True)

    # ---- manifests ------------------------------------------------------------

    def _publish_if_due(self, state: str) -> None:
        sent = self._take_sent()
        is_last = state != OPEN and not self._sending
        late = time.monotonic() - self._published >= INTERVAL_SECONDS
        if not sent and not is_last and not late:
            return
        if is_last:
            self.state = state
        self._publish(sent)
        self.is_done = is_last

    def _take_sent(self) -> list[ShippedFile]:
        """Files that were sent, up to the first one that was not."""
        sent: list[ShippedFile] = []
        while (
            self._sending
            and len(sent) < FILES_A_MANIFEST
            and self._sending[0][1].done()
        ):
            sent.append(self._sending[0][1].result())
            self._sending.popleft()
        return sent

    def _publish(self, sent: list[ShippedFile]) -> None:
        number = self._number + 1
        if sent:
            self._add_block(tuple(sent), number)
        self.n_files += len(sent)
        self.n_bytes += sum(file.size for file in sent)
        self._write_manifest(number, self._manifest(number))
        self._named.update(file.name for file in sent)
        for file in sent:
            self._delete(self._folder / file.name)
        self._forget_old(number)

    def _manifest(self, number: int) -> Manifest:
        return Manifest(
            run=self._run,
            writer=self.name,
            number=number,
            time=dt.datetime.now(dt.UTC),
            state=self.state,
            commit=self._page.rstrip(b"\0"),
            blocks=tuple((block.name, block.size) for block in self._blocks),
            n_files=self.n_files,
            n_bytes=self.n_bytes,
            uploads=self._attempts.counts,
        )

    def _write_manifest(self, number: int, manifest: Manifest) -> None:
        name, content = self._path(manifest_name(number)), manifest.encode()

        def request(store: Store) -> None:
            store.write(name, content)
            _check_size(store, name, len(content))

        self._attempts.until_done(request)
        self._note_published(number)

    def _note_published(self, number: int) -> None:
        self._number, self._published = number, time.monotonic()
        names = [manifest_name(number), *(block.name for block in self._blocks)]
        self._objects[number] = names

    def _add_block(self, files: tuple[ShippedFile, ...], number: int) -> None:
        """Store the files in the last block object, or in one more."""
        last = self._blocks[-1] if self._blocks else None
        before = self._blocks[-2] if len(self._blocks) > 1 else None
        kept = self._blocks
        if last is not None and last.files is not None and last.size < GROWING_BYTES:
            kept, files = self._blocks[:-1], last.files + files
        elif (
            last is not None
            and before is not None
            and last.files is not None
            and before.files is not None
            and before.size < JOINED_BYTES
        ):
            kept, files = self._blocks[:-2], before.files + last.files + files
        name = blocks_name(number)
        content = BlockObject(self.name, files).encode()

        def request(store: Store) -> None:
            store.write(self._path(name), content)
            _check_size(store, self._path(name), len(content))

        self._attempts.until_done(request)
        # Only the last two may grow: of the others no bytes are kept.
        old = [block._replace(files=None) for block in kept[:-1]]
        self._blocks = [*old, *kept[-1:], _Block(name, len(content), files)]

    def _forget_old(self, number: int) -> None:
        """Remove manifests that nobody follows, and blocks that no other one names."""
        old = [each for each in self._objects if each <= number - MANIFESTS_KEPT]
        gone = {name for each in old for name in self._objects.pop(each)}
        if number - MANIFESTS_KEPT >= min(self._objects, default=0) - 1:
            gone.update(self._stale)
            self._stale = []
        kept = {name for names in self._objects.values() for name in names}
        self._remove_all(gone - kept)

    def _remove_all(self, names: Iterable[str]) -> None:
        """Remove manifests, then blocks; an object that stays does no harm.

        Blocks wait while a manifest stays: none names what is absent.
        """
        if not self._may_delete:
            return
        left: list[str] = []
        for name in sorted(names, key=lambda name: (not _is_manifest(name), name)):
            is_needed = bool(left) and _is_manifest(left[0]) and not _is_manifest(name)
            if is_needed or not self._remove(self._path(name)):
                left.append(name)
        self._stale += left

    def _remove(self, path: str) -> bool:
        """Ask the store once to remove an object; return whether it did."""
        try:
            self._attempts.once(lambda store: store.remove(path))
        except StorageError as error:
            self._may_delete = error.kind != "denied"
            return False
        return True

    def _path(self, name: str) -> str:
        return f"{MANIFESTS}/{self.name}/{name}"

    # ---- what is there --------------------------------------------------------

    def _newest(self) -> Manifest | None:
        """The newest manifest of a writer of this name in the store."""

        def request(store: Store) -> Manifest | None:
            listed = [each.name for each in store.list(self._path("").rstrip("/"))]
            number = newest_manifests(listed).get(self.name)
            if number is None:
                return None
            name = self._path(manifest_name(number))
            self._stale = [each.rpartition("/")[2] for each in listed]
            return Manifest.decode(store.read(name), name)

        return self._attempts.until_done(request, answers=("damage", "unsupported"))

    def _claim(self) -> Manifest | None:
        """Write the first manifest, where there is none; None: there is one."""
        first = self._manifest(1)
        name, content = self._path(manifest_name(1)), first.encode()
        try:
            self._attempts.until_done(
                lambda store: store.write(name, content, is_new=True),
                answers=("exists",),
            )
        except StorageError:
            return None
        self._note_published(1)
        return first

    def _resume(self, known: Manifest) -> None:
        """Go on behind the newest manifest, which another process has written."""
        self._number = known.number
        self.n_files, self.n_bytes = known.n_files, known.n_bytes
        for name, size in known.blocks:
            files = self._files_of(self._path(name))
            self._named.update(file.name for file in files)
            self._blocks.append(_Block(name, size, files))
        here = complete_files(self._folder, has_ended=True)
        for file in here:
            if file.path.name in self._named:
                self._delete(file.path)
        left = [file for file in here if file.path.name not in self._named]
        self.is_done = known.state != OPEN and not left
        self.state = known.state if self.is_done else OPEN

    def _files_of(self, path: str) -> tuple[ShippedFile, ...]:
        content = self._attempts.until_done(lambda store: store.read(path))
        return BlockObject.decode(content, path).files


def _is_manifest(name: str) -> bool:
    return manifest_number(name) is not None


def _check_size(store: Store, name: str, size: int) -> None:
    found = store.size(name)
    if found != size:
        msg = f"{store.url}/{name} has {found} bytes, not the {size} that were sent"
        raise StorageError(msg, file=name, kind="io")
