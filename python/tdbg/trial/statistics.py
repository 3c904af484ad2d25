"""The statistics of many tensors over many steps, as NumPy columns.

Rows merge over the calls of a module, over micro-batches, and over workers where
each has its own part: activations, losses, and parameters that are sharded.  Of
what all workers hold alike the first worker's rows are taken.  Where a part of a
sharded parameter is missing there is no row of it.

``Columns`` hold chosen fields as float64.  If there is nothing to merge, as in nearly
every stretch of a run of one worker, the rows of a few steps at a time are put in their
places while they are in the cache of the processor.  Otherwise ``collect`` merges them.

Thread safety: results are values; ``collect`` and ``ColumnReader`` run with the trial's
lock held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.stats import rows as row_statistics
from tdbg.stats.row_fields import COUNTS, EXTREMES, FIELDS, RowFields
from tdbg.trial import shards
from tdbg.trial.layout import Layout, SourceLayout, layout_of
from tdbg.trial.shards import extreme_class, whole_count
from tdbg.trial.writers import Source

__all__ = [
    "ColumnReader",
    "Columns",
    "Statistics",
    "collect",
    "merge_rows",
    "with_rows",
]


@dataclass(frozen=True, slots=True, eq=False)
class Statistics(
    RowFields[NDArray[np.uint64], NDArray[np.float64], NDArray[np.float64]]
):
    """Statistics rows as arrays of shape (names, steps).

    The fields of a row (``RowFields``) are arrays, too.  An entry that is not
    ``present`` has counts of zero and is NaN elsewhere.  Other libraries take it as a
    table of the rows that are: ``pandas.DataFrame(it)``, ``pyarrow.table(it)``.

    Attributes:
        names: Name of each row of the arrays.
        steps: Global step of each column, ascending.
        present: Where there is a row.
        extreme_bits: Bits of the minima and maxima in each tensor's own class.
        extreme_classes: That class: 0 float64, 1 int64, 2 uint64.
    """

    names: list[str]
    steps: NDArray[np.int64]
    present: NDArray[np.bool_]
    extreme_bits: tuple[NDArray[np.uint64], NDArray[np.uint64]] = field(repr=False)
    extreme_classes: NDArray[np.uint8] = field(repr=False)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as named tuples, tensor by tensor: what pandas takes.

        For many rows ``Trial.to_pandas`` is some hundred times as fast.
        """
        from tdbg.trial.tables.arrow import rows_of_arrays

        return rows_of_arrays(self)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the rows as a stream of Arrow: what pyarrow and polars take."""
        from tdbg.trial.tables.arrow import stream_of_arrays

        return stream_of_arrays(self, requested_schema)

    @property
    def finite(self) -> NDArray[np.uint64]:
        """How many elements are neither NaN nor infinite."""
        return self.count - self.nan - self.positive_infinity - self.negative_infinity

    @property
    def variance(self) -> NDArray[np.float64]:
        """Population variance of the finite elements.

        NaN where there are none, or where m2 cannot be true.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.m2 >= 0, self.m2, np.nan) / self.finite

    @property
    def std(self) -> NDArray[np.float64]:
        """Population standard deviation of the finite elements."""
        return np.sqrt(self.variance)

    def reduction(self, name: str, absolute: bool = False) -> NDArray[np.float64]:
        """What NumPy says, in float64, of all elements; NaN where there is no row.

        Raises:
            ConfigurationError: If there is no such reduction.
        """
        rows = {field: getattr(self, field) for field in FIELDS}
        found = row_statistics.reduction_column(rows, name, absolute)
        return np.where(self.present, found, np.nan)

    def exact_extremes(self, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Minima and maxima of a tensor in its own class.

        Integers above 2^53 are exact here, and only here.  Where there is no finite
        element, or no row, the entries mean nothing.
        """
        i = self.names.index(name)
        dtype = shards.CLASS_DTYPES[int(self.extreme_classes[i])]
        low, high = self.extreme_bits
        return low[i].view(dtype) + dtype(0), high[i].view(dtype) + dtype(0)


def collect(
    layout: Layout, recorded: NDArray[np.int64], start: int, stop: int
) -> Statistics:
    """Read the rows of a layout in ``start <= step < stop`` and merge them.

    Args:
        layout: Which rows of which writer are of which name.
        recorded: Steps that may appear, ascending.
        start: First global step.
        stop: First global step that is not asked for any more.
    """
    found = []
    for each in layout.of_sources:
        source = each.source
        segments = source.writer.segments.between(
            max(start, source.start), min(stop, source.stop)
        )
        segments = segments[source.writer.segments.counts(segments, each.ids) > 0]
        at = segments["step"]
        if not np.array_equal(at, recorded):
            segments = segments[np.isin(at, recorded)]
        found.append((each, segments))
    present = [segments["step"] for _, segments in found]
    steps = np.concatenate([recorded[:0], *present])
    if not (steps[1:] > steps[:-1]).all():
        steps = np.unique(steps)
    rows = _Accumulator(layout, steps)
    for each, segments in found:
        for part in each.source.writer.segments.read(segments, each.ids):
            rows.add(each, part)
    return rows.result()


class _Accumulator:
    """Merges rows into arrays of shape (names, steps), a part at a time."""

    def __init__(self, layout: Layout, steps: NDArray[np.int64]) -> None:
        self._names = list(layout.names)
        self._steps = steps
        self._classes = layout.classes
        size = len(self._names) * len(steps)
        self._present = np.zeros(size, np.bool_)
        self._owner = np.zeros(size, np.int32)  # Rank + 1 of a row, if it is alone.
        self._scratch = np.zeros(size, np.int32)
        self._fields: dict[str, NDArray[Any]] = {
            name: np.zeros(size, shards.dtype_of(name)) for name in FIELDS
        }
        # Elements of the whole, where rows are of parts.
        self._whole = np.zeros(size, np.uint64)

    def add(self, layout: SourceLayout, rows: NDArray[np.void]) -> None:
        """Merge these rows of a source, of the definitions of its layout."""
        rank = layout.source.writer.rank
        # An id is what a file says, up to 2^32: it is looked for, and never an index.
        definition = np.searchsorted(layout.ids, rows["definition"])
        name = layout.index[definition]
        at = np.searchsorted(self._steps, rows["step"])
        at[at == len(self._steps)] = 0
        use = (name >= 0) & (self._steps[at] == rows["step"])
        keys = np.where(use, name, 0) * len(self._steps) + at
        owner = self._owner[keys]
        use &= layout.adds[definition] | (owner == 0) | (owner == rank + 1)
        if not use.all():
            rows, keys, name = rows[use], keys[use], name[use]
            definition = definition[use]
        if not len(rows):
            return
        fields = {field: rows[field] for field in FIELDS}
        classes = self._classes[name]
        changed = layout.classes[definition] != classes
        if changed.any():
            for field_name in EXTREMES:
                _widen(fields, field_name, changed, layout.classes[definition])
        self._owner[keys] = rank + 1
        self._whole[keys] = layout.of_whole[definition]
        self._put(keys, fields, classes)

    def _put(
        self, keys: NDArray[np.int64], rows: dict[str, Any], classes: NDArray[np.uint8]
    ) -> None:
        order = np.arange(len(keys), dtype=np.int32)
        self._scratch[keys] = order
        if not np.array_equal(self._scratch[keys], order):
            keys, rows, classes = shards.group(keys, rows, classes)
        known = self._present[keys]
        if known.any():
            old = keys[known]
            keys = np.concatenate((old, keys))
            classes = np.concatenate((classes[known], classes))
            rows = {
                name: np.concatenate((self._fields[name][old], values))
                for name, values in rows.items()
            }
            keys, rows, classes = shards.group(keys, rows, classes)
        for name, values in rows.items():
            self._fields[name][keys] = values
        self._present[keys] = True

    def result(self, *, in_parts: bool = False) -> Statistics:
        """Return the merged rows; those that lack a part count only if *in_parts*."""
        if not in_parts:
            self._present &= self._fields["count"] >= self._whole
            for name in COUNTS:
                self._fields[name][~self._present] = 0
        shape = (len(self._names), len(self._steps))
        bits = {name: self._fields[name].copy() for name in EXTREMES}
        finite = shards.finite_count(self._fields) > 0
        classes = np.repeat(self._classes, len(self._steps))
        for name in EXTREMES:
            self._fields[name] = shards.to_float(bits[name], classes, finite)
        if not self._present.all():
            for name, values in self._fields.items():
                if name not in COUNTS:
                    values[~self._present] = np.nan
        return Statistics(
            names=self._names,
            steps=self._steps,
            present=self._present.reshape(shape),
            extreme_bits=(bits["min"].reshape(shape), bits["max"].reshape(shape)),
            extreme_classes=self._classes,
            **{name: values.reshape(shape) for name, values in self._fields.items()},
        )


def _widen(
    fields: dict[str, NDArray[Any]],
    name: str,
    changed: NDArray[np.bool_],
    classes: NDArray[np.uint8],
) -> None:
    finite = shards.finite_count(fields) > 0
    as_float = shards.to_float(np.array(fields[name]), classes, finite)
    empty = np.inf if name == "min" else -np.inf
    as_float[~finite] = empty
    fields[name] = np.where(changed, as_float.view(np.uint64), fields[name])


def with_rows(
    sources: Sequence[Source], names: Sequence[str], start: int, stop: int
) -> list[str]:
    """Return those of *names* that have a row in ``start <= step < stop``."""
    found = np.zeros(len(names), np.bool_)
    for source in sources:
        index = source.writer.segments
        segments = index.between(max(start, source.start), min(stop, source.stop))
        ids, places = source.writer.ids_of_names(names)
        found[places[np.isin(ids, index.definitions(segments))]] = True
    return [names[i] for i in np.flatnonzero(found).tolist()]


def merge_rows(
    name: str,
    step: int,
    rows: Sequence[tuple[Source, NDArray[np.void]]],
    *,
    in_parts: bool = False,
) -> Statistics:
    """Merge the rows that workers have of one tensor at one step.

    Args:
        name: The tensor.
        step: The global step that all rows belong to.
        rows: Sources in the order of their ranks, with rows of this name only.
        in_parts: Whether parts of a sharded tensor are a row, too.
    """
    layout = layout_of([source for source, _ in rows], [name])
    merged = _Accumulator(layout, np.array([step], np.int64))
    for each, (_, part) in zip(layout.of_sources, rows, strict=True):
        merged.add(each, part)
    return merged.result(in_parts=in_parts)


# Beyond so many kinds of steps in a stretch it is not worth the while.
MAX_SIGNATURES = 16
# Lists of names of which it is remembered where their rows go.
MAX_CHOICES = 8
# Rows that are read at a time, half a megabyte: they are gone through once a field.
CHUNK_ROWS = 4096

Rows = NDArray[np.void]
Index = slice | NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where the rows of a signature go."""

    n_names: int
    # Of the signature's rows, and of the names: which row is of which name.
    positions: Index
    names: Index
    # Which of these are of integers, at which positions, and their extremes' class.
    integers: NDArray[np.intp]
    of_integers: NDArray[np.intp]
    classes: NDArray[np.uint8]

    def values(self, rows: Rows, name: str) -> NDArray[np.float64 | np.uint64]:
        """A field, steps x names."""
        found = rows[name][:, self.positions]
        if name not in EXTREMES:
            return found
        extremes = np.array(found).view(np.float64)
        if len(self.integers):
            chosen = rows[:, self.of_integers]
            counts = {each: chosen[each] for each in COUNTS}
            extremes[:, self.integers] = shards.to_float(
                chosen[name],
                np.broadcast_to(self.classes, chosen.shape),
                shards.finite_count(counts) > 0,
            )
        return extremes


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Statistics as columns.

    Attributes:
        names: The tensors.
        steps: Global steps, ascending.
        present: Names x steps: where there is a row.
        fields: Fields of a row, in their order, x names x steps; NaN where there is
            no row.
        is_merged: Whether there was something to merge.
    """

    names: list[str]
    steps: NDArray[np.int64]
    present: NDArray[np.bool_]
    fields: NDArray[np.float64]
    is_merged: bool = False

    @classmethod
    def without_rows(
        cls, names: Sequence[str], steps: NDArray[np.int64], *, is_merged: bool = False
    ) -> Columns:
        """Columns to be filled in."""
        shape = len(names), len(steps)
        present = np.zeros(shape, np.bool_)
        fields = np.full((len(FIELDS), *shape), np.nan)
        return cls(list(names), steps, present, fields, is_merged)

    def put(self, rows: Rows, plan: _Plan, at: slice) -> None:
        """Fill in the rows of some steps: steps x rows of the signature."""
        self.present[plan.names, at] = True
        for name, column in zip(FIELDS, self.fields, strict=True):
            column[plan.names, at] = plan.values(rows, name).T

    def column(self, name: str) -> NDArray[np.float64]:
        """One field of the rows."""
        column: NDArray[np.float64] = self.fields[FIELDS.index(name)]
        return column


# By writer and signature.
_Plans = dict[tuple[str, int], _Plan | None]


class ColumnReader:
    """Reads columns; remembers where the rows of each kind of step go."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._plans: _Plans = {}
        # Of those who ask in turn for other names.
        self._plans_of: OrderedDict[tuple[str, ...], _Plans] = OrderedDict()

    def read(
        self,
        sources: Sequence[Source],
        names: Sequence[str],
        steps: NDArray[np.int64],
    ) -> Columns:
        """The rows of *names* at these steps, which ascend; see ``collect``."""
        self._choose(tuple(names))
        start, stop = (int(steps[0]), int(steps[-1]) + 1) if len(steps) else (0, 0)
        simple = self._read_simple(sources, steps, start, stop)
        if simple is not None:
            return simple
        merged = collect(layout_of(sources, names), steps, start, stop)
        result = Columns.without_rows(names, steps, is_merged=True)
        at = _index(np.searchsorted(steps, merged.steps))
        result.present[:, at] = merged.present
        for name, column in zip(FIELDS, result.fields, strict=True):
            column[:, at] = np.where(merged.present, getattr(merged, name), np.nan)
        return result

    def _choose(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._plans = self._plans_of.setdefault(names, {})
        self._plans_of.move_to_end(names)
        if len(self._plans_of) > MAX_CHOICES:
            self._plans_of.popitem(last=False)

    def _read_simple(
        self,
        sources: Sequence[Source],
        steps: NDArray[np.int64],
        start: int,
        stop: int,
    ) -> Columns | None:
        """The rows as they are; None where they must be merged, or are too many."""
        found = []
        for source in sources:
            segments = source.writer.segments.between(
                max(start, source.start), min(stop, source.stop)
            )
            segments = segments[np.isin(segments["step"], steps)]
            if len(segments):
                found.append((source, segments))
        if len(found) != 1:
            return None
        ((source, segments),) = found
        if not (segments["step"][1:] > segments["step"][:-1]).all():
            return None
        numbers, counts = np.unique(segments["signature"], return_counts=True)
        if len(numbers) > MAX_SIGNATURES:
            return None
        plans: dict[int, _Plan] = {}
        requested = 0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            plan = self._plan(source, number)
            if plan is None:
                return None
            plans[number] = plan
            requested += count * plan.n_names
        if requested * 4 < int(segments["n_rows"].sum()):
            return None  # Most rows would be read for nothing.
        return self._gather(source, segments, steps, plans)

    def _gather(
        self,
        source: Source,
        segments: NDArray[np.void],
        steps: NDArray[np.int64],
        plans: dict[int, _Plan],
    ) -> Columns | None:
        result = Columns.without_rows(self._names, steps)
        places = np.searchsorted(steps, segments["step"])
        for first, last in _stretches(segments, places):
            number = int(segments["signature"][first])
            plan, ids = plans[number], source.writer.segments.signature(number)
            if not plan.n_names:
                continue
            end = segments[last - 1]
            rows = source.writer.reader.rows(
                int(segments["start"][first]), int(end["start"] + end["n_rows"])
            )
            if len(rows) != (last - first) * len(ids):
                return None  # Some are damaged.
            rows = rows.reshape(last - first, -1)
            at = slice(int(places[first]), int(places[last - 1]) + 1)
            fits = (rows["definition"] == ids).all()
            if not fits or not (steps[at] == rows["step"].T).all():
                return None
            result.put(rows, plan, at)
        return result

    def _plan(self, source: Source, number: int) -> _Plan | None:
        """Where the rows go; None where some must be merged."""
        key = (source.writer.name, number)
        if key not in self._plans:
            self._plans[key] = self._make_plan(source, number)
        return self._plans[key]

    def _make_plan(self, source: Source, number: int) -> _Plan | None:
        numbers = {name: i for i, name in enumerate(self._names)}
        signature = source.writer.segments.signature(number)
        positions, names, classes = [], [], []
        for position, definition_id in enumerate(signature.tolist()):
            definition = source.writer.definitions[definition_id]
            name = numbers.get(definition.name, -1)
            if name < 0:
                continue
            if whole_count(definition) or definition.placements:
                return None
            positions.append(position)
            names.append(name)
            classes.append(extreme_class(definition.dtype))
        if len(set(names)) < len(names):
            return None  # Several calls, or micro-batches.
        at, of_names = np.array(positions, np.intp), np.array(classes, np.uint8)
        integers = np.flatnonzero(of_names)
        return _Plan(
            len(names),
            _index(at),
            _index(np.array(names, np.intp)),
            integers,
            at[integers],
            of_names[integers],
        )


def _stretches(
    segments: NDArray[np.void], places: NDArray[np.intp]
) -> Iterator[tuple[int, int]]:
    """Segments, from one to another, that are read at once: few, and all alike.

    They have one signature, their rows follow each other, and so do their places.
    """
    signature, starts = segments["signature"], segments["start"]
    breaks = signature[1:] != signature[:-1]
    breaks |= starts[1:] != starts[:-1] + segments["n_rows"][:-1]
    breaks |= places[1:] != places[:-1] + 1
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(segments)]
    for first, last in pairwise(edges):
        at_once = max(1, CHUNK_ROWS // max(1, int(segments["n_rows"][first])))
        for begin in range(first, last, at_once):
            yield begin, min(last, begin + at_once)


def _index(numbers: NDArray[np.intp]) -> Index:
    """These places, as a slice if they follow each other: that needs no copy."""
    first = int(numbers[0]) if len(numbers) else 0
    if np.array_equal(numbers, np.arange(first, first + len(numbers))):
        return slice(first, first + len(numbers))
    return numbers
