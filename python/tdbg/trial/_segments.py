"""Which statistics rows a writer has, without holding the rows.

The rows of one record form a *segment*: a range of row numbers and a *signature*,
the definitions of these rows in their order.  Nearly all steps share a few
signatures, so whether a tensor has a row at a step is known without reading it.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tdbg._core import RunReader

__all__ = ["Segments"]

# Rows read at a time: 15 MB.
CHUNK_ROWS = 1 << 17


class Segments:
    """The rows of a writer by step and definition."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._signatures: dict[int, NDArray[np.uint32]] = {}

    def between(self, start: int, stop: int) -> NDArray[np.void]:
        """Segments with ``start <= step < stop``, in the order of their rows."""
        return self._reader.segments(start, stop)

    def definitions(self, segments: NDArray[np.void]) -> NDArray[np.uint32]:
        """All definitions that have a row in *segments*."""
        used = [self.signature(i) for i in np.unique(segments["signature"]).tolist()]
        return np.unique(np.concatenate(used)) if used else np.empty(0, np.uint32)

    def counts(
        self, segments: NDArray[np.void], ids: NDArray[np.uint32]
    ) -> NDArray[np.int64]:
        """How many rows of *ids* each of *segments* has."""
        if not len(segments):
            return np.empty(0, np.int64)
        signatures = segments["signature"]
        first = int(signatures[0])
        if (signatures == first).all():
            return np.full(len(segments), self._count(first, ids))
        numbers, inverse = np.unique(signatures, return_inverse=True)
        counts = [self._count(i, ids) for i in numbers.tolist()]
        return np.array(counts, np.int64)[inverse]

    def rows(self, step: int, ids: NDArray[np.uint32]) -> NDArray[np.void]:
        """The rows of *ids* at *step*."""
        return self._reader.column(ids.tolist(), step, step + 1)

    def read(
        self, segments: NDArray[np.void], ids: NDArray[np.uint32]
    ) -> Iterator[NDArray[np.void]]:
        """Yield the rows of *ids* in *segments*, a bounded number at a time."""
        if not len(segments):
            return
        wanted = int(self.counts(segments, ids).sum())
        total = int(segments["n_rows"].sum())
        if wanted * 8 < total or wanted <= CHUNK_ROWS // 8:
            # Sealed shards hold their rows by definition too.
            yield from self._read_columns(segments, ids)
            return
        starts, stops = _join(segments["start"], segments["start"] + segments["n_rows"])
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            for first in range(start, stop, CHUNK_ROWS):
                rows = self._reader.rows(first, min(stop, first + CHUNK_ROWS))
                yield rows[np.isin(rows["definition"], ids)]

    def _read_columns(
        self, segments: NDArray[np.void], ids: NDArray[np.uint32]
    ) -> Iterator[NDArray[np.void]]:
        steps = segments["step"]
        if not len(ids):
            return
        first, last = int(steps.min()), int(steps.max())
        rows = self._reader.column(ids.tolist(), first, last + 1)
        found = rows["step"]
        if not np.array_equal(found, steps):
            steps = np.unique(steps)
            at = np.searchsorted(steps, found)
            at[at == len(steps)] = 0
            rows = rows[steps[at] == found]
        for start in range(0, len(rows), CHUNK_ROWS):
            yield rows[start : start + CHUNK_ROWS]

    def signature(self, number: int) -> NDArray[np.uint32]:
        """The definitions of the rows of a segment, in their order."""
        found = self._signatures.get(number)
        if found is None:
            found = self._signatures[number] = self._reader.signature(number)
        return found

    def _count(self, number: int, ids: NDArray[np.uint32]) -> int:
        signature = self.signature(number)
        if len(ids) == 1:
            return int(np.count_nonzero(signature == ids[0]))
        return int(np.count_nonzero(np.isin(signature, ids)))


def _join(
    starts: NDArray[np.uint64], stops: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Ranges with neighbors joined, so that each read is as long as it can be."""
    breaks = np.flatnonzero(starts[1:] != stops[:-1])
    return (
        np.concatenate((starts[:1], starts[breaks + 1])),
        np.concatenate((stops[breaks], stops[-1:])),
    )
