"""The rows of new steps, read once for all rules.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.rules.table import NOT_FINITE, Bools, Floats
from tdbg.stats.row_fields import FIELDS, NOT_FINITE_COUNTS

if TYPE_CHECKING:
    from tdbg.trial import ScalarSeries

__all__ = [
    "NO_STEPS",
    "SCALAR",
    "Block",
    "Ints",
    "NewSteps",
    "Ordinals",
    "add_scalars",
    "as_index",
    "field_of",
]


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSteps:
    """Attributes of new steps: one entry for each step, ascending."""

    steps: Ints
    modes: Ints
    usable: Bools
    skipped: Bools
    wall_ns: Ints
    generations: Ints

    def __len__(self) -> int:
        return len(self.steps)

    def by_mode(self) -> Iterator[NewSteps]:
        """Yield the steps of each mode."""
        for mode in np.unique(self.modes).tolist():
            yield self.take(np.flatnonzero(self.modes == mode))

    def take(self, which: NDArray[np.intp] | slice) -> NewSteps:
        """Return some of the steps."""
        return NewSteps(
            steps=self.steps[which],
            modes=self.modes[which],
            usable=self.usable[which],
            skipped=self.skipped[which],
            wall_ns=self.wall_ns[which],
            generations=self.generations[which],
        )

    def followed_by(self, other: NewSteps) -> NewSteps:
        """Return these steps and those of *other* after them."""
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
    """Numbers the rows of each tensor and mode from 1."""

    def __init__(self) -> None:
        self._counts: dict[int, Ints] = {}
        self._n_tensors = 0

    def set_tensors(self, source: NDArray[np.intp]) -> None:
        """Change the tensors; *source* has the old index of each, or -1."""
        known = np.flatnonzero(source >= 0)
        for mode, counts in self._counts.items():
            moved = np.zeros(len(source), np.int64)
            moved[known] = counts[source[known]]
            self._counts[mode] = moved
        self._n_tensors = len(source)

    def number(self, mode: int, present: Bools) -> Ints:
        """Return the number of each row; 0 where there is no row."""
        counted = np.cumsum(present, axis=1, dtype=np.int64)
        if mode in self._counts:
            counted += self._counts[mode][:, np.newaxis]
        self._counts[mode] = counted[:, -1].copy()
        counted *= present
        return counted


class Block:
    """Rows of all tensors at the new steps of one mode.

    Args:
        new: The steps, at least one.
        fields: Fields x tensors x steps; NaN where there is no row.
        present: Tensors x steps: where there is a row.
        ordinals: Numbers the rows.

    Attributes:
        new: The steps.
        fields: As given.
        ordinal: Number of each row of its tensor and mode, from 1; 0: no row.
    """

    def __init__(
        self, new: NewSteps, fields: Floats, present: Bools, ordinals: Ordinals
    ) -> None:
        self.new = new
        self.fields = fields
        self.ordinal = ordinals.number(int(new.modes[0]), present)
        self._not_finite: Floats | None = None

    def column(self, name: str) -> Floats:
        """Return one field of the rows, or ``NOT_FINITE``, which is computed once."""
        if name != NOT_FINITE:
            return field_of(self.fields, name)
        if self._not_finite is None:
            self._not_finite = field_of(self.fields, name)
        return self._not_finite


def field_of(fields: Floats, name: str) -> Floats:
    """Return one of the fields, or the number of elements that are NaN or infinite."""
    if name != NOT_FINITE:
        column: Floats = fields[FIELDS.index(name)]
        return column
    nan, plus, minus = (fields[FIELDS.index(each)] for each in NOT_FINITE_COUNTS)
    not_finite: Floats = nan + plus + minus
    return not_finite


def as_index(indices: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Return ascending indices as a slice if they are consecutive (saves a copy)."""
    if not len(indices):
        return slice(0, 0)
    first, last = int(indices[0]), int(indices[-1])
    if last - first + 1 == len(indices):
        return slice(first, last + 1)
    return indices


# The role of scalars, which have no rows of statistics on disk.
SCALAR = "scalar"


def add_scalars(
    fields: Floats,
    present: Bools,
    names: Sequence[str],
    steps: NDArray[np.int64],
    scalars: Mapping[str, ScalarSeries],
) -> None:
    """Fill in the rows of scalars: each is a tensor of one element.

    Args:
        fields: Fields x names x steps, to fill in.
        present: Names x steps: where there is a row, to fill in.
        names: Tensors and scalars.
        steps: The steps, ascending.
        scalars: The scalars by name.
    """
    for i, name in enumerate(names):
        series = scalars.get(name)
        if series is None:
            continue
        at = np.flatnonzero(np.isin(series.steps, steps))
        # The last of several values at a step counts.
        found, back = np.unique(series.steps[at][::-1], return_index=True)
        where = np.searchsorted(steps, found)
        values = series.values[at][::-1][back]
        present[i, where] = True
        for column, field in zip(fields, FIELDS, strict=True):
            column[i, where] = _field(field, values)


def _field(name: str, value: Floats) -> Floats:
    """One field of the statistics of a single element."""
    if name == "count":
        return np.ones_like(value)
    if name == "nan":
        return np.where(np.isnan(value), 1.0, 0.0)
    if name == "positive_infinity":
        return np.where(value == np.inf, 1.0, 0.0)
    if name == "negative_infinity":
        return np.where(value == -np.inf, 1.0, 0.0)
    if name == "zero":
        return np.where(value == 0, 1.0, 0.0)
    finite = np.where(np.isfinite(value), value, np.nan)
    if name in ("min", "max", "mean"):
        return finite
    if name == "m2":
        return np.zeros_like(value)
    return np.abs(finite)
