"""The steps of a run, put together from those of its workers.

A worker's step is complete when its `step` record is there, or when a later one is
(a step that saves nothing need not be recorded).  A step of the run is *complete*
when it is complete for all workers, and *settled* when nothing more will come for
it, complete or not: the worker that lacks may be dead, or hang.  A step that may lack
records which were written and cannot be read is not complete either.

The table grows at its end: steps that can no longer change are not looked at again.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.run.json_values import is_integer, list_of
from tdbg.run.schema import GapContent, StepFlag
from tdbg.trial.row_index import Growable
from tdbg.trial.writers import Source

__all__ = ["STEP_TABLE_DTYPE", "StepTable", "waiting_for_steps"]

# A rank that has not shown up, or not gone on, while the others recorded so many steps
# is not waited for any longer.
WAIT_STEPS = 1000
_wait_steps = contextvars.ContextVar("wait_steps", default=WAIT_STEPS)

# A step may begin before the records of the one before it are all written, whose
# results a device still computes.
OPEN_AT_ONCE = 2

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
        self._table = Growable(STEP_TABLE_DTYPE)
        self._steps = Growable(np.int64)
        self._seen: dict[str, int] = {}
        self._shape: list[tuple[str, int, int, int, int]] = []
        self._by_mode: dict[ModeKeys, tuple[NDArray[np.int64], NDArray[np.intp]]] = {}
        self._late: set[str] = set()

    @property
    def data(self) -> NDArray[np.void]:
        """The table; to be read before the next update."""
        return self._table.data

    @property
    def steps(self) -> NDArray[np.int64]:
        """The global steps, ascending."""
        return self._steps.data

    def update(self, sources: Sequence[Source], world_sizes: Sequence[int]) -> None:
        """Bring the table up to the writers' records."""
        start = self._first_change(sources)
        self._by_mode = {}
        keep = int(np.searchsorted(self.steps, start))
        self._table.truncate(keep)
        self._steps.truncate(keep)
        newest = max((source.attempt for source in sources), default=0)
        for attempt, world_size in enumerate(world_sizes):
            of_attempt = [source for source in sources if source.attempt == attempt]
            # Nothing more comes from older attempts.
            wait = self._wait_steps if attempt == newest else None
            part = _attempt_steps(of_attempt, start, world_size, wait)
            self._table.extend(part)
            self._steps.extend(part["step"])
            if attempt == newest:
                self._name_late(of_attempt, world_size)

    def _name_late(self, sources: list[Source], world_size: int) -> None:
        """Name ranks that are not waited for any longer, each once until it goes on."""
        late: dict[str, str] = {}
        for number in sorted({source.writer.rank for source in sources}):
            of_rank = [source for source in sources if source.writer.rank == number]
            ended = of_rank[-1].writer.ended
            if not ended and _hangs(of_rank, sources, self._wait_steps):
                since = f"has not gone on since step {_last_step(of_rank)}"
                late[of_rank[-1].worker] = since if len(sources) > len(of_rank) else ""
        if sources and not _are_waiting(sources, self._wait_steps):
            for worker in _absent(sources, world_size):
                late[worker] = "has not shown up"
        for worker, how in late.items():
            if how and worker not in self._late:
                _log.warning(
                    "%s %s: the steps of the others are not held back any longer",
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
            )
            for source in sources
        ]
        if shape != self._shape:
            self._shape, self._seen = shape, {}
        start = np.iinfo(np.int64).max
        for source in sources:
            name, steps = source.writer.name, source.writer.steps.steps
            new = steps[self._seen.get(name, 0) :]
            if name not in self._seen:
                start = np.iinfo(np.int64).min
            elif len(new):
                start = min(start, int(new.min()))
            self._seen[name] = len(steps)
        unsettled = np.flatnonzero(~self.data["settled"])
        if len(unsettled):
            start = min(start, int(self.steps[unsettled[0]]))
        return int(start)

    def index(self, step: int) -> int | None:
        """Where the global *step* stands in the table."""
        at = int(np.searchsorted(self.steps, step))
        found = at < len(self.steps) and self.steps[at] == step
        return at if found else None

    def of_mode(self, mode: ModeKeys) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Steps in the count of *mode*, ascending, and where they stand."""
        if mode is ModeKeys.GLOBAL:
            return self.steps, np.arange(len(self.steps), dtype=np.intp)
        if mode not in self._by_mode:
            at = np.flatnonzero(self.data["mode"] == mode.value)
            mode_steps = self.data["mode_step"][at]
            # Of a mode step that was counted twice, the later counts.
            unique, last = np.unique(mode_steps[::-1], return_index=True)
            self._by_mode[mode] = unique, at[len(at) - 1 - last]
        return self._by_mode[mode]

    def last_complete(self) -> int:
        """The last step up to which nothing more will come; -1 for none."""
        unsettled = np.flatnonzero(~self.data["settled"])
        end = int(unsettled[0]) if len(unsettled) else len(self.steps)
        return int(self.steps[end - 1]) if end else -1


def _attempt_steps(
    sources: list[Source], start: int, world_size: int, wait_steps: int | None
) -> NDArray[np.void]:
    """Steps of one attempt from *start* on; None: nothing more comes from it."""
    records, ranks, generations = [], [], []
    for source in sources:
        at = source.writer.steps.between(max(start, source.start), source.stop)
        records.append(source.writer.steps.data[at])
        ranks.append(np.full(len(at), source.writer.rank))
        generations.append(np.full(len(at), source.writer.generation))
    if not sum(map(len, records)):
        return np.empty(0, STEP_TABLE_DTYPE)
    rows, rank = np.concatenate(records), np.concatenate(ranks)
    generation = np.concatenate(generations)
    # By step, then rank; of a step that one worker ended twice the later counts.
    order = np.lexsort((np.arange(len(rows)), rank, rows["step"]))
    rows, rank, generation = rows[order], rank[order], generation[order]
    repeated = (np.diff(rows["step"]) == 0) & (np.diff(rank) == 0)
    keep = np.concatenate((~repeated, [True]))
    rows, rank, generation = rows[keep], rank[keep], generation[keep]
    steps, first = np.unique(rows["step"], return_index=True)
    table = np.empty(len(steps), STEP_TABLE_DTYPE)
    table["step"] = steps
    table["generation"] = generation[first]
    for name in ("mode", "mode_step", "wall_ns"):
        table[name] = rows[name][first]
    for name in _SUMS:
        table[name] = np.add.reduceat(rows[name], first)
    table["micro_batches"] = np.maximum.reduceat(rows["micro_batches"], first)
    table["skipped"] = (
        np.bitwise_or.reduceat(rows["flags"], first) & StepFlag.SKIPPED != 0
    )
    table["workers"] = np.diff(first, append=len(rows))
    _complete(table, sources, rows["step"], rank, world_size, wait_steps)
    # Values left out on purpose are as good as never asked for.
    dropped = (rows["dropped"] > 0) & (rows["flags"] & StepFlag.SAMPLED == 0)
    lost = np.logical_or.reduceat(dropped | (rows["failed"] > 0), first)
    table["lossless"] = table["complete"] & ~lost
    return table


def _complete(
    table: NDArray[np.void],
    sources: list[Source],
    steps: NDArray[np.int64],
    rank: NDArray[np.int64],
    world_size: int,
    wait_steps: int | None,
) -> None:
    """Fill in `complete` and `settled`."""
    complete = np.ones(len(table), np.bool_)
    settled = np.ones(len(table), np.bool_)
    seen = sorted({source.writer.rank for source in sources})
    for number in seen:
        of_rank = [source for source in sources if source.writer.rank == number]
        has = np.isin(table["step"], steps[rank == number])
        last = _last_step(of_rank)
        passed = (table["step"] <= last) & ~_lost_steps(table["step"], of_rank)
        ended = (
            wait_steps is None
            or of_rank[-1].writer.ended
            or _hangs(of_rank, sources, wait_steps)
        )
        complete &= (has | passed) & ~_broken_steps(table["step"], of_rank)
        settled &= has | (table["step"] <= last) | ended
    if (
        wait_steps is not None
        and len(seen) < world_size
        and _are_waiting(sources, wait_steps)
    ):
        complete[:] = settled[:] = False
    table["complete"], table["settled"] = complete, settled


def _last_step(sources: list[Source]) -> int:
    """The last step that a worker recorded."""
    return max(min(source.writer.last_step, source.stop - 1) for source in sources)


def _are_waiting(sources: list[Source], wait_steps: int) -> bool:
    """Whether these workers' steps are held back for ranks that have not shown up."""
    if all(source.writer.ended for source in sources):
        return False
    return max(len(source.writer.steps) for source in sources) < wait_steps


def _absent(sources: list[Source], world_size: int) -> list[str]:
    """The names of the ranks that were to write and have not shown up."""
    seen = {source.writer.rank for source in sources}
    if len(seen) >= world_size:
        return []
    ranks: Sequence[int] = range(world_size)
    for event in sources[-1].writer.events:
        listed = list_of(event.data.get("workers"))
        if event.kind == "configuration" and listed and all(map(is_integer, listed)):
            ranks = listed
    return [f"worker_{rank}" for rank in ranks if rank not in seen]


def _hangs(of_rank: list[Source], sources: list[Source], wait_steps: int) -> bool:
    """Whether a worker shows no life, or the others are far ahead of it."""
    if of_rank[-1].writer.liveness == "stalled":
        return True
    last = _last_step(of_rank)
    return any(
        len(source.writer.steps.between(last + 1, source.stop)) >= wait_steps
        for source in sources
    )


def _lost_steps(steps: NDArray[np.int64], sources: list[Source]) -> NDArray[np.bool_]:
    """Which of *steps* a worker may have ended without being able to say so."""
    lost = np.zeros(len(steps), np.bool_)
    for source in sources:
        gaps = source.writer.reader.gaps()
        for gap in gaps[(gaps["what"] & GapContent.STEPS) != 0]:
            lost |= (steps >= gap["first_step"]) & (steps <= gap["last_step"])
    return lost


def _broken_steps(steps: NDArray[np.int64], sources: list[Source]) -> NDArray[np.bool_]:
    """Which of *steps* may lack records that were written and cannot be read.

    A step begins before the one after it ends, so that a hole concerns the steps
    that end behind it, up to the second one; and those of which nothing is left.
    """
    broken = np.zeros(len(steps), np.bool_)
    for source in sources:
        holes = source.writer.reader.holes()
        ended = source.writer.steps.data
        at = np.unique(np.searchsorted(ended["sequence"], holes["end_sequence"]))
        at = at[at < len(ended)]  # Nobody says that what is behind it ended.
        if not len(at):
            continue
        numbers = np.ascontiguousarray(ended["step"])
        last = numbers[at]
        for i in range(1, OPEN_AT_ONCE):
            last = np.maximum(last, numbers[np.minimum(at + i, len(numbers) - 1)])
        # Up to which step those are concerned that ended at each place.
        reach = np.full(len(numbers), NO_STEP)
        reach[at] = last
        left = numbers[numbers <= np.maximum.accumulate(reach)]
        highest = np.concatenate(([NO_STEP], np.maximum.accumulate(numbers)))
        of_source = (steps >= source.start) & (steps < source.stop)
        broken |= of_source & np.isin(steps, left)
        changes = np.zeros(len(steps) + 1, np.int64)  # Of how many ranges.
        begin = np.searchsorted(steps, highest[at], "right")
        end = np.maximum(begin, np.searchsorted(steps, last, "right"))
        np.add.at(changes, begin, 1)
        np.add.at(changes, end, -1)
        gone = (np.cumsum(changes[:-1]) > 0) & ~np.isin(steps, numbers)
        broken |= of_source & gone
    return broken
