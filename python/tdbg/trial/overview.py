"""What each tensor is, and at how many steps it was saved: of all in one pass.

Asked one by one, each tensor would go over all steps.  Here the steps are gone over
once, some at a time, and tensors that always have their rows together, as nearly all
have, are counted together.

Thread safety: functions over a ``RunState`` whose lock is held; what they give are
values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg._core import Definition
from tdbg.config.collections import Role
from tdbg.modes import ModeKeys
from tdbg.trial.run import RunState
from tdbg.trial.shards import role_of, whole_shape
from tdbg.trial.writers import Source

__all__ = [
    "TensorDescription",
    "TensorOverview",
    "describe",
    "overview",
]

# Entries that are looked at at a time: values, and steps that have rows.
PART_ENTRIES = 1 << 18
MOST_STEPS = 1 << 16

Ints = NDArray[np.int64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """What a tensor is.

    Attributes:
        name: Its name.
        role: What it is: weight, bias, gradient, input, output, loss, scalar, ...
        dtype: Name of the element type of NumPy or ml_dtypes.
        shape: Its shape, of a sharded tensor that of the whole; None if it has changed,
            or differs between workers.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class TensorOverview:
    """A tensor, and where it was saved, in settled steps.

    Attributes:
        what: What it is.
        n_statistics: At how many steps it has a row.
        n_values: At how many a raw value; a scalar is one.
        first_step: The first of these steps, in the count that was asked for; None if
            there is none.
        last_step: The last of them, likewise.
    """

    what: TensorDescription
    n_statistics: int
    n_values: int
    first_step: int | None
    last_step: int | None


def describe(run: RunState, names: Sequence[str]) -> list[TensorDescription]:
    """Describe tensors by their newest definitions, in the order of *names*."""
    newest: dict[str, Definition] = {}
    shapes: dict[str, tuple[int, ...] | None] = {}
    for source in run.sources:
        last: dict[str, Definition] = {}
        for definition in source.writer.definitions.values():
            last[definition.name] = definition
            shape = whole_shape(definition)
            if shapes.setdefault(definition.name, shape) != shape:
                shapes[definition.name] = None
        spans = (n for n, d in last.items() if role_of(d) is not Role.SPAN)
        newest.update((name, last[name]) for name in spans)
    return [
        TensorDescription(
            name,
            role_of(newest[name]).name.lower(),
            newest[name].dtype or "float64",
            shapes[name],
        )
        if name in newest
        else TensorDescription(name, "other", "", None)
        for name in names
    ]


def overview(
    run: RunState, names: Sequence[str], mode: ModeKeys
) -> list[TensorOverview]:
    """The tensors of these names, with their steps in the count of *mode*."""
    counts = _Counts(names)
    numbers = {name: i for i, name in enumerate(names)}
    saved = [_Saved(source, numbers) for source in run.sources]
    for steps, shown in _parts(run, mode, saved):
        counts.add(steps, shown, saved)
    return [
        TensorOverview(
            what,
            int(counts.statistics[i]),
            int(counts.values[i]),
            int(counts.first[i]) if counts.first[i] <= counts.last[i] else None,
            int(counts.last[i]) if counts.first[i] <= counts.last[i] else None,
        )
        for i, what in enumerate(describe(run, names))
    ]


def _parts(
    run: RunState, mode: ModeKeys, saved: Sequence[_Saved]
) -> Iterator[tuple[Ints, Ints]]:
    """The settled steps of a mode, ascending, and how they are counted."""
    table = run.table
    settled = table.column("settled")
    if mode is ModeKeys.GLOBAL:
        steps = shown = table.steps[settled]
    else:
        shown, at = table.of_mode(mode)
        keep = np.argsort(at)
        keep = keep[settled[at[keep]]]
        steps, shown = table.steps[at[keep]], shown[keep]
    per_step = sum(each.n_values for each in saved) // max(1, len(table)) + 1
    n = min(MOST_STEPS, max(1, PART_ENTRIES // per_step))
    for first in range(0, len(steps), n):
        yield steps[first : first + n], shown[first : first + n]


class _Saved:
    """The data that one source has of the tensors, as places among steps."""

    def __init__(self, source: Source, numbers: dict[str, int]) -> None:
        self._source = source
        definitions = source.writer.definitions.all()
        self._ids = np.array(sorted(definitions), np.int64)
        # The number of the tensor of each id; -1: it is not asked for.
        self._tensors = np.array(
            [numbers.get(definitions[i].name, -1) for i in self._ids.tolist()], np.intp
        )
        self._of_signature: dict[int, Indices] = {}
        reader = source.writer.reader
        self.n_values = reader.n_tensors + reader.n_scalars

    def rows(self, steps: Ints) -> Iterator[tuple[Indices, Indices]]:
        """Yield tensors that have rows together, and at which of *steps*."""
        segments = self._source.writer.segments.between(*self._range(steps))
        places, known = _places(steps, segments["step"])
        signatures = segments["signature"][known]
        for number in np.unique(signatures).tolist():
            tensors = self._of_signature.get(number)
            if tensors is None:
                ids = self._source.writer.segments.signature(number)
                tensors = np.unique(self._tensors_of(ids))
                self._of_signature[number] = tensors = tensors[tensors >= 0]
            if len(tensors):
                yield tensors, _each_once(places[signatures == number])

    def values(self, steps: Ints) -> Iterator[tuple[Indices, Indices]]:
        """Yield the tensor of each value, and at which of *steps* it is."""
        reader, span = self._source.writer.reader, self._range(steps)
        of_tensors = reader.find_tensors, reader.n_tensors
        of_scalars = reader.find_scalars, reader.n_scalars
        for find, n in (of_tensors, of_scalars):
            if not n:
                continue
            entries = find(*span)[0]
            places, known = _places(steps, entries["step"])
            tensors = self._tensors_of(entries["definition"][known])
            yield tensors[tensors >= 0], places[tensors >= 0]

    def _range(self, steps: Ints) -> tuple[int, int]:
        first = max(int(steps[0]), self._source.start)
        return first, min(int(steps[-1]) + 1, self._source.stop)

    def _tensors_of(self, ids: NDArray[np.uint32]) -> Indices:
        if not len(self._ids):
            return np.full(len(ids), -1)
        at = np.searchsorted(self._ids, ids)
        at[at == len(self._ids)] = 0
        # An id without a definition is damage, which problems() reports.
        return np.where(self._ids[at] == ids, self._tensors[at], -1)


def _places(steps: Ints, found: Ints) -> tuple[Indices, NDArray[np.bool_]]:
    """Where those of *found* stand that are among *steps*, and which these are."""
    at = np.searchsorted(steps, found)
    at[at == len(steps)] = 0
    known = steps[at] == found
    return at[known], known


def _each_once(numbers: Indices) -> Indices:
    """Ascending, as most are already; np.unique would hash them."""
    if (numbers[1:] > numbers[:-1]).all():
        return numbers
    numbers = np.sort(numbers)
    found: Indices = numbers[np.append(True, numbers[1:] != numbers[:-1])]
    return found


class _Counts:
    """Counts the steps of tensors, some steps at a time."""

    def __init__(self, names: Sequence[str]) -> None:
        self.statistics = np.zeros(len(names), np.int64)
        self.values = np.zeros(len(names), np.int64)
        self.first = np.full(len(names), np.iinfo(np.int64).max)
        self.last = np.full(len(names), np.iinfo(np.int64).min)

    def add(self, steps: Ints, shown: Ints, saved: Sequence[_Saved]) -> None:
        """Add steps, all different from those before."""
        groups = [group for each in saved for group in each.rows(steps)]
        for tensors, places in _joined(groups):
            self.statistics[tensors] += len(places)
            self._reach(tensors, shown[places].min(), shown[places].max())
        values = [pair for each in saved for pair in each.values(steps)]
        if not values:
            return
        keys = [tensors * len(steps) + places for tensors, places in values]
        tensors, places = np.divmod(_each_once(np.concatenate(keys)), len(steps))
        self.values += np.bincount(tensors, minlength=len(self.values))
        self._reach(tensors, shown[places], shown[places])

    def _reach(self, tensors: Indices, first: Ints, last: Ints) -> None:
        np.minimum.at(self.first, tensors, first)
        np.maximum.at(self.last, tensors, last)


def _joined(
    groups: Sequence[tuple[Indices, Indices]],
) -> Iterator[tuple[Indices, Indices]]:
    """Join groups such that no tensor is in two, by the groups that it was in."""
    if len(groups) < 2:
        yield from groups
        return
    tensors = np.concatenate([each for each, _ in groups])
    of_group = np.repeat(np.arange(len(groups)), [len(each) for each, _ in groups])
    order = np.argsort(tensors, kind="stable")
    tensors, of_group = tensors[order], of_group[order]
    starts = np.flatnonzero(np.append(True, tensors[1:] != tensors[:-1]))
    alike: dict[bytes, list[int]] = {}
    ends = np.append(starts[1:], len(tensors))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        alike.setdefault(of_group[start:end].tobytes(), []).append(start)
    for found in alike.values():
        end = int(ends[np.searchsorted(starts, found[0])])
        places = [groups[i][1] for i in of_group[found[0] : end].tolist()]
        joined = places[0] if len(places) == 1 else _each_once(np.concatenate(places))
        yield tensors[found], joined
