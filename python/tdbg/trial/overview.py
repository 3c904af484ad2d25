"""What each tensor is, and at how many steps it was saved: of all in one pass.

Asked one by one, each tensor would go over all steps.  Here the steps are gone over
once, some at a time, and tensors that always have their rows together, as nearly all
have, are counted together.

Thread safety: functions over a ``RunState`` whose lock is held; what they give are
values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import role_numbered
from tdbg.modes import ModeKeys
from tdbg.trial.run import RunState
from tdbg.trial.shards import PER_WORKER
from tdbg.trial.tensor_table import (
    SourceTensors,
    TensorDescription,
    TensorTable,
    tensors_of,
)
from tdbg.trial.writers import Source

__all__ = ["TensorOverview", "describe", "overview", "recorded_of_roles"]

# Entries that are looked at at a time: values, and steps that have rows.
PART_ENTRIES = 1 << 18
MOST_STEPS = 1 << 16

Ints = NDArray[np.int64]
Indices = NDArray[np.intp]


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
    numbers = {name: i for i, name in enumerate(names)}
    table = tensors_of(run.sources, list(numbers))
    return [table.describe(numbers[name]) for name in names]


def overview(
    run: RunState, names: Sequence[str], mode: ModeKeys
) -> list[TensorOverview]:
    """The tensors of these names, with their steps in the count of *mode*."""
    table = tensors_of(run.sources, names)
    counts = _counted(run, table, mode)
    return [
        TensorOverview(
            table.describe(i),
            int(counts.statistics[i]),
            int(counts.values[i]),
            int(counts.first[i]) if counts.first[i] <= counts.last[i] else None,
            int(counts.last[i]) if counts.first[i] <= counts.last[i] else None,
        )
        for i in range(len(names))
    ]


def recorded_of_roles(run: RunState, mode: ModeKeys) -> dict[str, tuple[int, int]]:
    """Return of each role how much was recorded in a mode.

    Returns:
        By role the steps at which the tensor of it that was recorded most often was,
        and how many tensors of the role there are.
    """
    table = run.tensors
    counts, saved = _counted(run, table, mode), run.saved(table)
    steps = np.maximum(counts.statistics, counts.values)
    found: dict[str, tuple[int, int]] = {}
    for number in np.unique(table.roles[saved]).tolist():
        of_role = saved & (table.roles == number)
        role = role_numbered(number).name.lower()
        most, n = found.get(role, (0, 0))
        here = int(steps[of_role].max())
        found[role] = max(most, here), n + int(np.count_nonzero(of_role))
    return found


def n_elements(run: RunState, step: int) -> int:
    """Return how many elements the rows of a global step are of.

    Of a tensor that several workers have it is that of the whole.
    """
    table = run.tensors
    found = np.zeros(len(table.names), np.uint64)
    per_worker = np.isin(table.roles, [role.value for role in PER_WORKER])
    wholes = np.array([math.prod(shape) for shape in table.shapes], np.uint64)
    for source, held in zip(run.sources, table.of_sources, strict=True):
        if not source.start <= step < source.stop:
            continue
        segments = source.writer.segments.between(step, step + 1)
        signatures = map(source.writer.segments.signature, segments["signature"])
        ids = np.concatenate([np.empty(0, np.uint32), *signatures])
        at, known = held.places(ids)
        tensors, own = held.tensors[at[known]], held.n_elements[at[known]]
        shape = table.shape_of[tensors]
        sizes = np.where(per_worker[tensors] | (shape < 0), own, wholes[shape])
        of_source = np.zeros(len(found), np.uint64)
        np.add.at(of_source, tensors, sizes)
        found = np.where(per_worker, found + of_source, np.maximum(found, of_source))
    return int(found.sum())


def _counted(run: RunState, table: TensorTable, mode: ModeKeys) -> _Counts:
    counts = _Counts(len(table.names))
    pairs = zip(run.sources, table.of_sources, strict=True)
    saved = [_Saved(source, tensors) for source, tensors in pairs]
    for steps, shown in _parts(run, mode, saved):
        counts.add(steps, shown, saved)
    return counts


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

    def __init__(self, source: Source, tensors: SourceTensors) -> None:
        self._source = source
        self._tensors = tensors
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
                tensors = np.unique(self._tensors.of(ids))
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
            tensors = self._tensors.of(entries["definition"][known])
            yield tensors[tensors >= 0], places[tensors >= 0]

    def _range(self, steps: Ints) -> tuple[int, int]:
        first = max(int(steps[0]), self._source.start)
        return first, min(int(steps[-1]) + 1, self._source.stop)


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

    def __init__(self, n_tensors: int) -> None:
        self.statistics = np.zeros(n_tensors, np.int64)
        self.values = np.zeros(n_tensors, np.int64)
        self.first = np.full(n_tensors, np.iinfo(np.int64).max)
        self.last = np.full(n_tensors, np.iinfo(np.int64).min)

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
