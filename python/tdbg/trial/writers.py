"""One writer directory as the trial holds it: its reader and small indices.

Thread safety: none; the trial's lock is held around every use.

Errors: those of ``RunReader`` when it is made; afterwards damage is only ever
reported by ``problems()``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import (
    Container,
    ItemsView,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tdbg._core import Definition, Event, RunReader
from tdbg.errors import QueryError, TdbgError
from tdbg.run.directory import WriterDirectory
from tdbg.run.json_values import is_integer, list_of, parse_document
from tdbg.run.schema import EventKind
from tdbg.trial.row_index import HistogramIndex, RowBlocks

if TYPE_CHECKING:
    from tdbg.trial.places import RunPlace

__all__ = [
    "Attempt",
    "Definitions",
    "EventRecord",
    "FileProblem",
    "Ids",
    "Source",
    "WriterReader",
    "absent_ranks",
    "attempts_of",
    "select",
    "sources_of",
]


# So many are kept of the definitions, and of the names, that were asked for one by one:
# the core has them all, and a run may have 100,000.
MOST_KEPT = 1 << 12


class Definitions(Mapping[int, Definition]):
    """Definitions by id, the last of each."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._found: dict[int, Definition] = {}
        self._of_aliases: dict[str, str] | None = None
        self._n_known = reader.n_definitions

    def refresh(self) -> None:
        """Forget what may have changed, if anything has come."""
        known = self._reader.n_definitions
        if known != self._n_known:
            self._n_known = known
            self._found.clear()
            self._of_aliases = None

    def __getitem__(self, number: int) -> Definition:
        found = self._found.get(number)
        if found is None:
            found = self._reader.definition(number)
            if found is None:
                raise KeyError(number)
            if len(self._found) >= MOST_KEPT:
                self._found.clear()
            self._found[number] = found
        return found

    def __contains__(self, number: object) -> bool:
        if number in self._found:
            return True
        return isinstance(number, int) and self._reader.definition(number) is not None

    def all(self) -> dict[int, Definition]:
        """Return all of them, in the order in which their ids came; none is kept."""
        return {each.id: each for each in self._reader.definitions()}

    def named(self, alias: str) -> str | None:
        """Return the name of the first tensor that has an alias, or None.

        Whoever asks for 100,000 names that are none does not look at all definitions
        each time.
        """
        if self._of_aliases is None:
            self._of_aliases = {}
            for definition in self.values():
                for each in definition.aliases:
                    self._of_aliases.setdefault(each, definition.name)
        return self._of_aliases.get(alias)

    def __iter__(self) -> Iterator[int]:
        return iter(self.all())

    def values(self) -> ValuesView[Definition]:
        """Return the definitions, by one pass over the reader's list."""
        return self.all().values()

    def items(self) -> ItemsView[int, Definition]:
        """Return ids and definitions, likewise."""
        return self.all().items()

    def __len__(self) -> int:
        return len(self.all())


class Ids(Mapping[str, list[int]]):
    """Ids of the definitions of each name, in the order in which they came."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._found: dict[str, list[int]] = {}

    def refresh(self) -> None:
        """Forget what may have changed."""
        self._found.clear()

    def __getitem__(self, name: str) -> list[int]:
        found = self._found.get(name)
        if found is None:
            found = self._reader.ids_of(name)
            if not found and "\\" in name:
                found = _ids_of_shown(self._reader, name)
            if not found:
                raise KeyError(name)
            if len(self._found) >= MOST_KEPT:
                self._found.clear()
            self._found[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.names())

    def __len__(self) -> int:
        return len(self._reader.names())


def _ids_of_shown(reader: RunReader, name: str) -> list[int]:
    """Return the ids of a name that is not UTF-8, as it is shown."""
    found = (d.id for d in reader.definitions() if d.name == name)
    return list(dict.fromkeys(found))


# Kinds of problems that go when the rest of the files comes.
MENDABLE = ("missing", "torn_tail", "damage", "io")
# What cannot be read yet is read from the beginning at most so often.
MENDING_SECONDS = 2.0

EVENT_KINDS = {kind.value: kind.name.lower() for kind in EventKind}
SEVERITIES = {0: "none", 1: "info", 2: "warning", 3: "error"}


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that a writer reported.

    Attributes:
        kind: configuration, collections, change, finding, status or message.
        step: Global step it belongs to; -1 for none.
        severity: none, info, warning or error.
        wall_ns: When, in ns since 1970 UTC.
        writer: Name of the writer's directory.
        data: What it says.
    """

    kind: str
    step: int
    severity: str
    wall_ns: int
    writer: str
    data: dict[str, Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Something in the run's files that is not as it should be.

    Attributes:
        kind: damage, torn_tail, foreign, unsupported, io, missing, event or concurrent.
        writer: Name of the writer's directory.
        file: File in that directory; empty where no single one is to blame.
        offset: Where in the file, in bytes.
        length: Bytes concerned; 0 where unknown.
        message: What was expected, and what was found.
    """

    kind: str
    writer: str
    file: str
    offset: int
    length: int
    message: str


class WriterReader:
    """A writer's tables, and what is needed to find something in them."""

    def __init__(
        self, place: RunPlace, directory: WriterDirectory, options: Mapping[str, Any]
    ) -> None:
        self._place, self._options = place, options
        self.directory = directory
        self.n_openings = 0
        self._open()

    def _open(self) -> None:
        """Read everything from the beginning."""
        self.n_openings += 1
        self._opened_at = time.monotonic()
        # Before the files are read: a later change is seen.  The first time is spared,
        # and what is missing then is looked for once more in any case.
        again = self.n_openings > 1
        self._files = self._place.files(self.directory) if again else None
        directory = self.directory
        self.name = directory.path.name
        self.rank = directory.rank
        self.generation = directory.generation
        self.reader = self._place.open(directory, **self._options)
        self.identity = self.reader.identity()
        self.definitions = Definitions(self.reader)
        self.ids = Ids(self.reader)
        self.segments = RowBlocks(self.reader)
        self.first_step: int | None = None  # Lowest that was recorded so far.
        self.last_step = -1  # Highest that was recorded so far.
        self._events: list[EventRecord] = []
        self._histograms = HistogramIndex(self.reader)
        self._event_problems: list[FileProblem] = []
        self._n_events = 0
        self._final = False
        self.liveness = self.reader.liveness()
        self.take_in()
        self._may_mend = self._lacks_something()

    def page(self) -> dict[str, Any] | None:
        """Read its commit page, as ``look_at_writer`` does."""
        return self._place.page(self.directory)

    def _lacks_something(self) -> bool:
        """Whether files that come late would change what was read.

        Of a writer that lives on this machine nothing comes late.
        """
        if self.liveness in ("running", "stalled"):
            return False
        return any(problem.kind in MENDABLE for problem in self.reader.problems())

    def _is_mended(self) -> bool:
        """Whether files have come, or changed, since something was missed in them."""
        if not self._may_mend or time.monotonic() - self._opened_at < MENDING_SECONDS:
            return False
        return self._place.files(self.directory) != self._files

    def poll(self) -> bool:
        """Take in what was written meanwhile; True when there was something."""
        if self._is_mended() or self.reader.was_replaced():
            # A file system that shows files late, a copy under way, or retention.
            with contextlib.suppress(TdbgError):
                self._open()
                return True
        if self._final:
            return False
        grew = self.reader.poll()
        before = self.liveness, self.identity
        if grew:
            self.take_in()
        self.liveness = self.reader.liveness()
        self.identity = self.reader.identity()
        # The reader looks at the commit page first, then at the shards: when the
        # writer has ended, this poll has seen all there is.
        self._final = self.ended and not grew
        if grew or self._final:
            self._may_mend = self._lacks_something()
        return grew or before != (self.liveness, self.identity)

    def take_in(self) -> None:
        """Bring up to what the reader has what is not asked for each time."""
        self.definitions.refresh()
        self.ids.refresh()
        recorded = self.reader.recorded_steps()
        if recorded is not None:
            self.first_step, self.last_step = recorded

    @property
    def events(self) -> list[EventRecord]:
        """Return the events reported so far, in order."""
        for event in self.reader.events(self._n_events):
            self._n_events += 1
            self._add_event(event)
        return self._events

    @property
    def histograms(self) -> HistogramIndex:
        """The histograms, up to date."""
        self._histograms.take_in()
        return self._histograms

    @property
    def is_known(self) -> bool:
        """Whether a shard has said who writes; before, there is nothing to read."""
        return bool(self.identity["created_ns"])

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.liveness in ("closed", "dead")

    def ids_of(self, name: str) -> NDArray[np.uint32]:
        """Definitions of the tensor *name*."""
        return np.array(self.ids.get(name, ()), np.uint32)

    def ids_of_names(
        self, names: Sequence[str]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Definitions of all these tensors, and of each the place of its name.

        Those of a name stand in the order in which they came.
        """
        ids, places = self.reader.ids_of_names(list(names))
        shown = [i for i, name in enumerate(names) if "\\" in name]
        for i in set(shown).difference(places.tolist() if shown else ()):
            more = self.ids_of(names[i])
            ids = np.append(ids, more)
            places = np.append(places, np.full(len(more), i, np.uint32))
        return ids, places

    def problems(self) -> list[FileProblem]:
        """Return the problems in the directory, as far as it has been read."""
        self.events  # noqa: B018 - those that are no JSON
        found = [
            FileProblem(p.kind, self.name, p.file, p.offset, p.length, p.message)
            for p in self.reader.problems()
        ]
        return found + self._event_problems

    def _add_event(self, event: Event) -> None:
        try:
            data = parse_document(event.json)
        except ValueError as error:
            data = error
        if not isinstance(data, dict):
            message = f"event {event.sequence} holds no JSON object"
            self._event_problems.append(
                FileProblem("event", self.name, "", 0, len(event.json), message)
            )
            return
        self._events.append(
            EventRecord(
                kind=EVENT_KINDS.get(event.kind, str(event.kind)),
                step=event.step,
                severity=SEVERITIES.get(event.severity, str(event.severity)),
                wall_ns=event.wall_ns,
                writer=self.name,
                data=data,
            )
        )


# Beyond every step.
NO_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the training.

    Attributes:
        number: 0 for the first, 1 for its first resumption, ...
        uuid: That of its first worker, in hex.
        world_size: How many workers the training said there are to write.
        writers: Names of the writer directories.
        first_step: Lowest global step recorded, or None.
        last_step: Highest global step recorded, or None.
        started_ns: When the last of its writers began, in ns since 1970 UTC.
        absent: The ranks that were to write, and have not shown up.
    """

    number: int
    uuid: str
    world_size: int
    writers: tuple[str, ...]
    first_step: int | None
    last_step: int | None
    started_ns: int
    absent: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """Where records of a run come from: a writer, and which of its steps count.

    These are the steps ``start <= step < stop``; a later attempt replaces the others.
    """

    writer: WriterReader
    attempt: int
    start: int
    stop: int

    @property
    def worker(self) -> str:
        """Name of the worker that wrote it."""
        return f"worker_{self.writer.rank}"


def attempts_of(writers: Sequence[WriterReader]) -> list[list[WriterReader]]:
    """Writers by attempt, oldest attempt first; each by rank and generation.

    Writers of one uuid are one attempt, and so are those of one ordinal: ranks that
    could not agree on a uuid still count their restarts alike.
    """
    ordinals: dict[bytes, int] = {}
    for writer in writers:
        uuid, ordinal = writer.identity["attempt"], writer.identity["attempt_ordinal"]
        ordinals[uuid] = max(ordinals.get(uuid, 0), int(ordinal))
    groups: dict[int, list[WriterReader]] = {}
    for writer in writers:
        groups.setdefault(ordinals[writer.identity["attempt"]], []).append(writer)
    return [
        sorted(groups[ordinal], key=lambda w: (w.rank, w.generation))
        for ordinal in sorted(groups)
    ]


def absent_ranks(
    seen: Container[int], world_size: int, writer: WriterReader
) -> list[int]:
    """Return the ranks that were to write, and have not shown up.

    Args:
        seen: Those that have.
        world_size: How many were to write, if the writer does not say which.
        writer: One of them, which says which ranks were to write.
    """
    ranks: Sequence[int] = range(world_size)
    for event in writer.events:
        listed = list_of(event.data.get("workers"))
        if event.kind == "configuration" and listed and all(map(is_integer, listed)):
            ranks = listed
    return [rank for rank in ranks if rank not in seen]


def describe(number: int, group: list[WriterReader]) -> Attempt:
    """Describe an attempt for a user."""
    firsts = [w.first_step for w in group if w.first_step is not None]
    world_size = max(int(writer.identity["world_size"]) for writer in group)
    absent = absent_ranks({writer.rank for writer in group}, world_size, group[-1])
    return Attempt(
        number=number,
        uuid=group[0].identity["attempt"].hex(),
        world_size=world_size,
        absent=tuple(absent),
        writers=tuple(writer.name for writer in group),
        first_step=min(firsts) if firsts else None,
        last_step=max(w.last_step for w in group) if firsts else None,
        started_ns=max(int(writer.identity["created_ns"]) for writer in group),
    )


def select(
    groups: list[list[WriterReader]], attempt: int | None
) -> list[list[WriterReader]]:
    """The attempts that are looked at: all, or the one of that number.

    Raises:
        QueryError: If there is no attempt of that number.
    """
    if attempt is None:
        return groups
    if not -len(groups) <= attempt < len(groups):
        there = f"from 0 to {len(groups) - 1}" if groups else "none so far"
        msg = f"there is no attempt {attempt}: the run has {len(groups)}, {there}"
        raise QueryError(msg)
    return [groups[attempt]]


def sources_of(groups: list[list[WriterReader]], start: int, stop: int) -> list[Source]:
    """What counts of each writer within ``start <= step < stop``.

    In the order of attempts, within one of ranks, and within one of generations.
    """
    sources: list[Source] = []
    end = stop
    for number in range(len(groups) - 1, -1, -1):
        group = groups[number]
        later: dict[int, int] = {}
        of_attempt = []
        for writer in reversed(group):
            # A rank that was restarted within its attempt replaces itself.
            limit = min(end, later.get(writer.rank, NO_END))
            of_attempt.append(Source(writer, number, start, max(start, limit)))
            if writer.first_step is not None:
                later[writer.rank] = min(limit, writer.first_step)
        sources[:0] = reversed(of_attempt)
        end = min([end, *later.values()])
    return sources
