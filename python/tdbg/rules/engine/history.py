"""Statistics of recent steps: the new ones, and those that rules look back at.

Between two windows a step is kept while it holds one of the last rows of some tensor
that a rule may look back at, or one of its first; the rest is forgotten.  So what a
rule sees of the past is the same however the steps were cut into windows, and
memory does not grow with the run.

Rules that want the same tensors and look back as far share a history.  Of the past
it keeps the fields that were asked for; another one is read again when it is.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.rules.engine.block import NO_STEPS, Block, Ints, as_index
from tdbg.rules.table import Bools, Cells, Floats, Table, TensorInfo

__all__ = ["History"]

Places = slice | NDArray[np.intp]
# Gives a field of tensors at steps of the past, read from the run.
Reread = Callable[[Sequence[str], Ints, str], Floats]


class History:
    """Some tensors x old and new steps of all modes.

    Args:
        look_back: How many rows of a tensor and mode to keep.
        anchor: How many of its first rows to keep.
        reread: Reads what was not kept.
    """

    def __init__(self, look_back: int, anchor: int, reread: Reread) -> None:
        self._look_back = look_back
        self._anchor = anchor
        self._reread = reread
        self._tensors: tuple[TensorInfo, ...] = ()
        self._names: tuple[str, ...] = ()
        self._roles: tuple[str, ...] = ()
        self._dtypes: tuple[str, ...] = ()
        # Of a block: which of its tensors these are.
        self._rows: Places = slice(0, 0)
        self._block: Block | None = None
        # Old and new steps; the first new one is at _start.
        self._steps = NO_STEPS
        self._start = 0
        self._ordinal = np.empty((0, 0), np.int64)
        # Of old steps only; and which fields were ever asked for.
        self._columns: dict[str, Floats] = {}
        self._asked: set[str] = set()
        # Those of the last block, by mode.
        self._tables: dict[int, Table] | None = None

    def of(self, tensors: Sequence[TensorInfo], rows: NDArray[np.intp]) -> History:
        """Of these tensors, which include those so far, at these rows of blocks.

        REQUIRES: ``trim`` was called since the last ``append``.
        """
        result = History(self._look_back, self._anchor, self._reread)
        old = {name: i for i, name in enumerate(self._names)}
        source = np.array([old.get(t.name, -1) for t in tensors], dtype=np.intp)
        known = np.flatnonzero(source >= 0)
        result._ordinal = np.zeros((len(tensors), len(self._steps)), np.int64)
        result._ordinal[known] = self._ordinal[source[known]]
        for name, column in self._columns.items():
            wider = np.full(result._ordinal.shape, np.nan)
            wider[known] = column[source[known]]
            result._columns[name] = wider
        result._asked = set(self._asked)
        result._steps, result._start = self._steps, self._start
        result._tensors = tuple(tensors)
        result._names = tuple(tensor.name for tensor in tensors)
        result._roles = tuple(tensor.role for tensor in tensors)
        result._dtypes = tuple(tensor.dtype for tensor in tensors)
        result._rows = as_index(rows)
        return result

    def append(self, block: Block) -> None:
        """Take in new steps.

        REQUIRES: the block comes after everything before, and holds the tensors at
        the rows that were set; ``trim`` was called since the last one.
        """
        self._block = block
        ordinal = block.ordinal[self._rows]
        self._steps = self._steps.followed_by(block.new)
        self._ordinal = (
            np.concatenate((self._ordinal, ordinal), axis=1) if self._start else ordinal
        )

    def tables(self, cells: Cells) -> tuple[Table, ...]:
        """A table for each mode, with new steps in it or not."""
        if not self._tensors:
            return ()
        if self._tables is None:
            modes = np.unique(self._steps.modes).tolist()
            self._tables = {mode: self._table(mode, cells) for mode in modes}
        return tuple(self._tables.values())

    def release(self) -> None:
        """Nobody asks for the tables of this block any more."""
        self._tables = None

    def trim(self) -> None:
        """Forget what is no longer looked back at."""
        if self._block is None:
            return
        keep = self._kept()
        self._columns = {
            name: self._field(name, keep) for name in self._asked if len(keep)
        }
        self._steps = self._steps.take(keep)
        self._ordinal = self._ordinal[:, keep]
        self._start = len(keep)
        self._block = None
        self._tables = None

    def _table(self, mode: int, cells: Cells) -> Table:
        of_mode = self._steps.modes == mode
        at = as_index(np.flatnonzero(of_mode))
        steps = self._steps.take(at)
        ordinal = self._ordinal[:, at]
        present = ordinal > 0
        for array in (ordinal, present):
            array.flags.writeable = False
        return Table(
            names=self._names,
            roles=self._roles,
            steps=steps.steps,
            mode=ModeKeys(mode),
            start=int(np.count_nonzero(of_mode[: self._start])),
            present=present,
            usable=steps.usable,
            skipped=steps.skipped,
            ordinal=ordinal,
            columns=self._reader(at),
            dtypes=self._dtypes,
            wall_ns=steps.wall_ns,
            generations=steps.generations,
            _cells=cells,
        )

    def _reader(self, at: Places) -> Callable[[str], Floats]:
        """Gives fields at some steps when a rule asks for them; it needs few."""
        cut: dict[str, Floats] = {}

        def read(name: str) -> Floats:
            if name not in cut:
                self._asked.add(name)
                column = self._field(name, at)
                column.flags.writeable = False
                cut[name] = column
            return cut[name]

        return read

    def _field(self, name: str, at: Places) -> Floats:
        """A field at these of the old and new steps."""
        if self._block is None or (not isinstance(at, slice) and not len(at)):
            return np.empty((len(self._tensors), 0))
        new = self._block.column(name)
        if self._start == 0:
            return _cut(new, self._rows, at)
        if isinstance(at, slice):
            at = np.arange(at.start, at.stop, dtype=np.intp)
        n_old = int(np.searchsorted(at, self._start))
        if n_old == len(at):
            return self._old(name)[:, as_index(at)]
        result = np.empty((len(self._tensors), len(at)))
        result[:, :n_old] = self._old(name)[:, as_index(at[:n_old])]
        result[:, n_old:] = _cut(new, self._rows, as_index(at[n_old:] - self._start))
        return result

    def _old(self, name: str) -> Floats:
        """A field at the steps of the past."""
        if name not in self._columns:
            steps = self._steps.steps[: self._start]
            column = self._reread(self._names, steps, name)
            column[self._ordinal[:, : self._start] == 0] = np.nan
            self._columns[name] = column
        return self._columns[name]

    def _kept(self) -> NDArray[np.intp]:
        """Which of the steps are still looked back at."""
        if not self._look_back and not self._anchor:
            return np.empty(0, np.intp)
        keep = np.zeros(len(self._steps), dtype=bool)
        for mode in np.unique(self._steps.modes).tolist():
            at = np.flatnonzero(self._steps.modes == mode)
            keep[at] = self._kept_of_mode(at)
        return np.flatnonzero(keep)

    def _kept_of_mode(self, at: NDArray[np.intp]) -> Bools:
        usable = self._steps.usable[at]
        ordinal = self._ordinal[:, as_index(at)]
        needed = np.zeros(len(at), dtype=bool)
        if self._anchor:
            needed |= ((ordinal > 0) & (ordinal <= self._anchor)).any(axis=0)
        # Mostly the last rows of all tensors are those of the last steps.
        last = slice(max(0, len(at) - self._look_back), len(at))
        if (ordinal[:, last] > 0).all() and usable[last].all():
            needed[last] = True
        else:
            present = ordinal > 0
            known = present & usable[np.newaxis, :]
            counted = np.cumsum(known[:, ::-1], axis=1, dtype=np.int32)[:, ::-1]
            later = counted - known
            needed |= (present & (later < self._look_back)).any(axis=0)
        # A step that is lost or skipped separates rows; of several one does.
        breaks = ~usable | self._steps.skipped[at]
        breaks[1:] &= ~breaks[:-1]
        oldest = np.flatnonzero(needed)[:1]
        breaks[: oldest[0] if len(oldest) else None] = False
        return needed | breaks


def _cut(column: Floats, rows: Places, at: Places) -> Floats:
    """Some of the rows, at some of the steps; no more is copied than that."""
    if isinstance(at, slice):
        return column[:, at][rows]
    return column[rows, at] if isinstance(rows, slice) else column[np.ix_(rows, at)]
