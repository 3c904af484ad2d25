"""Statistics of recent steps: the new ones, and those that rules look back at.

Between two windows a step is kept while it is one of the last rows of some tensor
that a rule may look back at, or one of its first; the rest is forgotten.  So what a
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
from tdbg.rules.window import FIELDS, Bools, Floats, Table, TensorInfo

__all__ = ["History", "NewSteps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSteps:
    """Steps to judge: one entry each, ascending."""

    steps: NDArray[np.int64]
    modes: NDArray[np.int64]
    usable: Bools
    skipped: Bools

    def __len__(self) -> int:
        return len(self.steps)


class History:
    """Columns of statistics, tensors x steps of all modes.

    Args:
        look_back: How many rows of a tensor and mode to keep.
        anchor: How many of its first rows to keep.
    """

    def __init__(self, look_back: int, anchor: int) -> None:
        self._look_back = look_back
        self._anchor = anchor
        self._tensors: tuple[TensorInfo, ...] = ()
        self._start = 0
        # One entry a step.
        self._steps = np.empty(0, np.int64)
        self._modes = np.empty(0, np.int64)
        self._usable = np.empty(0, np.bool_)
        self._skipped = np.empty(0, np.bool_)
        # Tensors x steps.
        self._ordinal = np.empty((0, 0), np.int64)
        self._columns: dict[str, Floats] = {name: np.empty((0, 0)) for name in FIELDS}
        # Rows of each tensor so far, by mode.
        self._rows: dict[int, NDArray[np.int64]] = {}

    def set_tensors(self, tensors: Sequence[TensorInfo]) -> None:
        """From now on the tables hold these, which include those they held."""
        old = {tensor.name: i for i, tensor in enumerate(self._tensors)}
        self._tensors = tuple(tensors)
        source = np.array([old.get(t.name, -1) for t in tensors], dtype=np.intp)
        known = np.flatnonzero(source >= 0)
        n = len(tensors)

        def moved(array: NDArray[np.int64]) -> NDArray[np.int64]:
            result = np.zeros((n, *array.shape[1:]), array.dtype)
            result[known] = array[source[known]]
            return result

        self._ordinal = moved(self._ordinal)
        self._rows = {mode: moved(rows) for mode, rows in self._rows.items()}
        for name, column in self._columns.items():
            wider = np.full((n, column.shape[1]), np.nan)
            wider[known] = column[source[known]]
            self._columns[name] = wider

    def append(self, new: NewSteps, statistics: StatisticsSource) -> None:
        """Forget what is no longer looked back at; then take in new steps.

        REQUIRES: *new* comes after everything before, and *statistics* holds the
        tensors that were set, in their order, at no other steps than those of *new*.
        """
        self._trim()
        self._start = len(self._steps)
        at = np.searchsorted(new.steps, statistics.steps)
        shape = (len(self._tensors), len(new))
        present = np.zeros(shape, dtype=bool)
        present[:, at] = statistics.present
        ordinal = np.zeros(shape, dtype=np.int64)
        for mode in np.unique(new.modes).tolist():
            of_mode = new.modes == mode
            before = self._rows.setdefault(mode, np.zeros(shape[0], np.int64))
            counted = before[:, np.newaxis] + np.cumsum(present[:, of_mode], axis=1)
            ordinal[:, of_mode] = np.where(present[:, of_mode], counted, 0)
            self._rows[mode] = counted[:, -1] if counted.size else before
        self._steps = np.concatenate((self._steps, new.steps))
        self._modes = np.concatenate((self._modes, new.modes))
        self._usable = np.concatenate((self._usable, new.usable))
        self._skipped = np.concatenate((self._skipped, new.skipped))
        self._ordinal = np.concatenate((self._ordinal, ordinal), axis=1)
        for name in FIELDS:
            column = np.full(shape, np.nan)
            column[:, at] = getattr(statistics, name)
            column[~present] = np.nan
            self._columns[name] = np.concatenate((self._columns[name], column), axis=1)

    def tables(
        self,
        selects: Callable[[TensorInfo], bool],
        value: Callable[[str, int], NDArray[np.generic] | None],
    ) -> tuple[Table, ...]:
        """What one rule sees: a table for each mode with new steps."""
        rows = [i for i, tensor in enumerate(self._tensors) if selects(tensor)]
        if not rows:
            return ()
        result = []
        for mode in np.unique(self._modes[self._start :]).tolist():
            steps = np.flatnonzero(self._modes == mode)
            cells = np.ix_(np.array(rows, dtype=np.intp), steps)
            ordinal = self._ordinal[cells]
            result.append(
                Table(
                    names=tuple(self._tensors[i].name for i in rows),
                    roles=tuple(self._tensors[i].role for i in rows),
                    steps=self._steps[steps],
                    mode=ModeKeys(mode),
                    start=int(np.searchsorted(steps, self._start)),
                    present=ordinal > 0,
                    usable=self._usable[steps],
                    skipped=self._skipped[steps],
                    ordinal=ordinal,
                    columns=_cut(self._columns, cells),
                    value=value,
                )
            )
        return tuple(result)

    def _trim(self) -> None:
        keep = np.zeros(len(self._steps), dtype=bool)
        for mode in np.unique(self._modes).tolist():
            steps = np.flatnonzero(self._modes == mode)
            ordinal = self._ordinal[:, steps]
            usable = self._usable[steps]
            present = ordinal > 0
            known = present & usable[np.newaxis, :]
            counted = np.cumsum(known[:, ::-1], axis=1, dtype=np.int64)[:, ::-1]
            later = counted - known.astype(np.int64)
            needed = present & (later < self._look_back)
            needed |= present & (ordinal <= self._anchor)
            # A step that is not usable separates rows; of several in a row one does.
            breaks = ~usable
            breaks[1:] &= usable[:-1]
            oldest = np.flatnonzero(needed.any(axis=0))[:1]
            breaks[: oldest[0] if len(oldest) else None] = False
            keep[steps] = needed.any(axis=0) | breaks
        self._steps = self._steps[keep]
        self._modes = self._modes[keep]
        self._usable = self._usable[keep]
        self._skipped = self._skipped[keep]
        self._ordinal = self._ordinal[:, keep]
        self._columns = {name: c[:, keep] for name, c in self._columns.items()}


def _cut(
    columns: dict[str, Floats], cells: tuple[NDArray[np.intp], ...]
) -> Callable[[str], Floats]:
    """Cut fields out when a rule asks for them; it needs few of them."""
    return lambda name: columns[name][cells]
