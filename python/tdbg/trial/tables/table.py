"""A table of a run: which rows and columns, read when somebody goes through them.

A part of the statistics is of some tensors.  Where a tensor's rows are as the disk has
them, the core gathers the fields that are asked for, each contiguous.  Rows that must
be merged, of several calls, micro-batches, workers or parts, are merged as
``Trial.statistics`` does.

Thread safety: may be used from any thread; the trial's lock is held for each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import role_numbered
from tdbg.config.messages import nearest, nearest_recorded, short
from tdbg.errors import QueryError, TensorUnavailable
from tdbg.modes import ModeKeys
from tdbg.stats.row_fields import COUNTS, EXTREMES, FIELDS
from tdbg.trial import shards, statistics
from tdbg.trial.layout import Layout, SourceLayout, layout_of
from tdbg.trial.run import RunState
from tdbg.trial.tables.batch import Batch, Scope, Values, Words
from tdbg.trial.tables.columns import TABLES, Column
from tdbg.trial.tables.derived_fields import DERIVED, Fields, derived, fields_for
from tdbg.trial.tables.short_tables import SHORT_TABLES
from tdbg.trial.tables.step_numbers import StepNumbers
from tdbg.trial.writers import NO_END

__all__ = ["RunTable", "table_of", "tensors_with_rows"]

# Tables of a run that have a column of names, and what these are of.
_NAMED = ("statistics", "scalars", "findings")


# Rows that a part has at most, if no tensor has more: 8 bytes each and column.
PART_ROWS = 1 << 21
# Of rows that are merged: 200 bytes each.
MERGED_ROWS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class RunTable:
    """Some columns and rows of a table of a run.

    Attributes:
        name: Name of the table.
        columns: Its columns that are asked for.
        scope: Its rows that are asked for.
    """

    run: RunState
    name: str
    columns: Sequence[Column]
    scope: Scope

    def only(self, columns: Sequence[str] | None) -> RunTable:
        """Return the table with these columns alone; None: as it is."""
        chosen = TABLES[self.name].named(columns) if columns else self.columns
        return replace(self, columns=chosen)

    def narrowed(
        self,
        *,
        names: Sequence[str] | None = None,
        start: int | None = None,
        end: int | None = None,
        mode: ModeKeys | None = None,
    ) -> RunTable:
        """Return the table with fewer rows; the names are its own."""
        scope = self.scope
        return replace(
            self,
            scope=Scope(
                scope.names if names is None else tuple(names),
                scope.start if start is None else start,
                scope.end if end is None else end,
                scope.mode if mode is None else mode,
            ),
        )

    def tensors(self) -> tuple[list[str], list[str]]:
        """Return the tensors of statistics, and the role of each."""
        names = list(self.scope.names or ())
        with self.run.lock:
            roles = _roles_of(self.run, names)
        return names, [roles.words[i] for i in roles.codes.tolist()]

    def steps(self) -> StepNumbers:
        """Return the recorded steps of its scope."""
        with self.run.lock:
            return StepNumbers.of(self.run, self.scope)

    def batches(self) -> Iterator[Batch]:
        """Yield the rows, a part at a time."""
        names = [each.name for each in self.columns]
        if self.name != "statistics":
            with self.run.lock:
                rows = SHORT_TABLES[self.name](self.run, names, self.scope)
            yield rows  # Whoever goes on may be another thread, or nobody.
            return
        yield from _statistics_batches(self.run, names, self.scope)


def table_of(
    run: RunState, name: str, columns: Sequence[str] | None, scope: Scope
) -> RunTable:
    """Return a table of a run.

    Args:
        run: The run.
        name: Name of the table.
        columns: Names of columns; None: all.
        scope: Which rows.

    Raises:
        QueryError: If there is no such table or column, or it has no names.
        TensorUnavailable: If there is no such tensor.
    """
    known = [each for each in TABLES if each != "runs"]
    if name not in known:
        msg = f"a run has no table {name!r}; {nearest(name, known)}"
        raise QueryError(msg)
    if scope.names is not None and name not in _NAMED:
        msg = f"table {name!r} has no names: it has rows of steps"
        raise QueryError(msg)
    chosen = TABLES[name].named(columns)
    if name == "statistics":
        scope = replace(scope, names=tuple(_tensors(run, scope)))
    return RunTable(run, name, chosen, scope)


def _tensors(run: RunState, scope: Scope) -> Sequence[str]:
    """Return the tensors of a scope; all that have rows in it, by name."""
    if scope.names is None:
        return tensors_with_rows(run, scope)
    found = {name: run.resolve(name) for name in scope.names}
    for name, stored in found.items():
        if stored is None:
            msg = f"no tensor {short(name)}; {nearest_recorded(name, run.names())}"
            raise TensorUnavailable(msg)
    return list(dict.fromkeys(each for each in found.values() if each))


def tensors_with_rows(run: RunState, scope: Scope) -> list[str]:
    """Return the tensors that may have statistics in a range of steps, by name."""
    first = -NO_END if scope.start is None else scope.start
    stop = NO_END if scope.end is None else scope.end
    return statistics.with_rows(run.sources_of(None), sorted(run.names()), first, stop)


# --- Statistics -------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows: the numbers of their tensors, the places of their steps, their fields."""

    names: NDArray[np.int32]
    places: NDArray[np.integer]
    fields: Fields


def _statistics_batches(
    run: RunState, columns: Sequence[str], scope: Scope
) -> Iterator[Batch]:
    """Yield the rows of a scope, by columns; the names of the scope are known.

    Args:
        run: The run, which is not refreshed meanwhile.
        columns: Names of the table's columns.
        scope: Which rows.
    """
    with run.lock:
        numbers = StepNumbers.of(run, scope)
        names = list(scope.names or ())
        layout = layout_of(run.sources_of(None), names)
        roles = _roles_of(run, names) if "role" in columns else Words.of([])
    fields = fields_for(columns)
    for chosen in _parts(len(names), len(numbers)):
        with run.lock:
            gathered, rest = _gather(layout, chosen, numbers.steps, fields)
        for rows in gathered:
            yield _batch(rows, columns, names, roles, numbers)
        for part in _merged(run, [names[i] for i in rest], numbers, fields):
            rows = _Rows(np.array(rest, np.int32)[part.names], part.places, part.fields)
            yield _batch(rows, columns, names, roles, numbers)


def _parts(n_names: int, n_steps: int) -> Iterator[range]:
    """Yield the numbers of the tensors of each part."""
    n = max(1, PART_ROWS // max(1, n_steps))
    for first in range(0, n_names, n):
        yield range(first, min(n_names, first + n))


def _roles_of(run: RunState, names: Sequence[str]) -> Words:
    """Return the role of each name."""
    table = run.tensors
    at = {name: i for i, name in enumerate(table.names)}
    found = [role_numbered(int(table.roles[at[name]])) for name in names]
    return Words.of([role.name.lower() for role in found])


def _batch(
    rows: _Rows,
    columns: Sequence[str],
    names: Sequence[str],
    roles: Words,
    numbers: StepNumbers,
) -> Batch:
    def column(name: str) -> Values:
        if name == "tensor":
            return Words(rows.names, names)
        if name == "role":
            return Words(roles.codes[rows.names], roles.words)
        if name in DERIVED:
            return derived(name, rows.fields)
        if name in rows.fields:
            return rows.fields[name]
        return numbers.column(name, rows.places)

    return {name: column(name) for name in columns}


# --- Rows as they are -------------------------------------------------------


def _gather(
    layout: Layout, chosen: range, steps: NDArray[np.int64], fields: Sequence[str]
) -> tuple[list[_Rows], list[int]]:
    """Return the rows of tensors that need no merging, and the other tensors."""
    found = [
        rows
        for each in layout.of_sources
        if (rows := _of_source(each, chosen, steps, fields)) is not None
    ]
    merge = _placed(layout, chosen) | _met_twice(found)
    if not merge:
        return [each.rows() for each in found], []
    kept = [each.without(merge) for each in found]
    return [each.rows() for each in kept], sorted(merge)


def _placed(layout: Layout, chosen: range) -> set[int]:
    """The tensors that may be parts of a whole, or another worker's rows."""
    return {
        name
        for each in layout.of_sources
        for name in each.names[(each.of_whole > 0) | (each.index < 0)].tolist()
        if name in chosen
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Stretches:
    """Rows of a source, those of a definition behind each other."""

    names: NDArray[np.int64]  # Of each stretch the tensor.
    classes: NDArray[np.uint8]  # And of its extremes the class.
    counts: NDArray[np.int64]  # And how many rows it has.
    ascend: NDArray[np.bool_]  # And whether its steps do, each coming once.
    places: NDArray[np.integer]  # Of each row the place of its step.
    fields: Fields

    def rows(self) -> _Rows:
        """Return the rows, with extremes as numbers."""
        fields = dict(self.fields)
        if not fields.keys().isdisjoint(EXTREMES):
            finite = shards.finite_count(fields) > 0
            classes = np.repeat(self.classes, self.counts)
            for name in fields.keys() & set(EXTREMES):
                fields[name] = shards.to_float(fields[name], classes, finite)
        for name in fields.keys() - {*COUNTS, *EXTREMES}:
            fields[name] = fields[name].view(np.float64)
        names = np.repeat(self.names.astype(np.int32), self.counts)
        return _Rows(names, self.places, fields)

    def without(self, names: set[int]) -> _Stretches:
        """Return the rows of the other tensors."""
        keep = ~np.isin(self.names, list(names))
        rows = np.repeat(keep, self.counts)
        return _Stretches(
            self.names[keep],
            self.classes[keep],
            self.counts[keep],
            self.ascend[keep],
            self.places[rows],
            {name: values[rows] for name, values in self.fields.items()},
        )


def _of_source(
    layout: SourceLayout,
    chosen: range,
    steps: NDArray[np.int64],
    fields: Sequence[str],
) -> _Stretches | None:
    source = layout.source
    first, stop = np.searchsorted(steps, (source.start, source.stop)).tolist()
    of_chosen = (layout.names >= chosen.start) & (layout.names < chosen.stop)
    ids = layout.ids[of_chosen & (layout.of_whole == 0) & (layout.index >= 0)]
    if first == stop or not len(ids):
        return None
    definitions, counts, ascend, places, values = source.writer.reader.gather_rows(
        ids, steps[first:stop], [FIELDS.index(name) for name in fields]
    )
    at = np.searchsorted(layout.ids, definitions)
    places += np.uint32(first)
    return _Stretches(
        layout.names[at],
        layout.classes[at],
        counts.astype(np.int64),
        ascend,
        places,
        dict(zip(fields, values, strict=True)),
    )


def _met_twice(found: Sequence[_Stretches]) -> set[int]:
    """The tensors that have several rows at a step, or steps that go back."""
    bad = [each.names[~each.ascend] for each in found]
    names, firsts, lasts = [], [], []
    for each in found:
        ends = np.cumsum(each.counts)
        names.append(each.names)
        firsts.append(each.places[ends - each.counts])
        lasts.append(each.places[ends - 1])
    if not names:
        return set()
    of, first, last = (np.concatenate(part) for part in (names, firsts, lasts))
    order = np.lexsort((first, of))
    of, first, last = of[order], first[order], last[order]
    again = (of[1:] == of[:-1]) & (first[1:] <= last[:-1])
    return {*np.concatenate([of[1:][again], *bad]).tolist()}


# --- Rows that are merged ---------------------------------------------------


def _merged(
    run: RunState, names: Sequence[str], numbers: StepNumbers, fields: Sequence[str]
) -> Iterator[_Rows]:
    """Yield the merged rows of tensors; their numbers are places in *names*."""
    if not names or not len(numbers):
        return
    n_names = max(1, min(len(names), MERGED_ROWS // min(len(numbers), MERGED_ROWS)))
    n_steps = max(1, MERGED_ROWS // n_names)
    for first in range(0, len(names), n_names):
        for at in range(0, len(numbers), n_steps):
            steps = numbers.steps[at : at + n_steps]
            with run.lock:
                layout = layout_of(run.sources_of(None), names[first : first + n_names])
                found = statistics.collect(
                    layout, steps, int(steps[0]), int(steps[-1]) + 1
                )
            of, of_steps = np.nonzero(found.present)
            places = np.searchsorted(numbers.steps, found.steps)[of_steps]
            values = {name: getattr(found, name)[of, of_steps] for name in fields}
            yield _Rows((of + first).astype(np.int32), places, values)
