"""Which statistics rows a writer has, without holding the rows.

The rows of a step form a *segment*: a range of row numbers and a *signature*, the
definitions of these rows in their order.  Nearly all steps share a few signatures,
so a run of millions of rows is indexed in a few bytes a step, and a row is found by
its step and definition without a search through rows.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.trial._tables import StepOrdered

if TYPE_CHECKING:
    from tdbg._core import RunReader

__all__ = ["Segments"]

# Rows read at a time: 15 MB.
CHUNK_ROWS = 1 << 17

SEGMENT_DTYPE = np.dtype(
    [("step", "i8"), ("start", "i8"), ("stop", "i8"), ("signature", "i8")]
)


class Segments:
    """The index of a writer's rows by step and definition."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._table = StepOrdered(SEGMENT_DTYPE)
        self._signatures: list[NDArray[np.uint32]] = []
        self._numbers: dict[bytes, int] = {}
        self._n_rows = 0

    def take_in(self) -> None:
        """Index the rows that have appeared since the last call."""
        total = self._reader.n_rows
        while self._n_rows < total:
            stop = min(total, self._n_rows + CHUNK_ROWS)
            rows = self._reader.rows(self._n_rows, stop)
            if not len(rows):
                return
            self._add(rows)

    def _add(self, rows: NDArray[np.void]) -> None:
        steps = np.ascontiguousarray(rows["step"])
        definitions = np.ascontiguousarray(rows["definition"])
        bounds = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(rows)]
        signatures = np.empty(len(bounds) - 1, np.int64)
        for i in range(len(signatures)):
            key = definitions[bounds[i] : bounds[i + 1]].tobytes()
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._signatures)
                self._signatures.append(np.frombuffer(key, np.uint32))
            signatures[i] = number
        segments = np.empty(len(signatures), SEGMENT_DTYPE)
        segments["step"] = steps[bounds[:-1]]
        segments["start"] = np.add(bounds[:-1], self._n_rows)
        segments["stop"] = np.add(bounds[1:], self._n_rows)
        segments["signature"] = signatures
        self._table.extend(segments)
        self._n_rows += len(rows)

    def between(self, start: int, stop: int) -> NDArray[np.void]:
        """Segments with ``start <= step < stop``, in the order of their rows."""
        found: NDArray[np.void] = self._table.data[self._table.between(start, stop)]
        return found

    def definitions(self, segments: NDArray[np.void]) -> NDArray[np.uint32]:
        """All definitions that have a row in *segments*."""
        used = [self._signatures[i] for i in np.unique(segments["signature"])]
        return np.unique(np.concatenate(used)) if used else np.empty(0, np.uint32)

    def counts(
        self, segments: NDArray[np.void], ids: NDArray[np.uint32]
    ) -> NDArray[np.int64]:
        """How many rows of *ids* each of *segments* has."""
        numbers, inverse = np.unique(segments["signature"], return_inverse=True)
        counts = [np.count_nonzero(np.isin(self._signatures[i], ids)) for i in numbers]
        return np.array(counts, np.int64)[inverse] if counts else np.empty(0, np.int64)

    def rows(self, step: int, ids: NDArray[np.uint32]) -> NDArray[np.void]:
        """The rows of *ids* at *step*."""
        parts = []
        for segment in self.between(step, step + 1):
            signature = self._signatures[segment["signature"]]
            at = np.flatnonzero(np.isin(signature, ids))
            if len(at):
                first = int(segment["start"]) + int(at[0])
                rows = self._reader.rows(first, int(segment["start"]) + int(at[-1]) + 1)
                parts.append(rows[at - at[0]])
        if not parts:
            return self._reader.rows(0, 0)
        joined: NDArray[np.void] = np.concatenate(parts) if parts[1:] else parts[0]
        return joined

    def read(
        self, segments: NDArray[np.void], ids: NDArray[np.uint32]
    ) -> Iterator[NDArray[np.void]]:
        """Yield the rows of *ids* in *segments*, a bounded number at a time."""
        if not len(segments):
            return
        wanted = int(self.counts(segments, ids).sum())
        total = int((segments["stop"] - segments["start"]).sum())
        if wanted * 8 < total:
            # Sealed shards hold their rows by definition too.
            yield from self._read_columns(segments, ids)
            return
        starts, stops = _join(segments["start"], segments["stop"])
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            for first in range(start, stop, CHUNK_ROWS):
                rows = self._reader.rows(first, min(stop, first + CHUNK_ROWS))
                yield rows[np.isin(rows["definition"], ids)]

    def _read_columns(
        self, segments: NDArray[np.void], ids: NDArray[np.uint32]
    ) -> Iterator[NDArray[np.void]]:
        steps = np.unique(segments["step"])
        if not len(ids):
            return
        rows = self._reader.column(ids.tolist())
        at = np.searchsorted(steps, rows["step"])
        at[at == len(steps)] = 0
        rows = rows[steps[at] == rows["step"]]
        for first in range(0, len(rows), CHUNK_ROWS):
            yield rows[first : first + CHUNK_ROWS]


def _join(
    starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranges with neighbors joined, so that each read is as long as it can be."""
    breaks = np.flatnonzero(starts[1:] != stops[:-1])
    return (
        np.concatenate((starts[:1], starts[breaks + 1])),
        np.concatenate((stops[breaks], stops[-1:])),
    )
