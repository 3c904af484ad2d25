"""Tables over many runs, as datasets of Arrow that DuckDB scans.

DuckDB says which columns it needs and what the rows must meet.  Runs that cannot have
such a row are not opened; of the others, only the tensors, modes and steps are read
that can.

Thread safety: a scan reads several runs at once, in threads of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from functools import partial, reduce
from itertools import pairwise
from operator import and_
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.query.filters import Filter
from tdbg.query.snapshot import AT_ONCE, Snapshot
from tdbg.trial import (
    STEP_COLUMNS,
    TABLES,
    Batch,
    Column,
    RunTable,
    StepNumbers,
    Trial,
    Words,
    record_batch,
    schema_of,
)

__all__ = ["RUN", "Scan", "TableOfRuns"]

#: The first column of each table over several runs.
RUN = Column("run", "word", "", "name of the run")
# Tables whose rows belong to recorded steps; a finding may name another one.
_OF_STEPS = ("statistics", "scalars", "steps")
# Into so many pieces steps are cut to find the range that a filter allows.
_PIECES = 64


class Scan:
    """What a dataset answers to DuckDB: a stream of batches.

    Attributes:
        projected_schema: Schema of the batches.
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)


class TableOfRuns(ds.Dataset):  # type: ignore[misc]
    """One of the tables of runs, but ``runs``."""

    def __init__(self, snapshot: Snapshot, table: str) -> None:
        # Not the base's, which nobody may construct: DuckDB asks for what is below.
        self._snapshot = snapshot
        self._table = table
        self._columns = {each.name: each for each in (RUN, *TABLES[table])}
        self._schema = schema_of(list(self._columns.values()))

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,  # noqa: A002 - pyarrow's name
        **_: Any,
    ) -> Scan:
        """Return the rows for which the filter holds.

        Args:
            columns: Names of columns; None: all.
            filter: What rows must meet; None: nothing.
        """
        chosen = [self._columns[name] for name in columns or self._columns]
        asked = None if filter is None else Filter(filter, self._schema)
        names = self._snapshot.names
        if asked is not None and RUN.name in asked.columns:
            kept = asked.possible([ds.field(RUN.name) == name for name in names])
            names = [names[i] for i in kept]
        return Scan(schema_of(chosen), self._batches(names, chosen, asked))

    def _batches(
        self, names: Sequence[str], chosen: Sequence[Column], asked: Filter | None
    ) -> Iterator[pa.RecordBatch]:
        trials = self._snapshot.open(names)
        reader = _Reader(self._table, list(trials), chosen, asked, self._columns)
        runs = enumerate(trials.values())
        parts = (partial(reader.batches, i, trial) for i, trial in runs)
        try:
            yield from _side_by_side(parts, self._snapshot.workers)
        except Exception as error:
            self._snapshot.error = error
            raise


class _Steps(TypedDict, total=False):
    """The steps of a run that may have rows; all, where nothing is said."""

    start: int
    end: int
    mode: ModeKeys


class _Reader:
    """Reads what a scan asks for, run by run."""

    def __init__(
        self,
        table: str,
        names: Sequence[str],
        chosen: Sequence[Column],
        asked: Filter | None,
        columns: dict[str, Column],
    ) -> None:
        self._table = table
        self._names = names
        self._chosen = chosen
        self._asked = asked
        needed = [each.name for each in chosen]
        if asked is not None:
            needed += sorted(asked.columns.difference(needed))
        self._needed = [columns[name] for name in needed]
        self._schema = schema_of(self._needed)
        # Of runs that have the same tensors, which are asked for; and of those that
        # have the same steps, which.
        self._tensors: dict[tuple[str, ...], tuple[list[int], bool]] = {}
        self._steps: dict[bytes, _Steps | None] = {}

    def batches(self, run: int, trial: Trial) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a run."""
        own = [each.name for each in self._needed if each is not RUN]
        # A count of rows needs no column, and a table has at least one.
        table = trial.table(self._table, own or TABLES[self._table][0].name)
        narrowed, is_certain = self._narrowed(run, table)
        if narrowed is None:
            return
        for batch in narrowed.batches():
            rows = record_batch(self._with_run(run, batch), self._needed, self._schema)
            if not is_certain and self._asked is not None:
                rows = rows.filter(self._asked.expression)
            if rows.num_rows:
                yield rows.select([each.name for each in self._chosen])

    def _with_run(self, run: int, batch: Batch) -> Batch:
        n = len(next(iter(batch.values())))
        return {**batch, RUN.name: Words(np.full(n, run, np.int32), self._names)}

    def _narrowed(self, run: int, table: RunTable) -> tuple[RunTable | None, bool]:
        """Return what must be read of a run, and whether all of it is asked for."""
        asked = self._asked
        if asked is None:
            return table, True
        of_run = ds.field(RUN.name) == self._names[run]
        is_certain = asked.columns <= {RUN.name} and asked.certain([of_run])
        if self._table == "statistics" and asked.columns & {"tensor", "role"}:
            kept, is_certain = self._kept_tensors(asked, of_run, table)
            if not kept:
                return None, True
            table = table.narrowed(names=kept)
        if self._table in _OF_STEPS and asked.columns.intersection(STEP_COLUMNS):
            steps = self._kept_steps(asked, of_run, table.steps())
            if steps is None:
                return None, True
            table = table.narrowed(**steps)
        return table, is_certain

    def _kept_tensors(
        self, asked: Filter, of_run: ds.Expression, table: RunTable
    ) -> tuple[list[str], bool]:
        """Return the tensors that may have a row, and whether all their rows count."""
        names, roles = table.tensors()
        is_of_run = RUN.name in asked.columns
        key = tuple(names)
        found = None if is_of_run else self._tensors.get(key)
        if found is None:
            parts = [
                (ds.field("tensor") == name) & (ds.field("role") == role)
                for name, role in zip(names, roles, strict=True)
            ]
            kept = asked.possible(parts)
            if is_of_run:
                parts = [part & of_run for part in parts]
                within = asked.possible([parts[i] for i in kept])
                kept = [kept[i] for i in within]
            is_certain = asked.columns <= {RUN.name, "tensor", "role"}
            is_certain = is_certain and asked.certain([parts[i] for i in kept])
            found = self._tensors[key] = kept, is_certain
        kept, is_certain = found
        return [names[i] for i in kept], is_certain

    def _kept_steps(
        self, asked: Filter, of_run: ds.Expression, steps: StepNumbers
    ) -> _Steps | None:
        """Return the steps that may have a row; None: none has."""
        if RUN.name in asked.columns:
            return _kept_steps(asked, of_run, steps)
        key = _digest(steps)
        if key not in self._steps:
            self._steps[key] = _kept_steps(asked, of_run, steps)
        return self._steps[key]


def _digest(steps: StepNumbers) -> bytes:
    """Return what two runs have in common if their steps have all the same numbers."""
    found = hashlib.blake2b(digest_size=16)
    for each in (steps.steps, steps.training_steps, steps.modes, steps.mode_steps):
        found.update(np.ascontiguousarray(each).data)
    return found.digest()


def _kept_steps(
    asked: Filter, of_run: ds.Expression, steps: StepNumbers
) -> _Steps | None:
    """Return the global steps and the mode that may have rows; None: none has."""
    modes = [mode for mode in ModeKeys if (steps.modes == mode.value).any()]
    kept = asked.possible([of_run & (ds.field("mode") == m.name) for m in modes])
    first, stop = 0, len(steps) if kept else 0
    numbers = {
        name: np.asarray(steps.column(name, slice(None)))
        for name in sorted(asked.columns.intersection(STEP_COLUMNS) - {"mode"})
    }
    while numbers and first < stop:
        found = _range(asked, of_run, numbers, first, stop)
        if found == (first, stop):
            break
        first, stop = found
    if first >= stop:
        return None
    scope: _Steps = {}
    if len(kept) == 1 < len(modes):
        scope["mode"] = modes[kept[0]]
    if stop - first < len(steps):
        scope["start"] = int(steps.steps[first])
        scope["end"] = int(steps.steps[stop - 1]) + 1
    return scope


def _range(
    asked: Filter,
    of_run: ds.Expression,
    numbers: dict[str, NDArray[Any]],
    first: int,
    stop: int,
) -> tuple[int, int]:
    """Return the range of places within another that may have rows."""
    edges = np.unique(np.linspace(first, stop, _PIECES + 1).astype(int)).tolist()
    pieces = list(pairwise(edges))
    parts = [
        reduce(
            and_,
            (
                (ds.field(name) >= int(values[a:b].min()))
                & (ds.field(name) <= int(values[a:b].max()))
                for name, values in numbers.items()
            ),
            of_run,
        )
        for a, b in pieces
    ]
    kept = asked.possible(parts)
    return (pieces[kept[0]][0], pieces[kept[-1]][1]) if kept else (first, first)


def _side_by_side(
    parts: Iterable[Callable[[], Iterator[pa.RecordBatch]]], workers: Executor
) -> Iterator[pa.RecordBatch]:
    """Yield what iterators yield, several of them at work in threads of their own.

    Each has at most one batch ready: that bounds the memory.
    """
    waiting = iter(parts)
    running: dict[Future[pa.RecordBatch | None], Iterator[pa.RecordBatch]] = {}

    def go_on(rows: Iterator[pa.RecordBatch]) -> None:
        running[workers.submit(next, rows, None)] = rows

    while True:
        while len(running) < AT_ONCE and (part := next(waiting, None)) is not None:
            go_on(part())
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for each in done:
            rows, batch = running.pop(each), each.result()
            if batch is not None:
                go_on(rows)
                yield batch
