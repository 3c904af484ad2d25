"""Statistics of recent steps: the new ones, and those that a rule looks back at.

Between two windows a step is kept while it holds one of the last rows of some tensor
that the rule may look back at, or one of its first; the rest is forgotten.  So what a
rule sees of the past is the same however the steps were cut into windows, and
memory does not grow with the run.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.rules.source import StatisticsSource
from tdbg.rules.table import FIELDS, Bools, Cells, Floats, Table, TensorInfo

__all__ = ["Block", "History", "NewSteps"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSteps:
    """Steps to judge: one entry each, ascending."""

    steps: Ints
    modes: Ints
    usable: Bools
    skipped: Bools
    wall_ns: Ints

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
        )

    def followed_by(self, other: NewSteps) -> NewSteps:
        """These, then others."""
        return NewSteps(
            steps=np.concatenate((self.steps, other.steps)),
            modes=np.concatenate((self.modes, other.modes)),
            usable=np.concatenate((self.usable, other.usable)),
            skipped=np.concatenate((self.skipped, other.skipped)),
            wall_ns=np.concatenate((self.wall_ns, other.wall_ns)),
        )


NO_STEPS = NewSteps(
    steps=np.empty(0, np.int64),
    modes=np.empty(0, np.int64),
    usable=np.empty(0, np.bool_),
    skipped=np.empty(0, np.bool_),
    wall_ns=np.empty(0, np.int64),
)


class Block:
    """What was read of new steps, once for all rules: tensors x steps.

    Args:
        new: The steps.
        statistics: The rows at those of them that have any.
    """

    def __init__(self, new: NewSteps, statistics: StatisticsSource) -> None:
        self.new = new
        self._statistics = statistics
        self._at = np.searchsorted(new.steps, statistics.steps)
        self._columns: dict[str, Floats] = {}
        self.present = np.zeros((len(statistics.names), len(new)), dtype=bool)
        self.present[:, self._at] = statistics.present

    def column(self, name: str) -> Floats:
        """One field of the rows; NaN where there is none."""
        column = self._columns.get(name)
        if column is None:
            column = np.full(self.present.shape, np.nan)
            column[:, self._at] = getattr(self._statistics, name)
            column[~self.present] = np.nan
            self._columns[name] = column
        return column


class History:
    """What one rule sees: its tensors x old and new steps of all modes.

    Args:
        look_back: How many rows of a tensor and mode to keep.
        anchor: How many of its first rows to keep.
    """

    def __init__(self, look_back: int, anchor: int) -> None:
        self._look_back = look_back
        self._anchor = anchor
        self._tensors: tuple[TensorInfo, ...] = ()
        # Of the block: which of its tensors are this rule's.
        self._rows = np.empty(0, np.intp)
        self._block: Block | None = None
        # Old and new steps; the first new one is at _start.
        self._steps = NO_STEPS
        self._start = 0
        self._ordinal = np.empty((0, 0), np.int64)
        # Old steps only.
        self._columns: dict[str, Floats] = {name: np.empty((0, 0)) for name in FIELDS}
        # Rows of each tensor so far, by mode.
        self._counts: dict[int, Ints] = {}

    def set_tensors(
        self, tensors: Sequence[TensorInfo], rows: NDArray[np.intp]
    ) -> None:
        """From now on these, which include those so far, at these rows of blocks."""
        self._trim()
        old = {tensor.name: i for i, tensor in enumerate(self._tensors)}
        source = np.array([old.get(t.name, -1) for t in tensors], dtype=np.intp)
        known = np.flatnonzero(source >= 0)

        def moved(array: Ints) -> Ints:
            result = np.zeros((len(tensors), *array.shape[1:]), array.dtype)
            result[known] = array[source[known]]
            return result

        self._ordinal = moved(self._ordinal)
        self._counts = {mode: moved(counts) for mode, counts in self._counts.items()}
        for name, column in self._columns.items():
            wider = np.full((len(tensors), column.shape[1]), np.nan)
            wider[known] = column[source[known]]
            self._columns[name] = wider
        self._tensors = tuple(tensors)
        self._rows = rows

    def append(self, block: Block) -> None:
        """Forget what is no longer looked back at; then take in new steps.

        REQUIRES: the block comes after everything before, and holds the rule's
        tensors at the rows that were set.
        """
        self._trim()
        new = block.new
        present = block.present[self._rows]
        ordinal = np.zeros(present.shape, dtype=np.int64)
        for mode in np.unique(new.modes).tolist():
            of_mode = new.modes == mode
            before = self._counts.setdefault(mode, np.zeros(len(self._rows), np.int64))
            counted = before[:, np.newaxis] + np.cumsum(present[:, of_mode], axis=1)
            ordinal[:, of_mode] = np.where(present[:, of_mode], counted, 0)
            self._counts[mode] = counted[:, -1]
        self._block = block
        self._steps = self._steps.followed_by(new)
        self._ordinal = np.concatenate((self._ordinal, ordinal), axis=1)

    def tables(self, cells: Cells) -> tuple[Table, ...]:
        """A table for each mode, with new steps in it or not."""
        if not self._tensors:
            return ()
        result = []
        for mode in np.unique(self._steps.modes).tolist():
            at = np.flatnonzero(self._steps.modes == mode)
            steps = self._steps.take(at)
            ordinal = self._ordinal[:, at]
            result.append(
                Table(
                    names=tuple(tensor.name for tensor in self._tensors),
                    roles=tuple(tensor.role for tensor in self._tensors),
                    steps=steps.steps,
                    mode=ModeKeys(mode),
                    start=int(np.searchsorted(at, self._start)),
                    present=ordinal > 0,
                    usable=steps.usable,
                    skipped=steps.skipped,
                    ordinal=ordinal,
                    columns=self._reader(at),
                    dtypes=tuple(tensor.dtype for tensor in self._tensors),
                    wall_ns=steps.wall_ns,
                    _cells=cells,
                )
            )
        return tuple(result)

    def _reader(self, at: NDArray[np.intp]) -> Callable[[str], Floats]:
        """Gives fields at some steps when a rule asks for them; it needs few."""
        cut: dict[str, Floats] = {}

        def read(name: str) -> Floats:
            if name not in cut:
                cut[name] = self._field(name, at)
            return cut[name]

        return read

    def _field(self, name: str, at: NDArray[np.intp]) -> Floats:
        old = self._columns[name][:, at[at < self._start]]
        if self._block is None:
            return old
        new = at[at >= self._start] - self._start
        cells = np.ix_(self._rows, new)
        return np.concatenate((old, self._block.column(name)[cells]), axis=1)

    def _trim(self) -> None:
        """Make what is still looked back at the old steps."""
        if self._block is None:
            return
        keep = np.flatnonzero(self._is_kept())
        self._columns = {name: self._field(name, keep) for name in FIELDS}
        self._steps = self._steps.take(keep)
        self._ordinal = self._ordinal[:, keep]
        self._start = len(keep)
        self._block = None

    def _is_kept(self) -> Bools:
        keep = np.zeros(len(self._steps), dtype=bool)
        for mode in np.unique(self._steps.modes).tolist():
            at = np.flatnonzero(self._steps.modes == mode)
            ordinal = self._ordinal[:, at]
            usable = self._steps.usable[at]
            present = ordinal > 0
            known = present & usable[np.newaxis, :]
            counted = np.cumsum(known[:, ::-1], axis=1, dtype=np.int64)[:, ::-1]
            later = counted - known.astype(np.int64)
            needed = present & (later < self._look_back)
            needed |= present & (ordinal <= self._anchor)
            of_any = needed.any(axis=0)
            # A step that is lost or skipped separates rows; of several one does.
            breaks = ~usable | self._steps.skipped[at]
            breaks[1:] &= ~breaks[:-1]
            oldest = np.flatnonzero(of_any)[:1]
            breaks[: oldest[0] if len(oldest) else None] = False
            keep[at] = of_any | breaks
        return keep
