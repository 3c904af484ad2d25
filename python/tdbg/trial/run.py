"""What is known of a run: its writers, the steps that count, the names.

Thread safety: everything is done under ``lock``, which public methods hold.

Errors: opening fails when the directory is no run.  Later damage is reported by
``problems()`` and never raised by a refresh.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdbg._core import Definition
from tdbg.config.collections import NO_TENSORS
from tdbg.config.messages import nearest_recorded, short
from tdbg.errors import InvalidWorker, StorageError, TdbgError
from tdbg.modes import ModeKeys
from tdbg.run.json_values import mapping_of
from tdbg.run.schema import stored_name
from tdbg.trial import writers
from tdbg.trial.rivals import CONCURRENT, HiddenSteps, hidden_steps
from tdbg.trial.shards import role_of
from tdbg.trial.steps import StepTable
from tdbg.trial.tensor_table import TensorTable, tensors_of
from tdbg.trial.training_steps import OF_ROUNDS, training_steps_at
from tdbg.trial.writers import NO_END, Attempt, FileProblem, Source, WriterReader

if TYPE_CHECKING:
    from tdbg.trial.places import RunPlace

__all__ = ["RunState"]


class RunState:
    """A run as far as it has been read."""

    def __init__(
        self,
        place: RunPlace,
        range_steps: tuple[int, int | None] | None,
        attempt: int | None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.place = place
        start, stop = range_steps or (None, None)
        self.start = -NO_END if start is None else start
        self.stop = NO_END if stop is None else stop
        self._attempt = attempt
        self._options = dict(options or {})  # Of the readers.
        self._frozen = 0
        self._writers: dict[str, WriterReader] = {}
        self._unreadable: dict[str, TdbgError] = {}
        self._groups: list[list[WriterReader]] = []
        self.sources: list[Source] = []
        self._table = StepTable()
        self._sizes: list[int] = []
        self._table_is_due = False
        self._has_news = False  # Taken in, but for what follows from it.
        self._hidden: tuple[HiddenSteps, ...] | None = None
        # In which count steps of a tensor are given: kept by ``selection.count_of``.
        self.counts: dict[str | None, ModeKeys | None] = {}
        # While answers stay as they are: with 100,000 tensors it takes 20 MB.
        self._tensors: TensorTable | None = None
        self.version = 0  # Grows with every change.
        self.poll()
        if attempt is not None:
            writers.select(self._groups, attempt)

    # --- Refreshing ---------------------------------------------------------

    @contextlib.contextmanager
    def fresh(self) -> Iterator[RunState]:
        """Hold the lock, with everything read that is there by now."""
        with self.lock:
            if not self._frozen:
                self.poll()
            yield self

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep answers as they are until the block is left."""
        with self.lock:
            self._frozen += 1
        try:
            yield
        finally:
            with self.lock:
                self._frozen -= 1
                if not self._frozen:
                    self._tensors = None

    def poll(self) -> bool:
        """Take in what was written since the last poll; True if anything was."""
        with self.lock:
            self._has_news |= self._open_new_writers()
            for writer in self._writers.values():
                self._has_news |= writer.poll()
            grew = self._has_news
            if grew:
                self._tensors = None
                self._rebuild()
                self.version += 1
                self._has_news = False
            return grew

    def _open_new_writers(self) -> bool:
        opened = False
        if not self.place.changed() and not self._unreadable:
            return False
        try:
            directories = self.place.writers()
        except OSError as error:
            self._unreadable["w"] = StorageError(str(error), kind="io")
            return False
        for directory in directories:
            name = directory.path.name
            if name in self._writers:
                continue
            try:
                self._writers[name] = WriterReader(self.place, directory, self._options)
            except TdbgError as error:
                # Tried again at the next poll: its first shard may be on its way.
                self._unreadable[name] = error
            else:
                self._unreadable.pop(name, None)
                opened = True
        return opened

    def _rebuild(self) -> None:
        training = [
            writer
            for writer in self._writers.values()
            if writer.directory.role == "train" and writer.is_known
        ]
        self._groups = writers.attempts_of(training)
        groups = self._groups
        if self._attempt is not None:
            with contextlib.suppress(LookupError):
                groups = writers.select(groups, self._attempt)
        self.sources = writers.sources_of(groups, self.start, self.stop)
        self._sizes = [
            max(int(w.identity["world_size"]) for w in group) for group in groups
        ]
        self._table_is_due = True
        self._hidden = None
        self.counts.clear()

    @property
    def table(self) -> StepTable:
        """The steps of all workers; put together when it is asked for."""
        if self._table_is_due:
            rounds = self.counts_rounds
            table, self._table = self._table, StepTable()
            table.update(self.sources, self._sizes, in_rounds=rounds)
            # What failed, as where a store does not answer, begins anew.
            self._table, self._table_is_due = table, False
        return self._table

    @property
    def counts_rounds(self) -> bool:
        """Whether the training is one of boosted trees, whose steps are rounds."""
        for writer in self.newest:
            for event in writer.events:
                if event.kind == "configuration":
                    framework = mapping_of(event.data.get("framework"))
                    if framework:
                        return framework.get("name") in OF_ROUNDS
        return False

    def training_steps_at(self, steps: Sequence[int]) -> list[int]:
        """Where global steps stand in the training, recorded or not; -1 stays -1."""
        table, asked = self.table, np.asarray(steps, np.int64)
        found = training_steps_at(asked, table.steps, table.training_steps)
        placed: list[int] = found.tolist()
        return placed

    @property
    def epoch(self) -> int:
        """A number that is another one when recorded steps were replaced."""
        ends = [(s.writer.name, s.stop) for s in self.sources if s.stop < self.stop]
        return zlib.crc32(repr(ends).encode())

    # --- Writers and workers ------------------------------------------------

    @property
    def attempts(self) -> list[Attempt]:
        """All attempts, oldest first."""
        return [writers.describe(i, group) for i, group in enumerate(self._groups)]

    @property
    def newest(self) -> list[WriterReader]:
        """The writers of the newest attempt that is looked at."""
        last = max((source.attempt for source in self.sources), default=0)
        return [source.writer for source in self.sources if source.attempt == last]

    @property
    def everyone(self) -> list[WriterReader]:
        """The writers that are looked at, and those that are no training."""
        others = [w for w in self._writers.values() if w.directory.role != "train"]
        return [source.writer for source in self.sources] + others

    @property
    def workers(self) -> list[str]:
        """Names of all workers, by rank."""
        by_rank = {source.writer.rank: source.worker for source in self.sources}
        return [by_rank[rank] for rank in sorted(by_rank)]

    def sources_of(self, worker: str | None) -> list[Source]:
        """Sources of the worker, or of all in the order of their ranks.

        Raises:
            InvalidWorker: If there is no worker of that name.
        """
        if worker is None:
            return sorted(self.sources, key=lambda source: source.writer.rank)
        if worker not in self.workers:
            there = nearest_recorded(worker, self.workers)
            msg = f"there is no worker {short(worker)}; {there}"
            raise InvalidWorker(msg)
        return [source for source in self.sources if source.worker == worker]

    @property
    def status(self) -> str:
        """Running, stalled, unknown, dead or closed."""
        states = {writer.liveness for writer in self._telling}
        for state in ("running", "stalled", "unknown", "dead", "closed"):
            if state in states:
                return state
        return "unknown"

    @property
    def ended(self) -> bool:
        """Whether the training has ended, as far as its writers tell."""
        telling = self._telling
        return bool(telling) and all(writer.ended for writer in telling)

    @property
    def _telling(self) -> list[WriterReader]:
        """The writers by which the training lives: of the newest attempt, or alive."""
        newest = self.newest
        return newest + [
            source.writer
            for source in self.sources
            if source.writer.liveness in ("running", "stalled")
            and source.writer not in newest
        ]

    @property
    def hidden(self) -> tuple[HiddenSteps, ...]:
        """Steps that are hidden behind a training that wrote at the same time."""
        if self._hidden is None:
            self._hidden = hidden_steps(
                self.place,
                {
                    source.writer.directory: source.writer.reader
                    for source in self.sources
                },
            )
        return self._hidden

    def verify(self) -> list[FileProblem]:
        """Read every byte, and return all that is wrong with the files."""
        return [
            FileProblem(p.kind, w.name, p.file, p.offset, p.length, p.message)
            for w in self.everyone
            for p in w.reader.verify()
        ]

    def problems(self) -> list[FileProblem]:
        """Return the problems in the run's files."""
        found = []
        if self.place.trouble:
            found.append(FileProblem("io", "", "", 0, 0, self.place.trouble))
        for name, error in sorted(self._unreadable.items()):
            # Anything else than trouble with a file is another run's writer.
            kind = error.kind or "io" if isinstance(error, StorageError) else "foreign"
            found.append(FileProblem(kind, name, "", 0, 0, str(error)))
        for name in sorted(self._writers):
            found += self._writers[name].problems()
        found += [
            FileProblem(CONCURRENT, each.writer, "", 0, 0, str(each))
            for each in self.hidden
        ]
        return found

    # --- Names --------------------------------------------------------------

    def definition(self, name: str) -> Definition | None:
        """The newest definition of the tensor *name*, or None."""
        for source in reversed(self.sources):
            ids = source.writer.ids.get(name)
            if ids:
                definition = source.writer.definitions[ids[-1]]
                if role_of(definition) not in NO_TENSORS:
                    return definition
        return None

    def positions(self, names: Sequence[str]) -> list[int]:
        """Their places in the order in which tensors first came; 0: one never did."""
        found = np.zeros(len(names), np.int64)
        for source in reversed(self.sources):
            ids, places = source.writer.ids_of_names(names)
            found[places[::-1]] = ids[::-1]
        positions: list[int] = found.tolist()
        return positions

    @property
    def tensors(self) -> TensorTable:
        """The table of all tensors, including those that were never saved."""
        found = self._tensors or tensors_of(self.sources)
        if self._frozen:
            self._tensors = found
        return found

    def saved(self, tensors: TensorTable) -> NDArray[np.bool_]:
        """Which tensors of the run's table were ever saved, as ``names`` has it."""
        found = np.zeros(len(tensors.names), np.bool_)
        for source, held in zip(self.sources, tensors.of_sources, strict=True):
            if _is_whole(source):
                found[held.tensors] = True
            else:
                ids = ids_between(source.writer, source.start, source.stop)
                found[held.tensors[np.isin(held.ids, ids)]] = True
        return found & tensors.are_tensors

    def names(self) -> set[str]:
        """Names of all tensors and scalars that were ever saved."""
        found: set[str] = set()
        for source in self.sources:
            if _is_whole(source):
                found.update(source.writer.reader.names())
            else:
                found |= names_between(source.writer, source.start, source.stop)
        return found

    def count_names(self) -> int:
        """A number that grows with the names of what was saved."""
        return sum(
            source.writer.reader.n_names
            if _is_whole(source)
            else len(ids_between(source.writer, source.start, source.stop))
            for source in self.sources
        )

    def has_data(self, step: int) -> bool:
        """Whether anything was saved at the global *step*."""
        return any(
            source.start <= step < source.stop and source.writer.reader.has_data(step)
            for source in self.sources
        )

    def names_at(self, step: int) -> set[str]:
        """Names of what was saved at the global *step*."""
        found: set[str] = set()
        for source in self.sources:
            if source.start <= step < source.stop:
                found |= names_between(source.writer, step, step + 1)
        return found

    def names_of_mode(self, mode: ModeKeys) -> set[str]:
        """Names of what was saved at any step of *mode*."""
        _, at = self.table.of_mode(mode)
        steps = self.table.steps[at]
        found: set[str] = set()
        if not len(steps):
            return found
        for source in self.sources:
            found |= names_between(source.writer, source.start, source.stop, steps)
        return found

    def resolve(self, name: str) -> str | None:
        """The name of the tensor that is called *name*, by name or alias."""
        name = stored_name(name)
        if self.definition(name) is not None:
            return name
        for source in reversed(self.sources):
            found = source.writer.definitions.named(name)
            if found is not None:
                return found
        return None


def _is_whole(source: Source) -> bool:
    return source.start == -NO_END and source.stop == NO_END


def names_between(
    writer: WriterReader,
    start: int,
    stop: int,
    steps: NDArray[np.int64] | None = None,
) -> set[str]:
    """Names of what *writer* saved in a range of steps, or of some steps of it."""
    ids = ids_between(writer, start, stop, steps)
    # An id without a definition is damage, which problems() reports.
    return {writer.definitions[i].name for i in ids if i in writer.definitions}


def ids_between(
    writer: WriterReader,
    start: int,
    stop: int,
    steps: NDArray[np.int64] | None = None,
) -> list[int]:
    """Definitions of what *writer* saved in a range of steps, or at some of it."""
    segments = writer.segments.between(start, stop)
    reader = writer.reader
    tables = [reader.find_tensors(start, stop)[0], reader.find_scalars(start, stop)[0]]
    if steps is not None:
        segments = segments[np.isin(segments["step"], steps)]
        tables = [table[np.isin(table["step"], steps)] for table in tables]
    ids = set(writer.segments.definitions(segments).tolist())
    for table in tables:
        ids.update(np.unique(table["definition"]).tolist())
    return list(ids)
