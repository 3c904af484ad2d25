"""Which histograms a writer has.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tdbg._core import RunReader

__all__ = ["HistogramIndex", "HistogramPlace"]

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
        """Those of a definition at a step, in the order of arrival."""
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
