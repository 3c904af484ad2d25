"""Statistics of recent steps: the new ones, and those that rules look back at.

Between two windows a step is kept while it holds one of the last rows of some tensor
that a rule may look back at, or one of its first; the rest is forgotten.  So what a
rule sees of the past is the same however the steps were cut into windows, and
memory does not grow with the run.

Rules that want the same tensors and look back as far share a history.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.rules.engine.block import NO_STEPS, Block, Ints, NewSteps, as_index, field_of
from tdbg.rules.table import FIELDS, Cells, Floats, Table, TensorInfo

__all__ = ["History"]

Places = slice | NDArray[np.intp]
Number = TypeVar("Number", np.int64, np.float64)


class _Series:
    """Rows of some tensors in one mode: those that are looked back at, then new ones.

    Args:
        n_tensors: How many tensors.
    """

    def __init__(self, n_tensors: int) -> None:
        self.steps = NO_STEPS
        # The first new one.
        self.start = 0
        self.ordinal = np.empty((n_tensors, 0), np.int64)
        self._old = np.empty((len(FIELDS), n_tensors, 0))
        self._block: Block | None = None
        # Of the block: which of its tensors these are.
        self._rows: Places = slice(0, 0)

    def of(self, source: NDArray[np.intp]) -> _Series:
        """Of other tensors: where each was before, or -1; with nothing new."""
        known = np.flatnonzero(source >= 0)
        result = _Series(len(source))
        result.steps, result.start = self.steps, self.start
        result.ordinal = np.zeros((len(source), self.start), np.int64)
        result.ordinal[known] = self.ordinal[source[known]]
        result._old = np.full((len(FIELDS), len(source), self.start), np.nan)
        result._old[:, known] = self._old[:, source[known]]
        return result

    def append(self, block: Block, rows: Places) -> None:
        """Take in new steps."""
        self._block, self._rows = block, rows
        self.steps = self.steps.followed_by(block.new)
        self.ordinal = _followed_by(self.ordinal, block.ordinal[rows])

    def column(self, name: str) -> Floats:
        """A field at the old and new steps."""
        old = field_of(self._old, name)
        if self._block is None:
            return old
        return _followed_by(old, self._block.column(name)[self._rows])

    def keep(self, places: NDArray[np.intp]) -> None:
        """Forget the other steps; nothing is new any more."""
        n_old = int(np.searchsorted(places, self.start))
        old = self._old[..., as_index(places[:n_old])]
        if self._block is not None:
            new = as_index(places[n_old:] - self.start)
            old = _followed_by(old, _cut(self._block.fields, self._rows, new))
        # A copy: nothing of the block is held.
        self._old = old.copy()
        self.steps = self.steps.take(places)
        self.ordinal = self.ordinal[:, places]
        self.start = len(places)
        self._block = None


class History:
    """Some tensors x old and new steps of all modes.

    Args:
        look_back: How many rows of a tensor and mode to keep.
        anchor: How many of its first rows to keep.
    """

    def __init__(self, look_back: int, anchor: int) -> None:
        self._look_back = look_back
        self._anchor = anchor
        self._tensors: tuple[TensorInfo, ...] = ()
        self._names: tuple[str, ...] = ()
        self._roles: tuple[str, ...] = ()
        self._dtypes: tuple[str, ...] = ()
        # Of a block: which of its tensors these are.
        self._rows: Places = slice(0, 0)
        self._series: dict[int, _Series] = {}
        self._tables: tuple[Table, ...] | None = None

    def of(self, tensors: Sequence[TensorInfo], rows: NDArray[np.intp]) -> History:
        """Of these tensors, which include those so far, at these rows of blocks.

        REQUIRES: ``trim`` was called since the last ``append``.
        """
        result = History(self._look_back, self._anchor)
        old = {name: i for i, name in enumerate(self._names)}
        source = np.array([old.get(t.name, -1) for t in tensors], dtype=np.intp)
        result._series = {mode: each.of(source) for mode, each in self._series.items()}
        result._tensors = tuple(tensors)
        result._names = tuple(tensor.name for tensor in tensors)
        result._roles = tuple(tensor.role for tensor in tensors)
        result._dtypes = tuple(tensor.dtype for tensor in tensors)
        result._rows = as_index(rows)
        return result

    def append(self, blocks: Mapping[int, Block]) -> None:
        """Take in new steps, by mode.

        REQUIRES: the blocks come after everything before, and hold the tensors at
        the rows that were set; ``trim`` was called since the last ones.
        """
        for mode, block in blocks.items() if self._tensors else ():
            if mode not in self._series:
                self._series[mode] = _Series(len(self._tensors))
            self._series[mode].append(block, self._rows)

    def tables(self, cells: Cells) -> tuple[Table, ...]:
        """A table for each mode, with new steps in it or not."""
        if self._tables is None:
            modes = sorted(self._series)
            self._tables = tuple(self._table(mode, cells) for mode in modes)
        return self._tables

    def release(self) -> None:
        """Nobody asks for the tables of these steps any more."""
        self._tables = None

    def trim(self) -> None:
        """Forget what is no longer looked back at."""
        self._tables = None
        for mode, series in list(self._series.items()):
            kept = self._kept(series.steps, series.ordinal)
            if len(kept):
                series.keep(kept)
            else:
                del self._series[mode]

    def _table(self, mode: int, cells: Cells) -> Table:
        series = self._series[mode]
        steps, ordinal = series.steps, series.ordinal
        present = ordinal > 0
        for array in (ordinal, present):
            array.flags.writeable = False
        return Table(
            names=self._names,
            roles=self._roles,
            steps=steps.steps,
            mode=ModeKeys(mode),
            start=series.start,
            present=present,
            usable=steps.usable,
            skipped=steps.skipped,
            ordinal=ordinal,
            columns=_reader(series),
            dtypes=self._dtypes,
            wall_ns=steps.wall_ns,
            generations=steps.generations,
            _cells=cells,
        )

    def _kept(self, steps: NewSteps, ordinal: Ints) -> NDArray[np.intp]:
        """Which of the steps are still looked back at."""
        if not self._look_back and not self._anchor:
            return np.empty(0, np.intp)
        usable = steps.usable
        needed = np.zeros(len(steps), dtype=bool)
        if self._anchor:
            needed |= ((ordinal > 0) & (ordinal <= self._anchor)).any(axis=0)
        # Of most tensors the last rows are those of the last steps.
        last = slice(max(0, len(steps) - self._look_back), len(steps))
        if usable[last].all():
            at_once = (ordinal[:, last] > 0).all(axis=1)
            needed[last] |= at_once.any()
            ordinal = ordinal[~at_once]
        present = ordinal > 0
        known = present & usable[np.newaxis, :]
        counted = np.cumsum(known[:, ::-1], axis=1, dtype=np.int32)[:, ::-1]
        later = counted - known
        needed |= (present & (later < self._look_back)).any(axis=0)
        # A step that is lost or skipped separates rows; of several one does.
        breaks = ~usable | steps.skipped
        breaks[1:] &= ~breaks[:-1]
        oldest = np.flatnonzero(needed)[:1]
        breaks[: oldest[0] if len(oldest) else None] = False
        return np.flatnonzero(needed | breaks)


def _reader(series: _Series) -> Callable[[str], Floats]:
    """Gives fields when a rule asks for them; it needs few."""
    cut: dict[str, Floats] = {}

    def read(name: str) -> Floats:
        if name not in cut:
            column = series.column(name)
            column.flags.writeable = False
            cut[name] = column
        return cut[name]

    return read


def _followed_by(old: NDArray[Number], new: NDArray[Number]) -> NDArray[Number]:
    """Along the steps; nothing is copied where there is nothing old."""
    return np.concatenate((old, new), axis=-1) if old.shape[-1] else new


def _cut(fields: Floats, rows: Places, at: Places) -> Floats:
    """Some of the rows, at some of the steps; no more is copied than that."""
    if isinstance(at, slice):
        return fields[..., at][:, rows]
    if isinstance(rows, slice):
        return fields[:, rows][..., at]
    return fields[:, rows[:, np.newaxis], at]
