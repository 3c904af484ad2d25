"""Reads the tables of a profile: whose rows, from when to when, on which clock.

Thread safety: may be used from any thread.

Errors: those of arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import ConfigurationError, InvalidWorker
from tdbg.trial.profile.clock import RunClock, TimeRange
from tdbg.trial.profile.tables import ProfileTables, TablePart, fitted, joined, type_of
from tdbg.trial.run import RunState
from tdbg.trial.writers import NO_END, Source, WriterReader

__all__ = ["SPAN_DTYPE", "ProfileQueries", "Rows", "Steps"]

Rows = NDArray[np.void]
Steps = tuple[int | None, int | None]

SPAN_DTYPE = np.dtype(
    [
        ("time", "<i8"),  # when it ended
        ("global_step", "<i8"),  # -1: of none
        ("name", "O"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("thread", "<u8"),
        ("depth", "<i4"),
        ("value", "<i8"),
        ("worker", "<i4"),
    ]
)

# Tables of which a writer has several, one for each device.
_WITH_INSTANCES = frozenset({"disk", "network", "gpu", "fingerprint"})
# The column that says how long what a row tells of had lasted when it was written.
_DURATIONS = {
    "step": "duration_ns",
    "loader": "wait_ns",
    "collective": "duration_ns",
    "span": "duration_ns",
}


class ProfileQueries:
    """Questions about tables by their names."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._tables = ProfileTables()
        self._clock: tuple[int, RunClock] | None = None

    def tables(self) -> list[str]:
        """Return the names of the tables that the run has, sorted."""
        with self._run.fresh() as run:
            return sorted(self._tables.names(run.everyone))

    # --- Clocks ---------------------------------------------------------------

    @property
    def clock(self) -> RunClock:
        """The clocks of the run's hosts, as one."""
        with self._run.fresh() as run:
            if self._clock is None or self._clock[0] != run.version:
                self._clock = run.version, RunClock(_placed_first(run))
            return self._clock[1]

    def wall_ns(self, time: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return wall times, in ns since 1970 UTC, of a column ``time``."""
        return np.asarray(time, np.int64) + self.clock.wall_ns(0)

    def seconds(self, time: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Return the seconds since the run began, of a column ``time``."""
        found: NDArray[np.float64] = (self.wall_ns(time) - self.clock.start_ns) / 1e9
        return found

    # --- Rows -----------------------------------------------------------------

    def table(
        self,
        name: str,
        *,
        node: int | None = None,
        worker: str | int | None = None,
        time: TimeRange | None = None,
        steps: Steps | None = None,
    ) -> Rows:
        """Return the rows of any table by its name."""
        with self._run.fresh() as run:
            times = self._times_of(name, time, steps)
            found: list[TablePart] = []
            for source in self._sources(run, node, worker):
                shift = self.clock.shift_of(source.writer)
                own = tuple(None if t is None else t - shift for t in times)
                parts = self._tables.read([source.writer], name, (own[0], own[1]))
                found += [_within(part, source) for part in parts]
            table = type_of(name, found)
            complete = [
                self._with_worker(
                    run,
                    name,
                    TablePart(part.writer, part.instance, fitted(part.rows, table)),
                )
                for part in found
            ]
            rows = joined(complete, _extended(name, table))
            return self._chosen(name, rows, time, steps)

    # --- Inside ---------------------------------------------------------------

    def _sources(
        self, run: RunState, node: int | None, worker: str | int | None
    ) -> list[Source]:
        """The writers of the training and those beside it that are asked for."""
        if isinstance(worker, int):
            names = run.workers
            if not 0 <= worker < len(names):
                msg = f"there is no worker {worker}: the run has {names}"
                raise InvalidWorker(msg)
            worker = names[worker]
        sources = run.sources_of(worker)
        if worker is None:
            sources += [
                Source(writer, 0, -NO_END, NO_END)
                for writer in run.everyone
                if writer.directory.role == "profiler"
            ]
        if node is None:
            return sources
        n = max(len(self.clock.nodes), 1)
        if not 0 <= node < n:
            msg = f"node must be a number below {n}, not {node!r}"
            raise ConfigurationError(msg)
        return [s for s in sources if self.clock.node_of(s.writer) == node]

    def _placed(self, run: RunState) -> list[tuple[WriterReader, int, int]]:
        return [
            (s.writer, self._worker_of(run, s.writer), self.clock.shift_of(s.writer))
            for s in self._sources(run, None, None)
        ]

    def _worker_of(self, run: RunState, writer: WriterReader) -> int:
        """The index of the worker that a writer is; of its host's first, if none."""
        ranks = sorted({source.writer.rank for source in run.sources})
        if writer.directory.role == "train":
            return ranks.index(writer.rank)
        node = self.clock.node_of(writer)
        on_host = [
            source.writer.rank
            for source in run.sources
            if self.clock.node_of(source.writer) == node
        ]
        return ranks.index(min(on_host)) if on_host else -1

    def _with_worker(self, run: RunState, name: str, part: TablePart) -> Rows:
        """Rows with the columns that all tables have, on the run's clock."""
        found = np.zeros(len(part.rows), _extended(name, part.rows.dtype))
        for column in part.rows.dtype.names or ():
            found[_RENAMED.get(column, column)] = part.rows[column]
        shift = self.clock.shift_of(part.writer)
        found["time"] += shift
        if "start_ns" in (part.rows.dtype.names or ()):
            found["start_ns"] += shift
        if name in _WITH_INSTANCES:
            found["instance"] = part.instance
        found["worker"] = self._worker_of(run, part.writer)
        return found

    def _span_parts(
        self, run: RunState, worker: str | int | None
    ) -> Iterator[TablePart]:
        for source in self._sources(run, None, worker):
            writer = source.writer
            stored = writer.reader.spans()
            rows = np.zeros(len(stored), _without_worker(SPAN_DTYPE))
            names = {
                number: writer.definitions[number].name
                for number in np.unique(stored["definition"]).tolist()
                if number in writer.definitions
            }
            rows["name"] = [names.get(n, "?") for n in stored["definition"].tolist()]
            rows["global_step"] = stored["step"]
            rows["time"] = stored["start_ns"] + stored["duration_ns"]
            for column in ("start_ns", "duration_ns", "thread", "depth", "value"):
                rows[column] = stored[column]
            yield _within(TablePart(writer, "", rows), source)

    def _times_of(
        self, name: str, time: TimeRange | None, steps: Steps | None
    ) -> tuple[int | None, int | None]:
        """The times on the run's clock within which rows are to be read."""
        start, stop = (None, None) if time is None else _pair("time", time)
        first = None if start is None else self.clock.of_moment(start)
        last = None if stop is None else self.clock.of_moment(stop)
        if steps is not None and name != "step":
            begin, end = self._times_of_steps(_pair("steps", steps))
            first = begin if first is None else max(first, begin)
            last = end if last is None else min(last, end)
        return first, last

    def _times_of_steps(self, steps: Steps) -> tuple[int, int]:
        """When the first of these steps began on any worker, and the last ended."""
        found = self.table("step", steps=steps)
        if len(found):
            begun = found["time"] - found["duration_ns"]
            return int(begun.min()), int(found["time"].max())
        with self._run.fresh() as run:
            times = [
                (t - d + shift, t + shift)
                for writer, _, shift in self._placed(run)
                for t, d in _recorded(writer, steps)
            ]
        if not times:
            return 0, 0
        return min(begin for begin, _ in times), max(end for _, end in times)

    def _chosen(
        self, name: str, rows: Rows, time: TimeRange | None, steps: Steps | None
    ) -> Rows:
        """The rows that overlap the time and the steps asked for."""
        if (time is None and steps is None) or not len(rows):
            return rows
        by_number = steps is not None and name == "step"
        start, stop = self._times_of(name, time, None if by_number else steps)
        chosen = np.ones(len(rows), np.bool_)
        if start is not None:
            chosen &= rows["time"] > start
        if stop is not None:
            chosen &= _begun(name, rows) < stop
        if by_number and steps is not None:
            first, last = _pair("steps", steps)
            if first is not None:
                chosen &= rows["global_step"] >= first
            if last is not None:
                chosen &= rows["global_step"] <= last
        return rows[chosen]


# Columns whose name means the training's worker in what is returned.
_RENAMED = {"worker": "loader_worker"}


def _placed_first(run: RunState) -> list[WriterReader]:
    """All writers, those of the training by rank first."""
    return sorted(
        (w for w in run.everyone if w.directory.role != "engine"),
        key=lambda w: (w.directory.role != "train", w.rank, w.generation),
    )


def _extended(name: str, table: np.dtype[Any]) -> np.dtype[Any]:
    columns: list[Any] = [
        (_RENAMED.get(column, column), table[column]) for column in table.names or ()
    ]
    if name in _WITH_INSTANCES:
        columns.append(("instance", "U64"))
    return np.dtype([*columns, ("worker", "<i4")])


def _without_worker(table: np.dtype[Any]) -> np.dtype[Any]:
    names = [column for column in table.names or () if column != "worker"]
    return np.dtype([(column, table[column]) for column in names])


def _within(part: TablePart, source: Source) -> TablePart:
    """The rows of steps that no later attempt has replaced."""
    rows = part.rows
    if "global_step" in (rows.dtype.names or ()):
        steps = rows["global_step"]
        counts = (steps < 0) | ((steps >= source.start) & (steps < source.stop))
        rows = rows if counts.all() else rows[counts]
    return TablePart(part.writer, part.instance, rows)


def _begun(name: str, rows: Rows) -> NDArray[np.int64]:
    """When what each row tells of began: for a sample, the time of the one before."""
    column = _DURATIONS.get(name)
    if column is not None:
        begun: NDArray[np.int64] = rows["time"] - np.maximum(rows[column], 0)
        return begun
    found = rows["time"].copy()
    keys = [rows["worker"]]
    keys += [
        rows[each] for each in ("instance", "pid") if each in (rows.dtype.names or ())
    ]
    order = np.lexsort([rows["time"], *keys])
    same = np.ones(max(len(rows) - 1, 0), np.bool_)
    for key in keys:
        same &= key[order][1:] == key[order][:-1]
    later = order[1:][same]
    found[later] = rows["time"][order[:-1][same]]
    return found


def _recorded(writer: WriterReader, steps: Steps) -> list[tuple[int, int]]:
    """End and duration of each step record of these steps."""
    first, last = steps
    found = writer.reader.find_steps(first, None if last is None else last + 1)
    pairs: list[tuple[int, int]] = list(
        zip(found["monotonic_ns"].tolist(), found["duration_ns"].tolist(), strict=True)
    )
    return pairs


def _pair(name: str, given: Any) -> Any:
    try:
        first, last = given
    except (TypeError, ValueError) as error:
        msg = f"{name} must be a pair (first, last), not {given!r}"
        raise ConfigurationError(msg) from error
    return first, last
