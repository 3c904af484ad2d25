"""What the samples of a bin say of the machine and of the training's processes.

Thread safety: immutable values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.rules.profile import Bin, Rows
from tdbg.run.profile_tables import NOT_MEASURED, ProcessKind

__all__ = ["ProcessUse", "delta", "mean", "processes_of", "rate", "system_rows"]

# Fewer samples than this say nothing.
ENOUGH_SAMPLES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """A process of the training in a bin.

    Attributes:
        pid: Its number.
        rank: Number of the worker of the training that it belongs to.
        kind: A rank, a worker of its loader, or another one.
        running: Share of the time in which it ran; NaN: not measured.
        queued: Share of the time in which it waited for a core; NaN: not measured.
        states: Shares of the samples in each state, by the kernel's letter.
        threads: How many threads it has.
        read_rate: Bytes a second that it read from devices; NaN: not measured.
        all_read_rate: Bytes a second of all its reads; NaN: not measured.
    """

    pid: int
    rank: int
    kind: ProcessKind
    running: float
    queued: float
    states: Mapping[str, float]
    threads: int
    read_rate: float
    all_read_rate: float

    @property
    def busy(self) -> float:
        """Share of the time in which it ran or wished to run."""
        if math.isnan(self.running) or math.isnan(self.queued):
            return self.states.get("R", 0.0)
        return min(1.0, self.running + self.queued)


def system_rows(each: Bin) -> Rows | None:
    """Return the samples of the first worker's host; None if they are too few."""
    rows = each.tables["system"]
    if not len(rows):
        return None
    rows = rows[rows["worker"] == rows["worker"].min()]
    return rows if len(rows) >= ENOUGH_SAMPLES else None


def mean(rows: Rows, column: str) -> float:
    """Return the mean of a gauge over the samples that have it; NaN if none has.

    The first sample is from before the bin.
    """
    values = rows[column][1:]
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def delta(rows: Rows, column: str) -> float:
    """Return by how much a counter grew; NaN if it was not measured."""
    values = rows[column]
    known = values[values != NOT_MEASURED]
    if len(known) < 2 or known[-1] < known[0]:
        return math.nan
    return float(known[-1] - known[0])


def rate(rows: Rows, column: str) -> float:
    """Return by how much a counter grew in a second; NaN if it was not measured."""
    seconds = float(rows["time"][-1] - rows["time"][0]) / 1e9
    return delta(rows, column) / seconds if seconds > 0 else math.nan


def processes_of(each: Bin) -> tuple[ProcessUse, ...]:
    """Return the processes of the training that were sampled often enough."""
    return each.derived("processes", lambda: _processes(each.tables["process"]))


def _processes(rows: Rows) -> tuple[ProcessUse, ...]:
    found = []
    for pid in np.unique(rows["pid"]):
        own = rows[rows["pid"] == pid]
        if len(own) < ENOUGH_SAMPLES:
            continue
        letters = Counter(chr(state) for state in own["state"].tolist() if state < 128)
        kind = int(own["kind"][-1])
        is_known = kind in set(ProcessKind)
        found.append(
            ProcessUse(
                pid=int(pid),
                rank=int(own["worker"][-1]),
                kind=ProcessKind(kind) if is_known else ProcessKind.OTHER,
                running=rate(own, "run_ns") / 1e9,
                queued=rate(own, "queued_ns") / 1e9,
                states={key: n / len(own) for key, n in letters.items()},
                threads=int(own["threads"][-1]),
                read_rate=rate(own, "read_bytes"),
                all_read_rate=rate(own, "all_read_bytes"),
            )
        )
    return tuple(found)
