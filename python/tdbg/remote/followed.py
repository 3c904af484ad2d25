"""A run in a store, as its manifests tell it: what a trial reads.

Implements docs/format.md, "A run in an object store", for readers.

Thread safety: may be used from any thread.

Errors: opening raises what the store says, or NotARun.  Later a store that does not
answer is trouble, which is told, and what was known stays; one that refuses raises.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tdbg.errors import CorruptionError, NotARun, StorageError, TdbgError
from tdbg.remote.fetching import Fetcher
from tdbg.remote.finding import ListedRun, nearest_runs
from tdbg.remote.layout import (
    CLOSED,
    MANIFESTS,
    OPEN,
    BlockObject,
    Manifest,
    ShippedFile,
    manifest_name,
    newest_manifests,
)
from tdbg.remote.stores import is_url, open_store
from tdbg.remote.uploads import Uploads
from tdbg.run.foreign import are_of_smdebug, only_read

# A hook that is disabled imports this package, and loads no core.
if TYPE_CHECKING:
    from tdbg._core import RemoteFiles

__all__ = ["FollowedRun", "FollowedWriter", "asked"]

# The store is asked for new manifests at most so often.
POLL_SECONDS = 1.0
# Of a run that has ended another training may go on: looked for this often.
ENDED_SECONDS = 5.0
# A manifest is late when it has not come after its interval and so much more.
LATE_FACTOR = 1.5
LATE_SECONDS = 5.0
# A writer without a heartbeat for so long does nothing, as on its own machine.
STALLED_SECONDS = 10.0
# Listed and gone again: what a slow reader meets.
_LISTINGS = 3
_WRITER = re.compile(r"(train|engine|profiler)-(0|[1-9]\d{0,9})-([1-9]\d{0,9})")


@dataclass
class FollowedWriter:
    """What is known of one writer.

    Attributes:
        name: Of its folder, as ``train-0-1``.
        files: Its files, for ``RunReader``.
        manifest: The last one that was read.
        sizes: Of its files.
    """

    name: str
    files: RemoteFiles
    manifest: Manifest
    sizes: dict[str, int] = field(default_factory=dict)
    blocks: set[str] = field(default_factory=set)
    seen: float = 0.0  # Monotonic time.
    is_first: bool = True
    heartbeat: int = 0
    beaten: dt.datetime | None = None

    def state(self) -> str:
        """How its process is, as far as its manifests tell."""
        if self.manifest.state != OPEN:
            return "closed" if self.manifest.state == CLOSED else "dead"
        late = self.manifest.interval * LATE_FACTOR + LATE_SECONDS
        age = time.monotonic() - self.seen
        if self.is_first:  # It may be old.  A clock that is behind makes no age.
            now = dt.datetime.now(dt.UTC)
            age = max(age, (now - self.manifest.time).total_seconds())
        if age > late:
            return "unknown"
        quiet = self.manifest.time - (self.beaten or self.manifest.time)
        return "stalled" if quiet.total_seconds() > STALLED_SECONDS else "running"

    def take(self, manifest: Manifest) -> None:
        """This is its newest manifest."""
        self.manifest, self.seen = manifest, time.monotonic()
        self.blocks = {block for block, _ in manifest.blocks}
        self.tell()
        page = self.page()
        heartbeat = 0 if page is None else int(page["heartbeat_ns"])
        if self.beaten is None or heartbeat != self.heartbeat:
            self.heartbeat, self.beaten = heartbeat, manifest.time
        self.tell()

    def tell(self) -> None:
        """Pass on how it is."""
        whole = self.manifest.state != OPEN
        self.files.tell(self.manifest.commit_page, self.state(), whole)

    def page(self) -> dict[str, Any] | None:
        """Read its commit page, as ``look_at_writer`` does."""
        from tdbg._core import look_at_writer

        return look_at_writer(self.name, self.files)


class FollowedRun:
    """The writers of a run in a store.

    Args:
        url: Of the run.

    Attributes:
        url: As it is shown.
        uuid: Identity of the run.
        created: When it was made, as ISO 8601 text in UTC.
        writers: By name.
        trouble: What the store did not tell at the last look; empty: nothing.

    Raises:
        NotARun: If there is no run.
        StorageError: If the store does not answer, or refuses.
        CorruptionError: If what is there is not what an uploader writes.
    """

    def __init__(self, url: str) -> None:
        store = open_store(url)
        self.url = store.url
        self.writers: dict[str, FollowedWriter] = {}
        self.trouble = ""
        self._fetcher = Fetcher(store)
        self._lock = threading.Lock()
        self._next_look = 0.0
        listed = url if isinstance(url, ListedRun) else ListedRun(url)
        if listed.is_of_smdebug or not self._look(listed.manifests):
            raise self._no_run()
        first = next(iter(self.writers.values())).manifest
        self.uuid = first.run_uuid
        self.created = str(first.run.get("created", ""))
        self._next_look = time.monotonic() + POLL_SECONDS

    def poll(self) -> None:
        """Read the manifests that came since, if it is time to look.

        Raises:
            StorageError: If the store refuses, as for credentials that have expired.
            CorruptionError: If a manifest is not what an uploader writes.
        """
        now = time.monotonic()
        with self._lock:
            if now >= self._next_look:
                try:
                    self._look()
                    self.trouble = ""
                except StorageError as error:
                    if error.kind not in ("io", "missing"):
                        raise
                    self.trouble = str(error)
                finally:
                    ended = all(w.manifest.state != OPEN for w in self.writers.values())
                    pause = ENDED_SECONDS if ended else POLL_SECONDS
                    self._next_look = time.monotonic() + pause
            for writer in self.writers.values():
                writer.tell()

    def __str__(self) -> str:
        return self.url

    def generations(self) -> dict[int, int]:
        """For each rank, the generation of its newest training writer."""
        found: dict[int, int] = {}
        for name in self.writers:
            role, rank, generation = name.split("-")
            if role == "train":
                found[int(rank)] = max(int(generation), found.get(int(rank), 0))
        return found

    def uploads(self) -> Uploads:
        """How its upload is, as its manifests and this machine's spool tell."""
        manifests = [each.manifest for each in self.writers.values()]
        return Uploads.of(self.url, manifests)

    def write(self, name: str, content: bytes) -> None:
        """Store a new object below the URL.

        Raises:
            StorageError: If the store does not answer, or refuses.
        """
        store = self._fetcher.store
        self._fetcher.again(lambda: store.write(name, content))

    def _look(self, listed: Mapping[str, int] | None = None) -> bool:
        """Read what is new; return whether there is any writer.

        Args:
            listed: The newest manifests, where they were listed just now.
        """
        for is_last in (*[False] * (_LISTINGS - 1), True):
            found = listed or self._list()
            listed = None
            newest = {
                name: number
                for name, number in found.items()
                if _WRITER.fullmatch(name) and self._is_new(name, number)
            }
            try:
                self._take(newest)
                break
            except StorageError as error:
                # The uploader removed it meanwhile: there is a later one.
                if error.kind != "missing" or is_last:
                    raise
        return bool(self.writers)

    def _list(self) -> dict[str, int]:
        listed = self._fetcher.again(lambda: self._fetcher.store.list(MANIFESTS))
        return newest_manifests([each.name for each in listed])

    def _is_new(self, name: str, number: int) -> bool:
        known = self.writers.get(name)
        return known is None or number > known.manifest.number

    def _take(self, newest: dict[str, int]) -> None:
        names = [f"{MANIFESTS}/{w}/{manifest_name(n)}" for w, n in newest.items()]
        contents = self._fetcher.read_all(names)
        manifests = [
            self._checked(Manifest.decode(content, self._shown(name)), writer, number)
            for content, name, (writer, number) in zip(
                contents, names, newest.items(), strict=True
            )
        ]
        unread = [
            (manifest, block, size)
            for manifest in manifests
            for block, size in manifest.blocks
            if block not in self._blocks_of(manifest.writer)
        ]
        contents = self._fetcher.each(
            lambda w: self._fetcher.range(f"{MANIFESTS}/{w[0].writer}/{w[1]}", 0, w[2]),
            unread,
        )
        blocks: dict[str, list[BlockObject]] = {}
        for content, (manifest, block, _) in zip(contents, unread, strict=True):
            shown = self._shown(f"{MANIFESTS}/{manifest.writer}/{block}")
            blocks.setdefault(manifest.writer, []).append(
                BlockObject.decode(content, shown)
            )
        for manifest in manifests:
            self._update(manifest, blocks.get(manifest.writer, []))

    def _blocks_of(self, writer: str) -> set[str]:
        known = self.writers.get(writer)
        return set() if known is None else known.blocks

    def _shown(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _checked(self, manifest: Manifest, writer: str, number: int) -> Manifest:
        shown = self._shown(f"{MANIFESTS}/{writer}/{manifest_name(number)}")
        if (manifest.writer, manifest.number) != (writer, number):
            msg = f"{shown} is that of {manifest.writer}, number {manifest.number}"
            raise CorruptionError(msg, file=shown, kind="damage")
        others = [each.manifest.run_uuid for each in self.writers.values()]
        if others and manifest.run_uuid != others[0]:
            msg = f"{shown} belongs to another run"
            raise CorruptionError(msg, file=shown, kind="foreign")
        return manifest

    def _update(self, manifest: Manifest, blocks: list[BlockObject]) -> None:
        name = manifest.writer
        writer = self.writers.get(name)
        if writer is None:
            from tdbg._core import RemoteFiles

            files = RemoteFiles(partial(self._fetcher.ranges, f"w/{name}"))
            writer = FollowedWriter(name, files, manifest)
        else:
            writer.is_first = False
        found = {each.name: each for block in blocks for each in block.files}
        self._take_sizes(writer, found.values(), manifest)
        for each in found.values():
            writer.files.add(each.name, each.size, each.ranges)
        self.writers[name] = writer
        writer.take(manifest)

    def _take_sizes(
        self, writer: FollowedWriter, files: Iterable[ShippedFile], manifest: Manifest
    ) -> None:
        """Remember how large each file is, which never changes."""
        for each in files:
            known = writer.sizes.setdefault(each.name, each.size)
            if known != each.size:
                shown = self._shown(f"w/{writer.name}/{each.name}")
                msg = (
                    f"{shown} had {known:,} bytes, and its list says {each.size:,} now"
                )
                raise CorruptionError(msg, file=shown, kind="damage")
            self._fetcher.sizes[f"w/{writer.name}/{each.name}"] = each.size
        n_bytes = sum(writer.sizes.values())
        if (len(writer.sizes), n_bytes) != (manifest.n_files, manifest.n_bytes):
            number = manifest_name(manifest.number)
            shown = self._shown(f"{MANIFESTS}/{writer.name}/{number}")
            msg = (
                f"{shown} tells of {manifest.n_files:,} files with "
                f"{manifest.n_bytes:,} bytes, and its lists of {len(writer.sizes):,} "
                f"with {n_bytes:,}"
            )
            raise CorruptionError(msg, file=shown, kind="damage")

    def _no_run(self) -> TdbgError:
        folders, objects = self._fetcher.store.entries()
        if are_of_smdebug([*folders, *objects]):
            msg = f"{self.url} is not a run: {only_read(self.url)}"
            return NotARun(msg, file=self.url, kind="smdebug")
        near = nearest_runs(self._fetcher.store)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        msg = f"{self.url} is not a run: it has no manifest{hint}"
        return NotARun(msg, file=self._shown("RUN.json"), kind="missing")


def asked(run: str | os.PathLike[str]) -> str | os.PathLike[str] | FollowedRun:
    """Return what takes requests to a run: its path, or what follows its URL.

    Raises:
        NotARun: If there is no run at the URL.
        StorageError: If the store does not answer, or refuses.
    """
    return FollowedRun(os.fspath(run)) if is_url(run) else run
