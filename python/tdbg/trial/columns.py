"""Statistics of many tensors at many steps, as float64.

Where there is nothing to merge, as in nearly every stretch of a run of one worker, the
rows of a few steps at a time are put in their places while they are in the cache of the
processor.  Where calls, micro-batches, workers or parts of tensors are to be merged,
all are, by ``collect``.

Thread safety: ``ColumnReader`` is used with the trial's lock held; what it gives is a
value.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tdbg.stats.row_fields import COUNTS, EXTREMES, FIELDS
from tdbg.trial import shards
from tdbg.trial.layout import layout_of
from tdbg.trial.shards import extreme_class, whole_count
from tdbg.trial.statistics import collect
from tdbg.trial.writers import Source

__all__ = ["ColumnReader", "Columns"]

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
