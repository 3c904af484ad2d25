"""Which histograms a writer has.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tdbg._core import RunReader

__all__ = ["HistogramEntry", "HistogramIndex"]


class HistogramEntry(NamedTuple):
    """A histogram as it was saved, of one call in one micro-batch."""

    call: int
    micro_batch: int
    keys: NDArray[np.uint16]
    counts: NDArray[np.uint64]


class HistogramIndex:
    """The histograms of a writer, by definition and step.

    They are read when somebody asks for one, not when a run is opened.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._entries: dict[int, dict[int, list[HistogramEntry]]] = {}
        self._n_known = 0

    def take_in(self) -> None:
        """Index the histograms that have appeared since the last call."""
        for found in self._reader.histograms(self._n_known):
            step, definition, call, micro_batch, keys, counts = found
            self._n_known += 1
            of_definition = self._entries.setdefault(definition, {})
            entry = HistogramEntry(call, micro_batch, keys, counts)
            of_definition.setdefault(step, []).append(entry)

    def at(self, definition: int, step: int) -> list[HistogramEntry]:
        """Those of a definition at a step, in the order of arrival."""
        return self._entries.get(definition, {}).get(step, [])

    def steps(
        self, definitions: Iterable[int] | None, start: int, stop: int
    ) -> NDArray[np.int64]:
        """Steps in ``start <= step < stop`` that have one of *definitions* (None: any).

        Ascending, each once.
        """
        ids = self._entries if definitions is None else definitions
        found = {
            step
            for number in ids
            for step in self._entries.get(number, ())
            if start <= step < stop
        }
        return np.array(sorted(found), np.int64)
