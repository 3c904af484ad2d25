"""The steps of a run, put together from those of its workers.

A worker's step is complete when its `step` record is there, or when a later one is
(a step that saves nothing need not be recorded).  A step of the run is *complete*
when it is complete for all workers, and *settled* when nothing more will come for
it, complete or not: the worker that lacks may be dead, or hang.  A step that may lack
records which were written and cannot be read is not complete either.

The table grows at its end: steps that can no longer change are not looked at again, and
of the records of workers none is held.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg._core import STEP_DTYPE, RunReader
from tdbg.modes import ModeKeys
from tdbg.run.schema import GapContent, StepFlag
from tdbg.trial.compact_table import CompactTable
from tdbg.trial.row_index import Growable, step_records
from tdbg.trial.training_steps import is_training, training_steps
from tdbg.trial.writers import Source, absent_ranks

__all__ = ["STEP_TABLE_DTYPE", "StepTable", "waiting_for_steps"]

# A rank that has not shown up, or not gone on, while the others recorded so many steps
# is not waited for any longer.
WAIT_STEPS = 1000
_wait_steps = contextvars.ContextVar("wait_steps", default=WAIT_STEPS)

# A step may begin before the records of the one before it are all written, whose
# results a device still computes.
OPEN_AT_ONCE = 2

# Records of steps that are read at a time, of all workers together, unless they have
# recorded so many steps in that many records.
PART_RECORDS = 1 << 16
PART_STEPS = 1024

# Below every step.
NO_STEP = np.iinfo(np.int64).min

_log = logging.getLogger("tdbg")


STEP_TABLE_DTYPE = np.dtype(
    [
        ("step", "i8"),
        ("mode", "u4"),
        ("mode_step", "i8"),
        ("wall_ns", "i8"),
        ("complete", "?"),
        ("lossless", "?"),
        ("settled", "?"),
        ("skipped", "?"),
        ("duration_ns", "i8"),
        ("capture_ns", "i8"),
        ("offered", "u8"),
        ("written", "u8"),
        ("dropped", "u8"),
        ("failed", "u8"),
        ("micro_batches", "u4"),
        ("workers", "u4"),
        ("generation", "u4"),
        # Derived from the others, and so filled in where rows are read.
        ("training_step", "i8"),
    ]
)
_SUMS = ("duration_ns", "capture_ns", "offered", "written", "dropped", "failed")


@contextlib.contextmanager
def waiting_for_steps(n_steps: int) -> Iterator[None]:
    """Let trials that are opened inside wait so many steps for a rank, not 1,000.

    Example::

        with tdbg.trial.waiting_for_steps(100):
            trial = tdbg.create_trial("runs/digits")
    """
    token = _wait_steps.set(n_steps)
    try:
        yield
    finally:
        _wait_steps.reset(token)


class StepTable:
    """Recorded steps by global step, each once."""

    def __init__(self) -> None:
        self._wait_steps = _wait_steps.get()
        self._table = CompactTable(STEP_TABLE_DTYPE)
        self._steps = Growable(np.int64)
        # How many at the beginning are settled.
        self._n_settled = 0
        self._seen: dict[str, int] = {}
        self._shape: list[tuple[str, int, int, int, int, int]] = []
        self._by_mode: dict[
            ModeKeys | None, tuple[NDArray[np.int64], NDArray[np.intp]]
        ] = {}
        self._broken: dict[str, _BrokenSteps] = {}
        self._late: set[str] = set()
        self._in_rounds = False
        self._training: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def steps(self) -> NDArray[np.int64]:
        """The global steps, ascending; to be read before the next update."""
        return self._steps.data

    @property
    def nbytes(self) -> int:
        """Bytes of the steps that are held."""
        return self._table.nbytes + self._steps.nbytes

    @property
    def training_steps(self) -> NDArray[np.int64]:
        """Where each step stands in the training; to be read before the next update."""
        if self._training is None:
            modes, mode_steps = self.column("mode"), self.column("mode_step")
            self._training = training_steps(
                self.steps, modes, mode_steps, in_rounds=self._in_rounds
            )
        return self._training

    def column(self, name: str) -> NDArray[Any]:
        """Copy of one field of all steps."""
        return self._table.column(name)

    def rows(self, start: int = 0, stop: int | None = None) -> NDArray[np.void]:
        """Copy of the rows ``start <= i < stop``."""
        rows = self._table.rows(start, stop)
        rows["training_step"] = self.training_steps[start : start + len(rows)]
        return rows

    def row(self, i: int) -> np.void:
        """Copy of one row."""
        row: np.void = self.rows(i, i + 1)[0]
        return row

    def update(
        self,
        sources: Sequence[Source],
        world_sizes: Sequence[int],
        *,
        in_rounds: bool = False,
    ) -> None:
        """Bring the table up to the writers' records.

        Args:
            sources: What counts of each writer.
            world_sizes: Number of ranks of each attempt.
            in_rounds: As of ``training_steps``.
        """
        start = self._first_change(sources)
        self._by_mode, self._training = {}, None
        self._in_rounds = in_rounds
        keep = int(np.searchsorted(self.steps, start))
        self._table.truncate(keep)
        self._steps.truncate(keep)
        of_attempt: dict[int, list[Source]] = {}
        for source in sources:
            of_attempt.setdefault(source.attempt, []).append(source)
        newest = max(of_attempt, default=0)
        settled = [np.ones(keep, np.bool_)[:0]]
        for attempt in sorted(of_attempt):
            size = world_sizes[attempt]
            # Nothing more comes from older attempts.
            wait = self._wait_steps if attempt == newest else None
            workers = _Workers(of_attempt[attempt], size, wait)
            for records in _records(of_attempt[attempt], start):
                part = _merge(records)
                self._complete(part, records, workers)
                self._table.extend(part)
                self._steps.extend(part["step"])
                settled.append(part["settled"])
            if attempt == newest:
                self._name_late(workers)
        flags = np.concatenate(settled)
        self._n_settled = keep + (len(flags) if flags.all() else int(flags.argmin()))

    def _complete(
        self, table: NDArray[np.void], records: _Records, workers: _Workers
    ) -> None:
        """Fill in `complete` and `settled`, and what depends on them."""
        steps = table["step"]
        if workers.are_missing:
            complete = settled = np.zeros(len(steps), np.bool_)
        else:
            # Who has a record of a step has one up to there.
            complete = steps <= workers.passed
            settled = steps <= workers.waited
            for rank, of_rank in workers.lossy.items():
                has = np.isin(steps, records.rows["step"][records.rank == rank])
                complete &= has | ~_lost_steps(steps, of_rank)
            for source in workers.damaged:
                complete &= ~self._broken_of(source).among(steps, source)
        table["complete"], table["settled"] = complete, settled
        table["lossless"] &= complete

    def _broken_of(self, source: Source) -> _BrokenSteps:
        found = self._broken.get(source.writer.name)
        if found is None:
            found = _BrokenSteps(source.writer.reader)
            self._broken[source.writer.name] = found
        return found

    def _name_late(self, workers: _Workers) -> None:
        """Name ranks that are not waited for any longer, each once until it goes on."""
        late = {f"worker_{rank}": "has not shown up" for rank in workers.given_up}
        for rank in workers.hanging:
            worker = workers.of_rank[rank][-1].worker
            since = f"has not advanced since step {workers.last[rank]}"
            late[worker] = since if len(workers.of_rank) > 1 else ""
        for worker, how in late.items():
            if how and worker not in self._late:
                _log.warning(
                    "%s %s: tdbg no longer holds back the steps of the others",
                    worker,
                    how,
                )
        self._late = set(late)

    def _first_change(self, sources: Sequence[Source]) -> int:
        """From which step on the table may have to change."""
        # Holes are found late, in steps that were settled.
        shape = [
            (
                source.writer.name,
                source.attempt,
                source.start,
                source.stop,
                len(source.writer.reader.holes()),
                source.writer.n_openings,
            )
            for source in sources
        ]
        if shape != self._shape:
            self._shape, self._seen = shape, {}
        start = np.iinfo(np.int64).max
        for source in sources:
            name, reader = source.writer.name, source.writer.reader
            seen, n_steps = self._seen.get(name), reader.n_steps
            if seen is None:
                start = np.iinfo(np.int64).min
            elif n_steps > seen and start > np.iinfo(np.int64).min:
                new = reader.steps(seen, n_steps)["step"]
                start = min(start, int(new.min(initial=start)))
            self._seen[name] = n_steps
        if self._n_settled < len(self):
            start = min(start, int(self.steps[self._n_settled]))
        return int(start)

    def index(self, step: int) -> int | None:
        """Where the global *step* stands in the table."""
        at = int(np.searchsorted(self.steps, step))
        found = at < len(self.steps) and self.steps[at] == step
        return at if found else None

    def numbers(self, mode: ModeKeys | None) -> NDArray[np.int64]:
        """Steps in the count of *mode*, ascending."""
        return self.steps if mode is ModeKeys.GLOBAL else self.of_mode(mode)[0]

    def of_mode(
        self, mode: ModeKeys | None
    ) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Steps in the count of *mode*, ascending, and where they stand.

        None stands for training: modes TRAIN and GLOBAL, counted together.
        """
        if mode is ModeKeys.GLOBAL:
            return self.steps, np.arange(len(self.steps), dtype=np.intp)
        if mode not in self._by_mode:
            modes = self.column("mode")
            if mode is None:
                at = np.flatnonzero(is_training(modes))
                mode_steps = self.training_steps[at]
            else:
                at = np.flatnonzero(modes == mode.value)
                mode_steps = self.column("mode_step")[at]
            # Of a mode step that was counted twice, the later counts.
            unique, last = np.unique(mode_steps[::-1], return_index=True)
            self._by_mode[mode] = unique, at[len(at) - 1 - last]
        return self._by_mode[mode]

    def last_complete(self) -> int:
        """The last step up to which nothing more will come; -1 for none."""
        return int(self.steps[self._n_settled - 1]) if self._n_settled else -1


class _Workers:
    """How far the workers of an attempt are.

    Args:
        sources: What counts of the attempt.
        world_size: How many ranks were to write.
        wait_steps: How many steps of the others a rank is waited for; None: nothing
            more comes from this attempt.

    Attributes:
        of_rank: The writers of each rank, the last one last.
        last: The last step that each rank recorded.
        hanging: Ranks that show no life, or that the others are far ahead of.
        are_missing: Whether some have not shown up, and are waited for.
        given_up: Ranks that have not shown up, and are not waited for any longer.
        passed: The step that all have passed.
        waited: The last step for which none is waited for any more.
        lossy: Writers of ranks that may have ended steps without being able to say so.
        damaged: Writers of which records cannot be read.
    """

    def __init__(
        self, sources: Sequence[Source], world_size: int, wait_steps: int | None
    ) -> None:
        self.of_rank: dict[int, list[Source]] = {}
        for source in sources:
            self.of_rank.setdefault(source.writer.rank, []).append(source)
        self.last = {
            rank: max(map(_last_step, of_rank))
            for rank, of_rank in self.of_rank.items()
        }
        furthest = max(self.last.values())
        self.hanging = [
            rank
            for rank, of_rank in self.of_rank.items()
            if wait_steps is not None
            and not of_rank[-1].writer.ended
            and _hangs(of_rank[-1], self.last[rank], furthest, sources, wait_steps)
        ]
        self.passed = min(self.last.values())
        waited_for = [
            self.last[rank]
            for rank, of_rank in self.of_rank.items()
            if wait_steps is not None
            and not of_rank[-1].writer.ended
            and rank not in self.hanging
        ]
        self.waited = min(waited_for, default=np.iinfo(np.int64).max)
        are_waited_for = (
            wait_steps is not None
            and not all(source.writer.ended for source in sources)
            and max(source.writer.reader.n_steps for source in sources) < wait_steps
        )
        is_any_absent = wait_steps is not None and len(self.of_rank) < world_size
        self.are_missing = is_any_absent and are_waited_for
        self.given_up: list[int] = []
        if is_any_absent and not are_waited_for:
            self.given_up = absent_ranks(self.of_rank, world_size, sources[-1].writer)
        self.lossy = {
            rank: of_rank
            for rank, of_rank in self.of_rank.items()
            if any(len(_gaps_of_steps(source)) for source in of_rank)
        }
        self.damaged = [s for s in sources if len(s.writer.reader.holes())]


def _last_step(source: Source) -> int:
    """The last step that a writer recorded."""
    return min(source.writer.last_step, source.stop - 1)


def _hangs(
    source: Source,
    last: int,
    furthest: int,
    sources: Sequence[Source],
    wait_steps: int,
) -> bool:
    """Whether a worker shows no life, or others are far ahead of its *last* step."""
    if source.writer.liveness == "stalled":
        return True
    if furthest - last < wait_steps:
        return False
    return any(
        each.writer.reader.count_steps(last + 1, each.stop) >= wait_steps
        for each in sources
    )


class _Records(NamedTuple):
    """Records of steps, by step and then by rank, each once."""

    rows: NDArray[np.void]
    rank: NDArray[np.int64]
    generation: NDArray[np.int64]


def _records(sources: Sequence[Source], start: int) -> Iterator[_Records]:
    """Yield one attempt's step records from the step *start* on, some at a time."""
    spans = [
        (source, max(start, source.start, first), min(source.stop, last + 1))
        for source in sources
        if (first := source.writer.first_step) is not None
        and (last := source.writer.last_step) >= start
    ]
    spans = [span for span in spans if span[1] < span[2]]
    if not spans:
        return
    low, end = min(span[1] for span in spans), max(span[2] for span in spans)
    expected, n_most = 0.0, 0.0
    for source, first, stop in spans:
        writer = source.writer
        known = writer.last_step - int(writer.first_step or 0) + 1
        n = writer.reader.n_steps * (stop - first) / known
        expected, n_most = expected + n, max(n_most, n)
    n_parts = max(1, int(min(expected / PART_RECORDS, n_most / PART_STEPS)))
    width = -(-(end - low) // n_parts)
    for begin in range(low, end, width):
        records = _read(spans, begin, min(end, begin + width))
        if len(records.rows):
            yield records


def _read(spans: list[tuple[Source, int, int]], begin: int, end: int) -> _Records:
    """The records at ``begin <= step < end``."""
    rows, ranks, generations = [np.empty(0, STEP_DTYPE)], [], []
    for source, first, stop in spans:
        if first >= end or stop <= begin:
            continue
        writer = source.writer
        rows.append(writer.reader.find_steps(max(first, begin), min(stop, end)))
        ranks.append(np.full(len(rows[-1]), writer.rank))
        generations.append(np.full(len(rows[-1]), writer.generation))
    if len(rows) == 2 and (rows[1]["step"][1:] > rows[1]["step"][:-1]).all():
        return _Records(rows[1], ranks[0], generations[0])
    found = _Records(
        np.concatenate(rows),
        np.concatenate([np.empty(0, np.int64), *ranks]),
        np.concatenate([np.empty(0, np.int64), *generations]),
    )
    # By step, then rank; of a step that one worker ended twice the later counts.
    order = np.lexsort((found.rank, found.rows["step"]))
    steps, rank = found.rows["step"][order], found.rank[order]
    is_last = np.append((np.diff(steps) != 0) | (np.diff(rank) != 0), True)
    keep = order[is_last[: len(order)]]
    return _Records(*(each[keep] for each in found))


def _merge(records: _Records) -> NDArray[np.void]:
    """The steps of these records, without `complete` and `settled`."""
    rows = records.rows
    numbers = np.ascontiguousarray(rows["step"])
    first = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
    table = np.zeros(len(first), STEP_TABLE_DTYPE)
    table["step"] = numbers[first]
    table["generation"] = records.generation[first]
    for name in ("mode", "mode_step", "wall_ns"):
        table[name] = rows[name][first]
    alone = len(first) == len(rows)  # One worker at each step.

    def fold(ufunc: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        return values if alone else ufunc.reduceat(values, first)

    for name in _SUMS:
        table[name] = fold(np.add, rows[name])
    table["micro_batches"] = fold(np.maximum, rows["micro_batches"])
    table["skipped"] = fold(np.bitwise_or, rows["flags"]) & StepFlag.SKIPPED != 0
    table["workers"] = np.diff(first, append=len(rows))
    # Values left out on purpose are as good as never asked for.
    dropped = (rows["dropped"] > 0) & (rows["flags"] & StepFlag.SAMPLED == 0)
    table["lossless"] = ~fold(np.logical_or, dropped | (rows["failed"] > 0))
    return table


def _gaps_of_steps(source: Source) -> NDArray[np.void]:
    """Return the gaps within which steps may have ended."""
    gaps = source.writer.reader.gaps()
    found: NDArray[np.void] = gaps[(gaps["what"] & GapContent.STEPS) != 0]
    return found


def _lost_steps(steps: NDArray[np.int64], sources: list[Source]) -> NDArray[np.bool_]:
    """Which of *steps* a worker may have ended without being able to say so."""
    lost = np.zeros(len(steps), np.bool_)
    for source in sources:
        for gap in _gaps_of_steps(source):
            lost |= (steps >= gap["first_step"]) & (steps <= gap["last_step"])
    return lost


class _BrokenSteps:
    """The steps that may lack records which were written and cannot be read.

    A step begins before the one after it ends, so that a hole concerns the steps
    that end behind it, up to the second one; and those of which nothing is left.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        # Of all records of steps, in their order.
        self._n_seen = 0
        self._sequences = Growable(np.uint64)
        self._numbers = Growable(np.int64)

    def among(self, steps: NDArray[np.int64], source: Source) -> NDArray[np.bool_]:
        """Which of *steps* they are."""
        broken = np.zeros(len(steps), np.bool_)
        self._take_in()
        sequences, numbers = self._sequences.data, self._numbers.data
        holes = self._reader.holes()
        at = np.unique(np.searchsorted(sequences, holes["end_sequence"]))
        at = at[at < len(numbers)]  # Nobody says that what is behind it ended.
        if not len(at):
            return broken
        last = numbers[at]
        for i in range(1, OPEN_AT_ONCE):
            last = np.maximum(last, numbers[np.minimum(at + i, len(numbers) - 1)])
        # Up to which step those are concerned that ended at each place.
        reach = np.full(len(numbers), NO_STEP)
        reach[at] = last
        left = numbers[numbers <= np.maximum.accumulate(reach)]
        highest = np.concatenate(([NO_STEP], np.maximum.accumulate(numbers)))
        broken |= np.isin(steps, left)
        changes = np.zeros(len(steps) + 1, np.int64)  # Of how many ranges.
        begin = np.searchsorted(steps, highest[at], "right")
        end = np.maximum(begin, np.searchsorted(steps, last, "right"))
        np.add.at(changes, begin, 1)
        np.add.at(changes, end, -1)
        broken |= (np.cumsum(changes[:-1]) > 0) & ~np.isin(steps, numbers)
        return broken & (steps >= source.start) & (steps < source.stop)

    def _take_in(self) -> None:
        n_steps = self._reader.n_steps
        for rows in step_records(self._reader, self._n_seen):
            self._sequences.extend(rows["sequence"])
            self._numbers.extend(rows["step"])
        self._n_seen = n_steps
