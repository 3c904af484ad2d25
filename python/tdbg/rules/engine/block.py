"""What was read of new steps, once for all rules.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.rules.source import ColumnSource
from tdbg.rules.table import FIELDS, NOT_FINITE, Bools, Floats

__all__ = [
    "NO_STEPS",
    "Block",
    "Ints",
    "NewSteps",
    "Ordinals",
    "as_index",
    "field_of",
]

Ints = NDArray[np.int64]

NOT_FINITE_FIELDS = ("nan", "positive_infinity", "negative_infinity")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSteps:
    """Steps to judge: one entry each, ascending."""

    steps: Ints
    modes: Ints
    usable: Bools
    skipped: Bools
    wall_ns: Ints
    generations: Ints

    def __len__(self) -> int:
        return len(self.steps)

    def by_mode(self) -> Iterator[NewSteps]:
        """Those of each mode."""
        for mode in np.unique(self.modes).tolist():
            yield self.take(np.flatnonzero(self.modes == mode))

    def take(self, which: NDArray[np.intp] | slice) -> NewSteps:
        """Some of them."""
        return NewSteps(
            steps=self.steps[which],
            modes=self.modes[which],
            usable=self.usable[which],
            skipped=self.skipped[which],
            wall_ns=self.wall_ns[which],
            generations=self.generations[which],
        )

    def followed_by(self, other: NewSteps) -> NewSteps:
        """These, then others."""
        return NewSteps(
            steps=np.concatenate((self.steps, other.steps)),
            modes=np.concatenate((self.modes, other.modes)),
            usable=np.concatenate((self.usable, other.usable)),
            skipped=np.concatenate((self.skipped, other.skipped)),
            wall_ns=np.concatenate((self.wall_ns, other.wall_ns)),
            generations=np.concatenate((self.generations, other.generations)),
        )


NO_STEPS = NewSteps(
    steps=np.empty(0, np.int64),
    modes=np.empty(0, np.int64),
    usable=np.empty(0, np.bool_),
    skipped=np.empty(0, np.bool_),
    wall_ns=np.empty(0, np.int64),
    generations=np.empty(0, np.int64),
)


class Ordinals:
    """Counts the rows of each tensor in each mode."""

    def __init__(self) -> None:
        self._counts: dict[int, Ints] = {}
        self._n_tensors = 0

    def set_tensors(self, source: NDArray[np.intp]) -> None:
        """From now on other tensors: where each was before, or -1."""
        known = np.flatnonzero(source >= 0)
        for mode, counts in self._counts.items():
            moved = np.zeros(len(source), np.int64)
            moved[known] = counts[source[known]]
            self._counts[mode] = moved
        self._n_tensors = len(source)

    def number(self, mode: int, present: Bools) -> Ints:
        """Which row of its tensor and mode each is, from 1; 0 where there is none."""
        counted = np.cumsum(present, axis=1, dtype=np.int64)
        if mode in self._counts:
            counted += self._counts[mode][:, np.newaxis]
        self._counts[mode] = counted[:, -1].copy()
        counted *= present
        return counted


class Block:
    """Tensors x new steps of one mode.

    Args:
        new: The steps, one at least.
        columns: The rows at those.
        ordinals: Numbers the rows.

    Attributes:
        new: The same.
        fields: Fields x tensors x steps; NaN where there is no row.
        ordinal: Which row of its tensor and mode each is, from 1; 0: there is none.
    """

    def __init__(
        self, new: NewSteps, columns: ColumnSource, ordinals: Ordinals
    ) -> None:
        self.new = new
        self.fields = columns.fields
        self.ordinal = ordinals.number(int(new.modes[0]), columns.present)
        self._not_finite: Floats | None = None

    def column(self, name: str) -> Floats:
        """One field of the rows, or what is derived of them for all rules alike."""
        if name != NOT_FINITE:
            return field_of(self.fields, name)
        if self._not_finite is None:
            self._not_finite = field_of(self.fields, name)
        return self._not_finite


def field_of(fields: Floats, name: str) -> Floats:
    """One of the fields of rows, or how many elements are NaN or infinite."""
    if name != NOT_FINITE:
        column: Floats = fields[FIELDS.index(name)]
        return column
    nan, plus, minus = (fields[FIELDS.index(each)] for each in NOT_FINITE_FIELDS)
    not_finite: Floats = nan + plus + minus
    return not_finite


def as_index(places: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Ascending places, as a slice if they follow each other: that needs no copy."""
    if not len(places):
        return slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return slice(first, last + 1)
    return places
