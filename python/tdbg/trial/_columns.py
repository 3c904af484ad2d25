"""Statistics of many tensors over many steps, a field at a time.

Where there is nothing to merge, as in nearly every stretch of a run of one worker, the
rows are kept as they were read, and a field is put together when it is asked for.
Where calls, micro-batches, workers or parts of tensors are to be merged, all fields
are, by ``collect``.

Thread safety: ``ColumnReader`` is used with the trial's lock held; what it gives is a
value.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tdbg.trial import _merge
from tdbg.trial._attempts import Lane
from tdbg.trial._roles import extreme_class
from tdbg.trial._shards import whole_count
from tdbg.trial._statistics import Statistics, collect

__all__ = ["ColumnReader", "Columns"]

# Beyond so many kinds of steps in a stretch it is not worth the while.
MAX_SIGNATURES = 16
# Lists of names of which it is remembered where their rows go.
MAX_CHOICES = 8

Rows = NDArray[np.void]
Index = slice | NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where the rows of a signature go."""

    n_names: int
    # Of the signature's rows, and of the names: which row is of which name.
    positions: Index
    names: Index
    classes: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of some steps that have one signature: steps x rows of the signature."""

    steps: slice
    rows: Rows
    plan: _Plan


@dataclass(frozen=True, slots=True)
class Columns:
    """Statistics as columns, names x steps.

    Attributes:
        names: The tensors.
        steps: Global steps, ascending.
        present: Where there is a row.
    """

    names: list[str]
    steps: NDArray[np.int64]
    present: NDArray[np.bool_]
    _parts: list[_Part] = field(repr=False)
    _merged: Statistics | None = field(default=None, repr=False)

    def column(self, name: str) -> NDArray[np.float64]:
        """One field of the rows as float64; NaN where there is none."""
        if self._merged is not None:
            found = np.array(getattr(self._merged, name), dtype=np.float64)
            found[~self.present] = np.nan
            return found
        result = np.full(self.present.shape, np.nan)
        for part in self._parts:
            values = part.rows[name][:, part.plan.positions].T
            if name in ("min", "max"):
                values = self._extremes(part, values)
            result[part.plan.names, part.steps] = values
        return result

    def _extremes(self, part: _Part, bits: NDArray[np.uint64]) -> NDArray[np.float64]:
        bits = np.ascontiguousarray(bits)
        if not part.plan.classes.any():
            return bits.view(np.float64)
        fields = (*_merge.COUNTS,)
        rows = part.rows[:, part.plan.positions].T
        finite = _merge.finite_count({each: rows[each] for each in fields}) > 0
        classes = np.repeat(part.plan.classes, bits.shape[1])
        found = _merge.to_float(bits.ravel(), classes, finite.ravel())
        return found.reshape(bits.shape)


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
        lanes: Sequence[Lane],
        names: Sequence[str],
        recorded: NDArray[np.int64],
        start: int,
        stop: int,
    ) -> Columns:
        """The rows of *names* in ``start <= step < stop``; see ``collect``."""
        self._choose(tuple(names))
        simple = self._read_simple(lanes, recorded, start, stop)
        if simple is not None:
            return simple
        merged = collect(lanes, names, recorded, start, stop)
        return Columns(merged.names, merged.steps, merged.present, [], merged)

    def _choose(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._plans = self._plans_of.setdefault(names, {})
        self._plans_of.move_to_end(names)
        if len(self._plans_of) > MAX_CHOICES:
            self._plans_of.popitem(last=False)

    def _read_simple(
        self,
        lanes: Sequence[Lane],
        recorded: NDArray[np.int64],
        start: int,
        stop: int,
    ) -> Columns | None:
        """The rows as they are; None where they must be merged, or are too many."""
        found = []
        for lane in lanes:
            segments = lane.writer.segments.between(
                max(start, lane.start), min(stop, lane.stop)
            )
            if len(segments):
                found.append((lane, segments))
        if len(found) != 1:
            return None
        ((lane, segments),) = found
        steps = segments["step"].astype(np.int64)
        if not (steps[1:] > steps[:-1]).all():
            return None
        numbers = np.unique(segments["signature"]).tolist()
        if len(numbers) > MAX_SIGNATURES:
            return None
        plans: dict[int, _Plan] = {}
        wanted, total = 0, 0
        used = np.isin(steps, recorded)
        for number in numbers:
            plan = self._plan(lane, number)
            if plan is None:
                return None
            plans[number] = plan
            of_number = segments["signature"] == number
            wanted += int(np.count_nonzero(of_number)) * plan.n_names
            total += int(segments["n_rows"][of_number].sum())
            if not plan.n_names:
                used &= ~of_number
        if wanted * 4 < total:
            return None  # Most rows would be read for nothing.
        return self._gather(lane, segments[used], steps[used], plans)

    def _gather(
        self,
        lane: Lane,
        segments: NDArray[np.void],
        steps: NDArray[np.int64],
        plans: dict[int, _Plan],
    ) -> Columns | None:
        present = np.zeros((len(self._names), len(steps)), np.bool_)
        parts = []
        signature, starts = segments["signature"], segments["start"]
        ends = starts + segments["n_rows"]
        # Stretches of one signature whose rows follow each other.
        breaks = (signature[1:] != signature[:-1]) | (starts[1:] != ends[:-1])
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(segments)]
        for first, last in pairwise(edges):
            if first == last:
                continue
            number = int(signature[first])
            rows = lane.writer.reader.rows(int(starts[first]), int(ends[last - 1]))
            ids = lane.writer.segments.signature(number)
            if len(rows) != (last - first) * len(ids):
                return None  # Some are damaged.
            rows = rows.reshape(last - first, -1)
            at = slice(first, last)
            fits = (rows["definition"] == ids).all()
            if not fits or not (steps[at] == rows["step"].T).all():
                return None
            plan = plans[number]
            present[plan.names, at] = True
            parts.append(_Part(at, rows, plan))
        return Columns(list(self._names), steps, present, parts)

    def _plan(self, lane: Lane, number: int) -> _Plan | None:
        """Where the rows go; None where some must be merged."""
        key = (lane.writer.name, number)
        if key not in self._plans:
            self._plans[key] = self._make_plan(lane, number)
        return self._plans[key]

    def _make_plan(self, lane: Lane, number: int) -> _Plan | None:
        numbers = {name: i for i, name in enumerate(self._names)}
        signature = lane.writer.segments.signature(number)
        positions, names, classes = [], [], []
        for position, definition_id in enumerate(signature.tolist()):
            definition = lane.writer.definitions[definition_id]
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
        return _Plan(
            len(names), _index(positions), _index(names), np.array(classes, np.uint8)
        )


def _index(numbers: list[int]) -> Index:
    """These places, as a slice if they follow each other: that needs no copy."""
    first = numbers[0] if numbers else 0
    if numbers == list(range(first, first + len(numbers))):
        return slice(first, first + len(numbers))
    return np.array(numbers, np.intp)
