"""Statistics of recent steps: the new ones, and those that rules look back at.

Between two windows a step is kept while it holds one of the last ``lookback`` rows of
some tensor, or one of its ``head_rows`` first rows; the rest is dropped.  So a rule
sees the same past however the steps were cut into windows, and memory does not grow
with the run.

Rules with the same tensors, lookback and head rows share a history.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.rules.engine.block import NO_STEPS, Block, Ints, NewSteps, as_index, field_of
from tdbg.rules.table import Floats, Table, TensorInfo
from tdbg.rules.value_cache import ValueCache
from tdbg.rules.window import UnitTable
from tdbg.stats.row_fields import FIELDS

__all__ = ["PREFIX", "History", "UnitHistory"]


Indices = slice | NDArray[np.intp]
Number = TypeVar("Number", np.int64, np.float64)


class _Series:
    """Rows of some tensors in one mode: old ones that rules look back at, then new.

    Args:
        n_tensors: How many tensors.
    """

    def __init__(self, n_tensors: int) -> None:
        self.steps = NO_STEPS
        # Index of the first new step.
        self.start = 0
        self.ordinal = np.empty((n_tensors, 0), np.int64)
        self._old = np.empty((len(FIELDS), n_tensors, 0))
        self._block: Block | None = None
        # Index of these tensors in the block.
        self._rows: Indices = slice(0, 0)

    def of(self, source: NDArray[np.intp]) -> _Series:
        """Return the old rows of other tensors; *source*: old index of each, or -1."""
        known = np.flatnonzero(source >= 0)
        result = _Series(len(source))
        result.steps, result.start = self.steps, self.start
        result.ordinal = np.zeros((len(source), self.start), np.int64)
        result.ordinal[known] = self.ordinal[source[known]]
        result._old = np.full((len(FIELDS), len(source), self.start), np.nan)
        result._old[:, known] = self._old[:, source[known]]
        return result

    def append(self, block: Block, rows: Indices) -> None:
        """Add new steps."""
        self._block, self._rows = block, rows
        self.steps = self.steps.followed_by(block.new)
        self.ordinal = _followed_by(self.ordinal, block.ordinal[rows])

    def column(self, name: str) -> Floats:
        """Return a field at the old and new steps."""
        old = field_of(self._old, name)
        if self._block is None:
            return old
        return _followed_by(old, self._block.column(name)[self._rows])

    def keep(self, indices: NDArray[np.intp]) -> None:
        """Drop all other steps, and count the rest as old."""
        n_old = int(np.searchsorted(indices, self.start))
        old = self._old[..., as_index(indices[:n_old])]
        if self._block is not None:
            new = as_index(indices[n_old:] - self.start)
            old = _followed_by(old, _cut(self._block.fields, self._rows, new))
        # A copy, so that the block is freed.
        self._old = old.copy()
        self.steps = self.steps.take(indices)
        self.ordinal = self.ordinal[:, indices]
        self.start = len(indices)
        self._block = None


class History:
    """Rows of some tensors at old and new steps, of all modes.

    Args:
        lookback: How many rows of a tensor and mode to keep.
        head_rows: How many of its first rows to keep.
    """

    def __init__(self, lookback: int, head_rows: int) -> None:
        self._lookback = lookback
        self._head_rows = head_rows
        self._tensors: tuple[TensorInfo, ...] = ()
        self._names: tuple[str, ...] = ()
        self._roles: tuple[str, ...] = ()
        self._dtypes: tuple[str, ...] = ()
        self._shapes: tuple[tuple[int, ...], ...] = ()
        # Index of these tensors in blocks.
        self._rows: Indices = slice(0, 0)
        self._series: dict[int, _Series] = {}
        self._tables: tuple[Table, ...] | None = None

    def of(self, tensors: Sequence[TensorInfo], rows: NDArray[np.intp]) -> History:
        """Return the history of more tensors, which are at these rows of blocks.

        REQUIRES: ``trim`` was called since the last ``append``.
        """
        result = History(self._lookback, self._head_rows)
        old = {name: i for i, name in enumerate(self._names)}
        source = np.array([old.get(t.name, -1) for t in tensors], dtype=np.intp)
        result._series = {mode: each.of(source) for mode, each in self._series.items()}
        result._tensors = tuple(tensors)
        result._names = tuple(tensor.name for tensor in tensors)
        result._roles = tuple(tensor.role for tensor in tensors)
        result._dtypes = tuple(tensor.dtype for tensor in tensors)
        result._shapes = tuple(tensor.shape for tensor in tensors)
        result._rows = as_index(rows)
        return result

    def append(self, blocks: Mapping[int, Block]) -> None:
        """Add new steps, by mode.

        REQUIRES: the steps come after all steps so far; the blocks hold the tensors
        at the rows given to ``of``; ``trim`` was called since the last ``append``.
        """
        for mode, block in blocks.items() if self._tensors else ():
            if mode not in self._series:
                self._series[mode] = _Series(len(self._tensors))
            self._series[mode].append(block, self._rows)

    def tables(self, values: ValueCache) -> tuple[Table, ...]:
        """Return a table for each mode, with new steps or without."""
        if self._tables is None:
            modes = sorted(self._series)
            self._tables = tuple(self._table(mode, values) for mode in modes)
        return self._tables

    def release(self) -> None:
        """Free the tables of the current window."""
        self._tables = None

    def trim(self) -> None:
        """Drop the steps that no rule looks back at any more."""
        self._tables = None
        for mode, series in list(self._series.items()):
            kept = self._kept(series.steps, series.ordinal)
            if len(kept):
                series.keep(kept)
            else:
                del self._series[mode]

    def _table(self, mode: int, values: ValueCache) -> Table:
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
            shapes=self._shapes,
            wall_ns=steps.wall_ns,
            generations=steps.generations,
            _values=values,
        )

    def _kept(self, steps: NewSteps, ordinal: Ints) -> NDArray[np.intp]:
        """Index of the steps that a rule may still look back at."""
        if not self._lookback and not self._head_rows:
            return np.empty(0, np.intp)
        usable = steps.usable
        needed = np.zeros(len(steps), dtype=bool)
        if self._head_rows:
            needed |= ((ordinal > 0) & (ordinal <= self._head_rows)).any(axis=0)
        # Most tensors have a row at each of the last steps: count them at once.
        last = slice(max(0, len(steps) - self._lookback), len(steps))
        if usable[last].all():
            at_once = (ordinal[:, last] > 0).all(axis=1)
            needed[last] |= at_once.any()
            ordinal = ordinal[~at_once]
        present = ordinal > 0
        known = present & usable[np.newaxis, :]
        counted = np.cumsum(known[:, ::-1], axis=1, dtype=np.int32)[:, ::-1]
        later = counted - known
        needed |= (present & (later < self._lookback)).any(axis=0)
        # A lost or skipped step breaks a streak; one of several is enough.
        breaks = ~usable | steps.skipped
        breaks[1:] &= ~breaks[:-1]
        oldest = np.flatnonzero(needed)[:1]
        breaks[: oldest[0] if len(oldest) else None] = False
        return np.flatnonzero(needed | breaks)


def _reader(series: _Series) -> Callable[[str], Floats]:
    """Reads fields on demand: a rule needs few."""
    cut: dict[str, Floats] = {}

    def read(name: str) -> Floats:
        if name not in cut:
            column = series.column(name)
            column.flags.writeable = False
            cut[name] = column
        return cut[name]

    return read


def _followed_by(old: NDArray[Number], new: NDArray[Number]) -> NDArray[Number]:
    """Concatenate along the steps; no copy if there are no old ones."""
    return np.concatenate((old, new), axis=-1) if old.shape[-1] else new


def _cut(fields: Floats, rows: Indices, at: Indices) -> Floats:
    """Cut out some rows at some steps, with a single copy."""
    if isinstance(at, slice):
        return fields[..., at][:, rows]
    if isinstance(rows, slice):
        return fields[:, rows][..., at]
    return fields[:, rows[:, np.newaxis], at]


PREFIX = "unit/"
# New unit summaries of a window, in bytes.
MAX_BYTES = 32 << 20
# Steps of the first window, before the size of a step's summaries is known.
FIRST_STEPS = 100


@dataclass(slots=True)
class _UnitSeries:
    """The summaries of one tensor in one mode, oldest first."""

    steps: list[int] = field(default_factory=list)
    usable: list[bool] = field(default_factory=list)
    counts: list[NDArray[np.uint64]] = field(default_factory=list)
    start: int = 0

    def trim(self, lookback: int) -> None:
        """Keep the last *lookback* usable summaries, and what is between them."""
        usable = np.flatnonzero(self.usable)
        first = int(usable[-lookback]) if 0 < lookback <= len(usable) else 0
        if lookback == 0:
            first = len(self.steps)
        del self.steps[:first], self.usable[:first], self.counts[:first]
        self.start = len(self.steps)

    def table(self, name: str, mode: ModeKeys) -> UnitTable:
        counts = np.stack(self.counts)
        counts.flags.writeable = False
        return UnitTable(
            name=name.removeprefix(PREFIX),
            steps=np.array(self.steps, dtype=np.int64),
            mode=mode,
            start=self.start,
            usable=np.array(self.usable, dtype=bool),
            active=counts[:, 0],
            out_of_range=counts[:, 1],
            count=counts[:, 2],
        )

    def append(self, step: int, usable: bool, counts: NDArray[np.uint64]) -> None:
        if self.counts and self.counts[-1].shape != counts.shape:
            # The layer was replaced: its old summaries do not compare.
            self.steps, self.usable, self.counts, self.start = [], [], [], 0
        self.steps.append(step)
        self.usable.append(usable)
        self.counts.append(counts)


class UnitHistory:
    """Unit summaries by tensor and mode.

    Attributes:
        lookback: How many summaries of a tensor and mode to keep.
    """

    def __init__(self) -> None:
        self.lookback = 0
        self._series: dict[tuple[str, int], _UnitSeries] = {}
        self._tables: dict[str, list[UnitTable]] | None = None
        self._bytes_per_step = 0.0

    @property
    def max_steps(self) -> int:
        """How many steps fit into a window, by the size of those before."""
        if not self._series:
            return FIRST_STEPS
        return max(1, int(MAX_BYTES / max(1.0, self._bytes_per_step)))

    def trim(self) -> None:
        """Drop the summaries that no rule looks back at any more."""
        for series in self._series.values():
            series.trim(self.lookback)
        self._tables = None

    def append(
        self,
        new: NewSteps,
        tensors: Sequence[TensorInfo],
        read: Callable[[str], Iterable[tuple[int, NDArray[Any]]]],
    ) -> None:
        """Add new steps.

        Args:
            new: The steps.
            tensors: The unit summaries to read.
            read: Yields step and summary (active, out of range and all: 3 x units)
                of a tensor, for the new steps that have one.
        """
        n_bytes = 0
        for tensor in tensors:
            for step, found in read(tensor.name):
                if found.ndim != 2 or found.shape[0] != 3:
                    continue
                counts = found.astype(np.uint64, copy=False)
                i = int(np.searchsorted(new.steps, step))
                key = (tensor.name, int(new.modes[i]))
                series = self._series.setdefault(key, _UnitSeries())
                series.append(step, bool(new.usable[i]), counts)
                n_bytes += counts.nbytes
        self._bytes_per_step = n_bytes / len(new)

    def tables(self, names: Container[str]) -> tuple[UnitTable, ...]:
        """Return a table for each of the tensors and modes that has new steps."""
        if not self._series:
            return ()
        if self._tables is None:
            self._tables = {}
            for (name, mode), series in sorted(self._series.items(), key=_by_name):
                if series.start < len(series.steps):
                    table = series.table(name, ModeKeys(mode))
                    self._tables.setdefault(name, []).append(table)
        return tuple(
            table
            for name, tables in self._tables.items()
            if name in names
            for table in tables
        )


def _by_name(item: tuple[tuple[str, int], _UnitSeries]) -> tuple[str, int]:
    return item[0]
