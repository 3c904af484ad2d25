"""A run of tdbg as the events that smdebug's readers return.

Steps, batches and spans have the times at which they happened.  Of the phases of a step
a run has the durations, not the order of each call: their events lie one after the
other in the step, in the order of ``Phase``, and have ``laid_out`` among their facts.

Hosts are ``algo-1``, ``algo-2`` and so on, as in smdebug; workers have their names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tdbg.compat.smdebug.profiler.events import (
    ProcessInfo,
    ProfilerSystemEvent,
    TraceEvent,
)
from tdbg.compat.smdebug.profiler.utils import (
    MODELTIMELINE_SUFFIX,
    PYTHONTIMELINE_SUFFIX,
)
from tdbg.modes import ModeKeys
from tdbg.run.directory import is_run
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase, core_shares, measured
from tdbg.trial import create_trial

__all__ = ["RunEvents", "has_ended", "is_run", "status_of"]

#: What smdebug calls the phases that it knows.
PHASE_NAMES: Final = {
    Phase.FORWARD: "Forward",
    Phase.BACKWARD: "Backward(post-forward)",
    Phase.DATA_WAIT: "DataWait",
}
_US = 1000
#: Totals that become rates: the table, its kind, the sums of columns by name.
_RATES: Final = (
    (
        "disks",
        "i/o",
        "",
        {
            "IOPS": ("reads", "writes"),
            "ReadThroughputInBytesPerSecond": ("read_bytes",),
            "WriteThroughputInBytesPerSecond": ("write_bytes",),
        },
    ),
    (
        "networks",
        "network",
        "Algorithm",
        {
            "ReceiveBytesPerSecond": ("received_bytes",),
            "TransmitBytesPerSecond": ("sent_bytes",),
        },
    ),
)

_Rows = NDArray[Any]
#: Type, name, dimension, the values, and the rows that they are of.
_Series = tuple[str, str, str, NDArray[np.float64], _Rows]


def status_of(path: Path) -> str:
    """Return the status of the run in a directory; "none" if there is no run."""
    return create_trial(path).status if is_run(path) else "none"


def has_ended(path: str | os.PathLike[str]) -> bool:
    """Return whether no more will be written into a directory, as far as is known."""
    return not is_run(path) or create_trial(path).loaded_all_steps


class RunEvents:
    """The events of one run.

    Args:
        path: The run's directory.

    Raises:
        StorageError: If it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._trial = create_trial(path)
        self._profile = self._trial.profile

    def system_bounds(self) -> tuple[int, int]:
        """Return when the metrics of the system begin and end, in us; 0: no metrics."""
        times = self._at(self._profile.system())
        return (int(times.min()), int(np.ceil(times.max()))) if len(times) else (0, 0)

    def trace_bounds(self) -> tuple[int, int]:
        """Return when the first step begins and the last ends, in us; 0: no steps."""
        rows = self._profile.steps()
        ends = self._at(rows)
        if not len(ends):
            return 0, 0
        return int((ends - rows["duration_ns"] / _US).min()), int(np.ceil(ends.max()))

    def system_events(
        self, first: float, last: float, event_type: str | None = None
    ) -> list[ProfilerSystemEvent]:
        """Return the metrics of the system between two times, in us, by time."""
        found: list[ProfilerSystemEvent] = []
        for node in range(len(self._profile.clock.nodes)):
            host = f"algo-{node + 1}"
            for kind, name, dimension, values, rows in self._series(node):
                if event_type not in {None, kind}:
                    continue
                times = self._at(rows)
                chosen = (first <= times) & (times <= last) & np.isfinite(values)
                found += [
                    ProfilerSystemEvent(kind, name, dimension, value, host, at / 1e6)
                    for at, value in zip(
                        times[chosen].tolist(), values[chosen].tolist(), strict=True
                    )
                ]
        return sorted(found, key=lambda event: event.timestamp)

    def trace_events(
        self, first: float, last: float, suffixes: Sequence[str] | None = None
    ) -> list[TraceEvent]:
        """Return the events that overlap two times, in us.

        Steps and batches are in the timeline of Python, phases and spans in that of the
        model.
        """
        requested: tuple[str, ...] = (PYTHONTIMELINE_SUFFIX, MODELTIMELINE_SUFFIX)
        if suffixes is not None:
            requested = tuple(
                each for each in requested if each.endswith(tuple(suffixes))
            )
        found: list[TraceEvent] = []
        if PYTHONTIMELINE_SUFFIX in requested:
            found += [*self._steps(), *self._batches()]
        if MODELTIMELINE_SUFFIX in requested:
            found += [*self._phases(), *self._spans()]
        return [
            event
            for event in found
            # A step begins where the one before it ends.
            if event.end_time > first and event.start_time <= last
        ]

    # --- The system -----------------------------------------------------------

    def _series(self, node: int) -> Iterator[_Series]:
        rows = self._profile.system(node=node)
        used = 1 - measured(rows["memory_available"]) / measured(rows["memory_total"])
        yield "memory", "MemoryUsedPercent", "", 100 * used, rows
        waits = 100 * rows["cpu_iowait"].astype(np.float64)
        yield "cpu", "cpu", "I/OWaitPercentage", waits, rows
        rows = self._profile.cores(node=node)
        for core, busy in enumerate(core_shares(rows).T if len(rows) else ()):
            yield "cpu", f"cpu{core}", "CPUUtilization", 100 * busy, rows
        for index, rows in _parts(self._profile.gpus(node=node), "index"):
            busy = 100 * rows["busy"].astype(np.float64)
            held = 100 * measured(rows["memory_used"]) / measured(rows["memory_total"])
            yield "gpu", f"gpu{index}", "GPUUtilization", busy, rows
            yield "gpu", f"gpu{index}", "GPUMemoryUtilization", held, rows
        for table, kind, dimension, rates in _RATES:
            devices = getattr(self._profile, table)(node=node)
            for _, rows in _parts(devices, "instance"):
                for name, columns in rates.items():
                    totals = sum(measured(rows[column]) for column in columns)
                    seconds = np.diff(rows["time"]) / 1e9
                    with np.errstate(divide="ignore", invalid="ignore"):
                        rate = np.diff(np.asarray(totals)) / seconds
                    yield kind, name, dimension, rate, rows[1:]

    # --- The training ---------------------------------------------------------

    def _steps(self) -> Iterator[TraceEvent]:
        for row, end, node in self._each(self._profile.steps()):
            name = f"Step:ModeKeys.{ModeKeys(int(row['mode'])).name}"
            start = end - int(row["duration_ns"])
            facts = {"step_num": str(row["global_step"])}
            yield _event(name, name, start, end, node, facts)

    def _phases(self) -> Iterator[TraceEvent]:
        for row, end, node in self._each(self._profile.steps()):
            start = end - int(row["duration_ns"])
            facts = {"step_num": str(row["global_step"]), "laid_out": True}
            for phase, column in PHASE_COLUMNS.items():
                duration = int(row[column])
                if duration > 0 and phase is not Phase.OTHER:
                    name = PHASE_NAMES.get(phase, phase.name.capitalize())
                    yield _event(name, name, start, start + duration, node, facts)
                    start += duration

    def _batches(self) -> Iterator[TraceEvent]:
        name = "DataLoaderIter::GetNext"
        for row, end, node in self._each(self._profile.workers()):
            facts = {
                "worker_id": int(row["loader_worker"]),
                "num_workers": int(row["workers"]),
                "bytes_fetched": int(row["bytes"]),
            }
            start = end - max(int(row["wait_ns"]), 0)
            yield _event(name, "DataLoaderIter", start, end, node, facts)

    def _spans(self) -> Iterator[TraceEvent]:
        for row, end, node in self._each(self._profile.spans()):
            step, name = int(row["global_step"]), str(row["name"])
            facts = {"step_num": str(step)} if step >= 0 else {}
            start = end - int(row["duration_ns"])
            yield _event(name, name, start, end, node, facts)

    # --- Times and names ------------------------------------------------------

    def _each(self, rows: _Rows) -> Iterator[tuple[Any, int, str]]:
        """Yield rows, when they were taken in ns since the epoch, and by whom."""
        workers = self._trial.workers()
        ends = self._profile.wall_ns(rows["time"]).tolist()
        for row, end in zip(rows, ends, strict=True):
            at = int(row["worker"])
            yield row, end, workers[at] if at >= 0 else "profiler"

    def _at(self, rows: _Rows) -> NDArray[np.float64]:
        """Return when rows were taken, in us since the epoch."""
        return np.asarray(self._profile.wall_ns(rows["time"]) / _US, np.float64)


def _parts(rows: _Rows, column: str) -> Iterator[tuple[Any, _Rows]]:
    for value in np.unique(rows[column]) if len(rows) else ():
        yield value, rows[rows[column] == value]


def _event(
    name: str,
    phase: str,
    start_ns: int,
    end_ns: int,
    node: str,
    facts: dict[str, Any],
) -> TraceEvent:
    start = start_ns // _US
    group = ProcessInfo(phase, phase)
    group.add_thread(node, node)
    return TraceEvent(
        start,
        name,
        end_ns // _US - start,
        phase,
        node,
        facts,
        node,
        "X",
        "tdbg",
        phase,
        0,
        node,
        group,
    )
