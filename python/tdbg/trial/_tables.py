"""Append-only tables in memory, with a look-up by step.

A writer's steps almost always ascend, and then a look-up is a binary search in
place; where they do not, an order is made once and kept until the table grows.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Growable", "StepOrdered"]


class Growable:
    """A one-dimensional array that is appended to in amortized constant time."""

    def __init__(self, dtype: Any) -> None:
        self._buffer: NDArray[Any] = np.empty(0, dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def data(self) -> NDArray[Any]:
        """View of what is there; to be read before the next change."""
        return self._buffer[: self._length]

    def extend(self, rows: NDArray[Any]) -> None:
        """Append *rows*."""
        end = self._length + len(rows)
        if end > len(self._buffer):
            buffer = np.empty(max(end, 2 * len(self._buffer)), self._buffer.dtype)
            buffer[: self._length] = self.data
            self._buffer = buffer
        self._buffer[self._length : end] = rows
        self._length = end

    def truncate(self, length: int) -> None:
        """Forget everything from *length* on."""
        self._length = min(self._length, length)


class StepOrdered:
    """A table with a field ``step``, kept in the order of arrival."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._rows = Growable(dtype)
        # Beside the rows, because a binary search wants contiguous memory.
        self._steps = Growable(np.int64)
        self._ascending = True
        self._order: NDArray[np.intp] | None = None
        self._sorted: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def data(self) -> NDArray[np.void]:
        """All rows, in the order of arrival."""
        return self._rows.data

    @property
    def steps(self) -> NDArray[np.int64]:
        """The steps of all rows, in the order of arrival."""
        return self._steps.data

    def extend(self, rows: NDArray[np.void]) -> None:
        """Append *rows*."""
        if not len(rows):
            return
        steps = np.ascontiguousarray(rows["step"], dtype=np.int64)
        if self._ascending:
            last = self._steps.data[-1] if len(self._steps) else steps[0]
            self._ascending = bool(last <= steps[0] and np.all(np.diff(steps) >= 0))
        self._rows.extend(rows)
        self._steps.extend(steps)
        self._order = self._sorted = None

    def between(self, start: int, stop: int) -> NDArray[np.intp]:
        """Indices of the rows with ``start <= step < stop``, ascending."""
        if self._ascending:
            first, last = np.searchsorted(self._steps.data, (start, stop))
            return np.arange(first, max(first, last), dtype=np.intp)
        if self._order is None or self._sorted is None:
            self._order = np.argsort(self._steps.data, kind="stable")
            self._sorted = self._steps.data[self._order]
        first, last = np.searchsorted(self._sorted, (start, stop))
        return np.sort(self._order[first : max(first, last)])

    def at(self, step: int) -> NDArray[np.intp]:
        """Indices of the rows of *step*, ascending."""
        return self.between(step, step + 1)
