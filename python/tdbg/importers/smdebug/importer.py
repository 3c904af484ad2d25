"""Turns an output directory of smdebug into a run, step by step.

What was converted is not converted again: the run says how far it is, in a file of its
own, and each pass takes in what has come since.

Thread safety: none; one importer at a time writes to a run, which a lock of the file
system sees to.

Errors: ``StorageError`` where the directory cannot be listed or the run cannot be
written.  What is damaged within the directory is counted in the run, and named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from tdbg.errors import ConfigurationError, RunInUse, StorageError
from tdbg.importers.smdebug import index
from tdbg.importers.smdebug.damage import Damage
from tdbg.importers.smdebug.described import (
    Collections,
    collection_files,
    read_collections,
)
from tdbg.importers.smdebug.files import Files
from tdbg.importers.smdebug.names import Names, root_of
from tdbg.importers.smdebug.steps import StepFiles, convert_step
from tdbg.importers.smdebug.worker import WorkerWriter, put_back
from tdbg.run.directory import Run, create_run, is_run, read_small_file
from tdbg.run.foreign import IMPORT_FILE
from tdbg.run.json_values import is_integer, load_json, mapping_of, texts_of

__all__ = ["END_FILE", "Changed", "ImportPass", "Importer", "has_state"]

END_FILE = "training_job_end.ts"
LOCK_FILE = "import.lock"
FORMAT, VERSION = "tdbg-import-smdebug", 1
_RANK = re.compile(r"worker_(\d{1,5})")
_STEPS_IN_FOLDER = 1000
# What a file raises that says something else than how far an import is.
_NO_STATE = (ValueError, KeyError, TypeError, AttributeError)

Told = Callable[[int, int], None]


class Changed(ConfigurationError):
    """The directory no longer holds what was converted."""


class ImportPass(NamedTuple):
    """What a pass has done.

    Attributes:
        steps: How many steps of workers were converted.
        lost: How many tensors of them could not be read.
        has_ended: Whether the training has ended.
    """

    steps: int
    lost: int
    has_ended: bool


@dataclass(slots=True)
class _Progress:
    """How far a worker is converted.

    Attributes:
        rank: The rank that it is in the run.
        last: Its last step; -1 before the first.
        digest: Of the stamps of all steps up to that one.
    """

    rank: int
    last: int = -1
    digest: str = ""

    def add(self, step: int, stamp: str) -> None:
        text = f"{self.digest} {step} {stamp}"
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self.last = step


@dataclass(slots=True)
class _State:
    """How far an import is, as the run says."""

    source: str
    attempt: str
    root: str | None = None
    framework: str = ""
    has_ended: bool = False
    # Whether a pass came to its end.
    is_readable: bool = False
    workers: dict[str, _Progress] = field(default_factory=dict)

    def to_json(self) -> bytes:
        content = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        return json.dumps(content).encode()

    @classmethod
    def of_json(cls, text: bytes) -> Self:
        """Return what a file says.

        Raises:
            ValueError: If it says something else.
        """
        content = mapping_of(load_json(text))
        if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise ValueError(content.get("format"))
        state = cls(str(content["source"]), str(uuid.UUID(content["attempt"])))
        root = content.get("root")
        state.root = root if isinstance(root, str) else None
        state.framework = str(content.get("framework", ""))
        state.has_ended = content.get("has_ended") is True
        state.is_readable = content.get("is_readable", True) is True
        for name, each in mapping_of(content.get("workers")).items():
            rank, last = each["rank"], each["last"]
            if not is_integer(rank) or not is_integer(last):
                raise ValueError(name)
            state.workers[name] = _Progress(rank, last, str(each["digest"]))
        return state


class Importer:
    """Converts a directory into a run, now and as the directory grows.

    Args:
        files: The output directory.
        run: Directory of the run; made if there is none.
        told: Called with the number of steps converted in this pass and of those that
            there are, before each step.

    Raises:
        Changed: If the run was made of another directory, or of other content.
        ConfigurationError: If there is a run that no importer made.
        RunInUse: If another process converts into this run.
        StorageError: If the run cannot be read or written.
    """

    def __init__(self, files: Files, run: Path, told: Told = lambda *_: None) -> None:
        self._files = files
        self._told = told
        self._writers: dict[str, WorkerWriter] = {}
        self._collections = Collections()
        self._collection_stamps: dict[str, str] = {}
        self._names: Names | None = None
        self._lock = -1
        # As of now: files are listed when they are made.
        self._is_listed = True
        is_new = not is_run(run)
        self.run = create_run(run)
        self._state_file = self.run.path / IMPORT_FILE
        self._lock = _locked(self.run)
        try:
            self._state = self._opened_state(is_new=is_new)
            self._first_folder = 0
            if is_new:
                # So that the next import goes on, whatever ends this one.
                self._write_state()
            else:
                self._check_what_was_converted()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def convert(self) -> ImportPass:
        """Take in what has come since the last pass.

        Raises:
            StorageError: If the directory or the run refuses.  The next pass goes on
                after the last step that was converted.
        """
        try:
            done = self._pass()
        except StorageError:
            with contextlib.suppress(StorageError):
                self._finish_pass(has_ended=False)
            raise
        self._state.is_readable = True
        self._finish_pass(done.has_ended)
        return done

    def _pass(self) -> ImportPass:
        if not self._is_listed:
            self._files.refresh()
        self._is_listed = False
        # Looked for first: what is there after the end is all that there is.
        has_ended = bool(self._files.stamp(END_FILE))
        if has_ended and not self._state.has_ended:
            self._files.refresh()
        due = list(self._due())
        if due or not self._state.has_ended:
            self._read_collections()
        steps = lost = 0
        early: set[str] = set()
        for step, worker in due:
            files = StepFiles(self._files, step, worker)
            if worker in early or (not has_ended and self._is_early(files)):
                early.add(worker)
                continue
            self._told(steps, len(due))
            lost += self._convert_step(files, self._prepared_names(files))
            steps += 1
        if has_ended and not self._state.has_ended:
            lost += self._lose_what_has_no_index()
        return ImportPass(steps, lost, has_ended)

    def close(self) -> None:
        """End the writers, and let other processes go on."""
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        try:
            for writer in self._writers.values():
                writer.close(has_ended=self._state.has_ended)
            self._writers.clear()
        finally:
            os.close(lock)

    # --- How far it is ------------------------------------------------------

    def _opened_state(self, *, is_new: bool) -> _State:
        try:
            state = _read_state(self.run.path)
        except FileNotFoundError:
            if not is_new and any((self.run.path / "w").iterdir()):
                msg = (
                    f"there is a run at {self.run.path} that was not imported; "
                    "import into a new directory"
                )
                raise ConfigurationError(msg) from None
            return _State(self._files.identity, str(uuid.uuid4()))
        except _NO_STATE as error:
            msg = f"{self._state_file} does not say what was imported"
            raise Changed(msg) from error
        if state.source != self._files.identity:
            msg = (
                f"{self.run.path} was imported from another directory than "
                f"{self._files.path}; import into a new directory"
            )
            raise Changed(msg)
        return state

    def _check_what_was_converted(self) -> None:
        found = {name: _Progress(0) for name in self._state.workers}
        for step, worker in self._listed():
            progress = self._state.workers.get(worker)
            if progress is not None and step <= progress.last:
                stamp = StepFiles(self._files, step, worker).stamp
                found[worker].add(step, stamp)
        for name, progress in self._state.workers.items():
            if found[name].digest != progress.digest:
                msg = (
                    f"{self._files.path} no longer holds what {self.run.path} was "
                    f"imported from (steps of {name} have changed); import it into a "
                    "new directory"
                )
                raise Changed(msg)

    def _write_state(self) -> None:
        temporary = self._state_file.with_suffix(".tmp")
        try:
            temporary.write_bytes(self._state.to_json())
            temporary.replace(self._state_file)
        except OSError as error:
            raise StorageError.of(error, "write", self._state_file) from error

    # --- What is there ------------------------------------------------------

    def _listed(self) -> Iterator[tuple[int, str]]:
        """Yield steps and workers that have an index file, by step."""
        for folder in self._files.entries("index"):
            if not folder.is_folder or not folder.name.isdecimal():
                continue
            if int(folder.name) >= self._first_folder:
                yield from self._listed_in(f"index/{folder.name}")

    def _listed_in(self, folder: str) -> list[tuple[int, str]]:
        found = []
        for entry in self._files.entries(folder):
            parts = None if entry.is_folder else index.step_and_worker(entry.name)
            # A file in a place where smdebug does not put it is none of its files.
            if parts and index.index_file(*parts) == f"{folder}/{entry.name}":
                found.append(parts)
        return sorted(found)

    def _due(self) -> Iterator[tuple[int, str]]:
        for step, worker in self._listed():
            progress = self._state.workers.get(worker)
            if progress is None or step > progress.last:
                yield step, worker

    def _read_collections(self) -> None:
        for path in collection_files(self._files).values():
            stamp = self._files.stamp(path)
            if self._collection_stamps.get(path) != stamp:
                self._collection_stamps[path] = stamp
                # Roles then go by names alone.
                with contextlib.suppress(Damage):
                    read_collections(self._files, path, self._collections)

    def _prepared_names(self, files: StepFiles) -> Names:
        """Return what names stand for; decided once, at the first step."""
        state = self._state
        if state.root is None:
            names = set(files.names()).union(
                *(self._collections.names.get(each, ()) for each in _OF_PARAMETERS)
            )
            state.framework = self._collections.framework
            state.root = root_of(names) if state.framework == "pytorch" else ""
        if self._names is None:
            self._names = Names(self._collections, state.framework, state.root)
        return self._names

    # --- Converting ---------------------------------------------------------

    def _convert_step(self, files: StepFiles, names: Names) -> int:
        lost = convert_step(files, self._writer(files.worker), names)
        self._state.workers[files.worker].add(files.step, files.stamp)
        return lost

    def _is_early(self, files: StepFiles) -> bool:
        """Whether the tensors of an index are still to come: a copy is under way."""
        if self._files.stamp(files.event_file):
            return False
        try:
            return bool(files.read_index().places)
        except Damage:
            return False

    def _lose_what_has_no_index(self) -> int:
        """Count event files that no index tells of, and steps that were cut short."""
        lost = 0
        for folder in self._files.entries("events"):
            if not folder.is_folder or not folder.name.isdecimal():
                continue
            step = int(folder.name)
            for entry in self._files.entries(f"events/{folder.name}"):
                worker = _worker_of_events(entry.name, step)
                if worker is None:
                    continue
                if not self._files.stamp(index.index_file(step, worker)):
                    reason = "the index of its step is missing"
                    name = f"events/{folder.name}/{entry.name}"
                    self._writer(worker).lose(step, name, reason)
                    lost += 1
        return lost

    def _writer(self, worker: str) -> WorkerWriter:
        if worker not in self._state.workers:
            self._state.workers[worker] = _Progress(self._new_rank(worker))
        if worker not in self._writers:
            if not self._writers:
                put_back(self.run)
            rank = self._state.workers[worker].rank
            attempt = uuid.UUID(self._state.attempt).bytes
            self._writers[worker] = WorkerWriter(
                self.run, rank, attempt, self._configuration(worker, rank)
            )
        return self._writers[worker]

    def _new_rank(self, worker: str) -> int:
        """Return the rank that smdebug's name says, or the first that is free."""
        taken = {progress.rank for progress in self._state.workers.values()}
        match = _RANK.fullmatch(worker)
        if match and int(match[1]) not in taken:
            return int(match[1])
        return next(rank for rank in range(len(taken) + 1) if rank not in taken)

    def _configuration(self, worker: str, rank: int) -> dict[str, Any]:
        ranks = sorted({p.rank for p in self._state.workers.values()} | {rank})
        n_workers = max(self._collections.n_workers, len(ranks))
        return {
            "framework": {"name": self._state.framework, "version": ""},
            "hook": {"name": "smdebug"},
            "imported": {"from": "smdebug", "worker": worker},
            "rank": rank,
            "world_size": n_workers,
            "workers": list(range(n_workers)) if n_workers > len(ranks) else ranks,
        }

    def _finish_pass(self, has_ended: bool) -> None:
        described = {} if self._names is None else self._described(self._names)
        for writer in self._writers.values():
            writer.describe(described)
            writer.flush()
        if has_ended and not self._state.has_ended:
            self._state.has_ended = True
            for worker in self._state.workers:
                self._writer(worker).close(has_ended=True)
            self._writers.clear()
        if self._state.workers:
            # Steps before the last of each worker come no more.
            last = min(progress.last for progress in self._state.workers.values())
            self._first_folder = max(0, last) // _STEPS_IN_FOLDER
        self._write_state()

    def _described(self, names_of: Names) -> dict[str, Any]:
        """Return the collections as a run describes them, by tdbg's names."""
        found = {}
        for collection, names in sorted(self._collections.names.items()):
            document = self._collections.documents[collection]
            found[collection] = {
                "include_regex": texts_of(document.get("include_regex")),
                "tensor_names": sorted(names_of.of(name).name for name in names),
            }
        return found


def has_state(run: Path) -> bool:
    """Whether a first pass has made a run there."""
    try:
        return _read_state(run).is_readable
    except (OSError, *_NO_STATE):
        return False


def _read_state(run: Path) -> _State:
    return _State.of_json(read_small_file(run / IMPORT_FILE, limit=1 << 26))


# The collections whose names begin with the model's class.
_OF_PARAMETERS = ("weights", "biases", "gradients")


def _worker_of_events(name: str, step: int) -> str | None:
    """Return whose event file a name is; None if it is none of this step."""
    prefix, suffix = f"{step:012d}_", ".tfevents"
    if not name.startswith(prefix) or not name.endswith(suffix):
        return None
    return name.removeprefix(prefix).removesuffix(suffix) or None


def _locked(run: Run) -> int:
    """Take the lock of who converts into a run; return its descriptor."""
    path = run.path / LOCK_FILE
    try:
        descriptor = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError as error:
        raise StorageError.of(error, "open", path) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        msg = f"another process imports into {run.path}"
        raise RunInUse(msg, file=str(path), kind="in_use") from error
    except OSError as error:
        os.close(descriptor)
        raise StorageError.of(error, "lock", path) from error
    return descriptor
