"""The steps of a run, put together from those of its workers.

A worker's step is complete when its `step` record is there, or when a later one is
(a step that saves nothing need not be recorded).  A step of the run is *complete*
when it is complete for all workers, and *settled* when nothing more will come for
it, complete or not: the worker that lacks may be dead.

The table grows at its end: steps that can no longer change are not looked at again.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.trial._attempts import Lane
from tdbg.trial._tables import Growable

__all__ = ["STEP_TABLE_DTYPE", "StepTable"]

# A rank that has not shown up while the others recorded so many steps is not waited
# for any longer.
WAIT_STEPS = 1000

_SKIPPED = 1
_SAMPLED = 4
_WHAT_STEPS = 8  # docs/format.md, record type `gap`

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


class StepTable:
    """Recorded steps by global step, each once."""

    def __init__(self) -> None:
        self._table = Growable(STEP_TABLE_DTYPE)
        self._steps = Growable(np.int64)
        self._seen: dict[str, int] = {}
        self._shape: list[tuple[str, int, int, int]] = []
        self._by_mode: dict[ModeKeys, tuple[NDArray[np.int64], NDArray[np.intp]]] = {}

    @property
    def data(self) -> NDArray[np.void]:
        """The table; to be read before the next update."""
        return self._table.data

    @property
    def steps(self) -> NDArray[np.int64]:
        """The global steps, ascending."""
        return self._steps.data

    def update(self, lanes: Sequence[Lane], world_sizes: Sequence[int]) -> None:
        """Bring the table up to the writers' records."""
        start = self._first_change(lanes)
        self._by_mode = {}
        keep = int(np.searchsorted(self.steps, start))
        self._table.truncate(keep)
        self._steps.truncate(keep)
        newest = max((lane.attempt for lane in lanes), default=0)
        for attempt, world_size in enumerate(world_sizes):
            of_attempt = [lane for lane in lanes if lane.attempt == attempt]
            part = _attempt_steps(of_attempt, start, world_size, attempt == newest)
            self._table.extend(part)
            self._steps.extend(part["step"])

    def _first_change(self, lanes: Sequence[Lane]) -> int:
        """From which step on the table may have to change."""
        shape = [(n.writer.name, n.attempt, n.start, n.stop) for n in lanes]
        if shape != self._shape:
            self._shape, self._seen = shape, {}
        start = np.iinfo(np.int64).max
        for lane in lanes:
            name, steps = lane.writer.name, lane.writer.steps.steps
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
    lanes: list[Lane], start: int, world_size: int, is_newest: bool
) -> NDArray[np.void]:
    """Steps of one attempt from *start* on."""
    records, ranks, generations = [], [], []
    for lane in lanes:
        at = lane.writer.steps.between(max(start, lane.start), lane.stop)
        records.append(lane.writer.steps.data[at])
        ranks.append(np.full(len(at), lane.writer.rank))
        generations.append(np.full(len(at), lane.writer.generation))
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
    table["skipped"] = np.bitwise_or.reduceat(rows["flags"], first) & _SKIPPED != 0
    table["workers"] = np.diff(first, append=len(rows))
    _complete(table, lanes, rows["step"], rank, world_size, is_newest)
    # Values left out on purpose are as good as never asked for.
    dropped = (rows["dropped"] > 0) & (rows["flags"] & _SAMPLED == 0)
    lost = np.logical_or.reduceat(dropped | (rows["failed"] > 0), first)
    table["lossless"] = table["complete"] & ~lost
    return table


def _complete(
    table: NDArray[np.void],
    lanes: list[Lane],
    steps: NDArray[np.int64],
    rank: NDArray[np.int64],
    world_size: int,
    is_newest: bool,
) -> None:
    """Fill in `complete` and `settled`."""
    complete = np.ones(len(table), np.bool_)
    settled = np.ones(len(table), np.bool_)
    seen = sorted({lane.writer.rank for lane in lanes})
    for number in seen:
        of_rank = [lane for lane in lanes if lane.writer.rank == number]
        has = np.isin(table["step"], steps[rank == number])
        last = max(min(lane.writer.last_step, lane.stop - 1) for lane in of_rank)
        passed = (table["step"] <= last) & ~_lost_steps(table["step"], of_rank)
        ended = not is_newest or of_rank[-1].writer.ended
        complete &= has | passed
        settled &= has | (table["step"] <= last) | ended
    missing = is_newest and len(seen) < world_size
    if missing and not all(lane.writer.ended for lane in lanes):
        recorded = max(len(lane.writer.steps) for lane in lanes)
        if recorded < WAIT_STEPS:
            complete[:] = settled[:] = False
    table["complete"], table["settled"] = complete, settled


def _lost_steps(steps: NDArray[np.int64], lanes: list[Lane]) -> NDArray[np.bool_]:
    """Which of *steps* a worker may have ended without being able to say so."""
    lost = np.zeros(len(steps), np.bool_)
    for lane in lanes:
        gaps = lane.writer.reader.gaps()
        for gap in gaps[(gaps["what"] & _WHAT_STEPS) != 0]:
            lost |= (steps >= gap["first_step"]) & (steps <= gap["last_step"])
    return lost
