"""Which statistics rows a writer has, without holding the rows.

The rows of one record form a *segment*: a range of row numbers and a *signature*,
the definitions of these rows in their order.  Nearly all steps share a few
signatures, so whether a tensor has a row at a step is known without reading it.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tdbg._core import RunReader


__all__ = ["Growable", "HistogramIndex", "HistogramPlace", "RowBlocks", "step_records"]


# Rows read at a time: 15 MB.
CHUNK_ROWS = 1 << 17


class RowBlocks:
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
        requested = int(self.counts(segments, ids).sum())
        total = int(segments["n_rows"].sum())
        if requested * 8 < total or requested <= CHUNK_ROWS // 8:
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


Bins = tuple[NDArray[np.uint16], NDArray[np.uint64]]

#: Decoded histograms that are kept, of up to 25 KB each.
KEPT = 64


class HistogramPlace(NamedTuple):
    """A histogram as it was saved, of one call in one micro-batch."""

    call: int
    micro_batch: int
    number: int  # In the reader's table.


class HistogramIndex:
    """The histograms of a writer, by definition and step.

    Only places are held, ordered when somebody asks; a histogram is read from its
    shard when it is asked for.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        # Parts of the reader's table, each by definition and step, the longer first.
        self._parts: list[NDArray[Any]] = []
        self._n_known = 0
        self._kept: OrderedDict[int, Bins] = OrderedDict()

    def take_in(self) -> None:
        """Index the histograms that have appeared since the last call."""
        new = self._reader.histograms(self._n_known)
        if new.size == 0:
            return
        part = np.empty(new.size, PLACE)
        for name in ("definition", "step", "call", "micro_batch"):
            part[name] = new[name]
        part["number"] = np.arange(self._n_known, self._n_known + new.size)
        self._n_known += new.size
        # Each part at least twice as long as the next, so that they stay few.
        while self._parts and self._parts[-1].size < 2 * part.size:
            part = np.concatenate([self._parts.pop(), part])
        self._parts.append(part[np.lexsort((part["step"], part["definition"]))])

    def at(self, definition: int, step: int) -> list[HistogramPlace]:
        """Return the histograms of a definition at a step, in the order of arrival."""
        return [
            HistogramPlace(
                int(one["call"]), int(one["micro_batch"]), int(one["number"])
            )
            for part in self._parts
            for one in _at_step(_of_definition(part, definition), step)
        ]

    def read(self, place: HistogramPlace) -> Bins:
        """Keys and counts.

        Raises:
            StorageError: If they cannot be read.
            CorruptionError: If their checksum does not match.
        """
        found = self._kept.pop(place.number, None)
        if found is None:
            found = self._reader.read_histogram(place.number)
            if len(self._kept) >= KEPT:
                self._kept.popitem(last=False)
        self._kept[place.number] = found
        return found

    def steps(
        self, definitions: Iterable[int] | None, start: int, stop: int
    ) -> NDArray[np.int64]:
        """Steps in ``start <= step < stop`` that have one of *definitions* (None: any).

        Ascending, each once.
        """
        found = [
            part["step"]
            for whole in self._parts
            for part in (
                [whole]
                if definitions is None
                else [_of_definition(whole, number) for number in definitions]
            )
        ]
        steps = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
        return steps[(steps >= start) & (steps < stop)]


PLACE = np.dtype(
    [
        ("definition", np.int64),
        ("step", np.int64),
        ("number", np.int64),
        ("call", np.uint16),
        ("micro_batch", np.uint16),
    ],
    align=True,  # What is not aligned is copied to be searched.
)


def _of_definition(part: NDArray[Any], definition: int) -> NDArray[Any]:
    return _equal(part, part["definition"], definition)


def _at_step(part: NDArray[Any], step: int) -> NDArray[Any]:
    return _equal(part, part["step"], step)


def _equal(part: NDArray[Any], ascending: NDArray[Any], value: int) -> NDArray[Any]:
    """The entries of *part* where *ascending* is *value*."""
    first, last = (ascending.searchsorted(value, side) for side in ("left", "right"))
    return part[first:last]


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
            size = max(end, len(self._buffer) * 5 // 4)
            buffer = np.empty(size, self._buffer.dtype)
            buffer[: self._length] = self.data
            self._buffer = buffer
        self._buffer[self._length : end] = rows
        self._length = end

    def truncate(self, length: int) -> None:
        """Forget everything from *length* on."""
        self._length = min(self._length, length)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that is held."""
        return self._buffer.nbytes


# Records of steps that are read at a time: 7 MB.
PART_RECORDS = 1 << 16


def step_records(reader: RunReader, start: int = 0) -> Iterator[NDArray[np.void]]:
    """Yield the records of steps from the one of number *start* on, some at a time."""
    for first in range(start, reader.n_steps, PART_RECORDS):
        yield reader.steps(first, min(reader.n_steps, first + PART_RECORDS))
