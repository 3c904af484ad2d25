"""What was read of new steps, once for all rules.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.rules.source import ColumnSource
from tdbg.rules.table import NOT_FINITE, Bools, Floats

__all__ = [
    "NO_STEPS",
    "Block",
    "Ints",
    "NewSteps",
    "Ordinals",
    "as_index",
    "not_finite",
]

Ints = NDArray[np.int64]


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

    def number(self, new: NewSteps, present: Bools) -> Ints:
        """Which row of its tensor and mode each is, from 1; 0 where there is none."""
        ordinal = np.zeros(present.shape, dtype=np.int64)
        for mode in np.unique(new.modes).tolist():
            of_mode = as_index(np.flatnonzero(new.modes == mode))
            there = present[:, of_mode]
            counted = np.cumsum(there, axis=1, dtype=np.int64)
            counted += self._before(mode)[:, np.newaxis]
            self._counts[mode] = counted[:, -1].copy()
            if not there.all():
                counted *= there
            ordinal[:, of_mode] = counted
        return ordinal

    def _before(self, mode: int) -> Ints:
        if mode not in self._counts:
            self._counts[mode] = np.zeros(self._n_tensors, np.int64)
        return self._counts[mode]


class Block:
    """Tensors x new steps.

    Args:
        new: The steps.
        columns: The rows at those of them that have any.
        ordinals: Numbers the rows.
    """

    def __init__(
        self, new: NewSteps, columns: ColumnSource, ordinals: Ordinals
    ) -> None:
        self.new = new
        self._source = columns
        self._at = as_index(np.searchsorted(new.steps, columns.steps))
        self._columns: dict[str, Floats] = {}
        self.present = np.zeros((len(columns.names), len(new)), dtype=bool)
        self.present[:, self._at] = columns.present
        self.ordinal = ordinals.number(new, self.present)

    def column(self, name: str) -> Floats:
        """One field of the rows; NaN where there is none."""
        column = self._columns.get(name)
        if column is None:
            derived = name == NOT_FINITE
            column = not_finite(self.column) if derived else self._read(name)
            self._columns[name] = column
        return column

    def _read(self, name: str) -> Floats:
        read = self._source.column(name)
        if read.shape == self.present.shape:
            return read
        column = np.full(self.present.shape, np.nan)
        column[:, self._at] = read
        return column


def not_finite(column: Callable[[str], Floats]) -> Floats:
    """How many elements of each row are NaN or infinite."""
    return column("nan") + column("positive_infinity") + column("negative_infinity")


def as_index(places: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Ascending places, as a slice if they follow each other: that needs no copy."""
    if not len(places):
        return slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return slice(first, last + 1)
    return places
