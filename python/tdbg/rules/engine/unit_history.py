"""Unit summaries of recent steps: the new ones, and those that rules look back at.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.rules.engine.block import NewSteps
from tdbg.rules.table import TensorInfo
from tdbg.rules.window import UnitTable

__all__ = ["PREFIX", "UnitHistory"]

PREFIX = "unit/"
# New summaries that are held at once.
MAX_BYTES = 32 << 20
# Steps that are taken in before it is known how much there is of each.
FIRST_STEPS = 100

# A step, and counts of active, beyond and all: 3 x units.
Summary = tuple[int, NDArray[np.uint64]]


@dataclass(slots=True)
class _Series:
    """The summaries of one tensor in one mode, oldest first."""

    steps: list[int] = field(default_factory=list)
    usable: list[bool] = field(default_factory=list)
    counts: list[NDArray[np.uint64]] = field(default_factory=list)
    start: int = 0

    def trim(self, look_back: int) -> None:
        """Keep what may be looked back at: so many usable ones."""
        usable = np.flatnonzero(self.usable)
        first = int(usable[-look_back]) if 0 < look_back <= len(usable) else 0
        if look_back == 0:
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
            beyond=counts[:, 1],
            count=counts[:, 2],
        )

    def append(self, step: int, usable: bool, counts: NDArray[np.uint64]) -> None:
        if self.counts and self.counts[-1].shape != counts.shape:
            # The layer has become another one.
            self.steps, self.usable, self.counts, self.start = [], [], [], 0
        self.steps.append(step)
        self.usable.append(usable)
        self.counts.append(counts)


class UnitHistory:
    """Unit summaries by tensor and mode.

    Attributes:
        look_back: How many summaries of a tensor and mode to keep.
    """

    def __init__(self) -> None:
        self.look_back = 0
        self._series: dict[tuple[str, int], _Series] = {}
        self._tables: dict[str, list[UnitTable]] | None = None
        self._bytes_per_step = 0.0

    @property
    def max_steps(self) -> int:
        """How many steps may be taken in at once, by what those before have held."""
        if not self._series:
            return FIRST_STEPS
        return max(1, int(MAX_BYTES / max(1.0, self._bytes_per_step)))

    def trim(self) -> None:
        """Forget what is no longer looked back at."""
        for series in self._series.values():
            series.trim(self.look_back)
        self._tables = None

    def append(
        self,
        new: NewSteps,
        tensors: Sequence[TensorInfo],
        read: Callable[[str], Iterable[tuple[int, NDArray[Any]]]],
    ) -> None:
        """Take in new steps.

        Args:
            new: The steps.
            tensors: Those to read.
            read: Gives step and summary (3 x units) of a tensor, where there is one
                among the new steps.
        """
        n_bytes = 0
        for tensor in tensors:
            for step, found in read(tensor.name):
                if found.ndim != 2 or found.shape[0] != 3:
                    continue
                counts = found.astype(np.uint64, copy=False)
                i = int(np.searchsorted(new.steps, step))
                key = (tensor.name, int(new.modes[i]))
                series = self._series.setdefault(key, _Series())
                series.append(step, bool(new.usable[i]), counts)
                n_bytes += counts.nbytes
        self._bytes_per_step = n_bytes / len(new)

    def tables(self, names: Container[str]) -> tuple[UnitTable, ...]:
        """What one rule sees: a table for each tensor and mode with new steps."""
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


def _by_name(item: tuple[tuple[str, int], _Series]) -> tuple[str, int]:
    return item[0]
