"""One timeline of a profile, in Chrome's format.

``smdebug.profiler.analysis.utils.merge_timelines``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from tdbg.compat.smdebug.core.base import get_logger
from tdbg.compat.smdebug.profiler.events import ProfilerSystemEvent, TraceEvent
from tdbg.compat.smdebug.profiler.readers import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
)
from tdbg.compat.smdebug.profiler.utils import (
    CONVERT_TO_MICROSECS,
    MERGEDTIMELINE_SUFFIX,
    get_node_id,
    local_path_of,
)
from tdbg.errors import StorageError

#: The order of the groups, by a part of their names.
ORDER: Final = (
    "Step:",
    "Forward",
    "Backward",
    "DataIterator",
    "Dataset",
    "/device",
    "/host",
    "gpu_functions",
    "cpu_functions",
    "Horovod",
)
#: What smdebug filtered the metrics of the system by.
ALL_METRICS: Final[Mapping[str, Any]] = MappingProxyType({"lowgpu": ()})
_LOW_GPU = 85
_SYSTEM = "sys_metrics"
_LOW = "sys_metrics_bottlenecks"


class MergeUnit(Enum):
    """The unit of the bounds of a merged timeline."""

    TIME = "time"
    STEP = "step"


class MergedTimeline:
    """Merges what a profile has into one file, for Chrome's or Perfetto's viewer.

    Args:
        path: A directory as for ``LocalSystemMetricsReader``.
        file_suffix_filter: Only timelines that end with one of these; None: all.
        output_directory: Where the file is written; None: *path*.

    Raises:
        MissingCollectionFiles: If there is no profile.
        SMDebugNotImplementedError: If one of the paths is on S3.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        file_suffix_filter: Sequence[str] | None = None,
        output_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self.path = str(path)
        self.out_dir = local_path_of(
            path if output_directory is None else output_directory
        )
        self.file_suffix_filter = file_suffix_filter
        self.framework_metrics_reader = LocalAlgorithmMetricsReader(path)
        self._system_metrics_reader = LocalSystemMetricsReader(path)
        self.bytes_written = 0

    def file_name(self, end_timestamp_in_us: float) -> str:
        """Return the path of the file that ends at a time."""
        name = f"{round(end_timestamp_in_us)}_{get_node_id()}_{MERGEDTIMELINE_SUFFIX}"
        return str(self.out_dir / name)

    def merge_timeline(
        self,
        start: float,
        end: float,
        unit: MergeUnit | str = MergeUnit.TIME,
        sys_metrics_filter: Mapping[str, Any] | None = ALL_METRICS,
    ) -> str:
        """Write the events between two times, or from one step to the start of another.

        Args:
            start: Microseconds since the epoch, or a step.
            end: As *start*.
            unit: Which of both.
            sys_metrics_filter: Anything: metrics of the system are counters, and times
                at which a GPU is used below 85 % have a mark.  Empty or None: neither.

        Returns:
            The path of the file.

        Raises:
            StorageError: If it cannot be written.
        """
        if MergeUnit(unit) is MergeUnit.STEP:
            reader = self.framework_metrics_reader
            start, end = reader._get_time_interval_for_step(int(start), int(end))
        events = self.framework_metrics_reader.get_events(
            start, end, file_suffix_filter=self.file_suffix_filter
        )
        metrics: list[ProfilerSystemEvent] = []
        if sys_metrics_filter:
            metrics = self._system_metrics_reader.get_events(start, end)
        path = self.file_name(end)
        self._write(path, [*_of_training(events), *_of_system(metrics)])
        get_logger().info("wrote the merged timeline to %s", path)
        return path

    def _write(self, path: str, rows: Iterable[dict[str, Any]]) -> None:
        in_order = sorted(rows, key=lambda row: row.get("ts", -1))
        text = "[\n" + ",\n".join(map(json.dumps, in_order)) + "\n]"
        try:
            self.out_dir.mkdir(parents=True, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - a text
                self.bytes_written += file.write(text)
        except OSError as error:
            raise StorageError.of(error, "write", path) from error


def _named(kind: str, pid: int, name: str, tid: Any = None) -> dict[str, Any]:
    row = {"name": kind, "ph": "M", "pid": pid, "args": {"name": name}}
    return row if tid is None else {**row, "tid": tid}


def _sorted_at(pid: int) -> dict[str, Any]:
    args = {"sort_index": pid}
    return {"name": "process_sort_index", "ph": "M", "pid": pid, "args": args}


def _rank(name: str) -> tuple[int, str]:
    place = (at for at, part in enumerate(ORDER) if part in name)
    return next(place, len(ORDER)), name


def _of_training(events: Sequence[TraceEvent]) -> Iterator[dict[str, Any]]:
    groups = sorted({event.event_phase for event in events}, key=_rank)
    number = {name: place for place, name in enumerate(groups, start=1)}
    for name, pid in number.items():
        yield _named("process_name", pid, name)
        yield _sorted_at(pid)
    threads: dict[tuple[int, Any], str] = {}
    for event in events:
        pid, info = number[event.event_phase], event.process_info
        if info is not None and info.has_thread(event.phase_tid):
            called = info.get_thread_info(event.phase_tid).thread_name
            threads.setdefault((pid, event.tid), called)
        row: dict[str, Any] = json.loads(event.to_json())
        yield {**row, "pid": pid}
    for (pid, tid), name in threads.items():
        yield _named("thread_name", pid, name, tid)


def _of_system(metrics: Sequence[ProfilerSystemEvent]) -> Iterator[dict[str, Any]]:
    if not metrics:
        return
    counters, marks = 1_000_000, 1_000_001
    for pid, name in ((counters, _SYSTEM), (marks, _LOW)):
        yield _named("process_name", pid, name)
        yield _sorted_at(pid)
    for event in metrics:
        at = int(event.timestamp * CONVERT_TO_MICROSECS)
        name = f"{event.name}_{event.dimension}_{event.node_id}"
        value = {"value": event.value}
        yield {"name": name, "ph": "C", "pid": counters, "ts": at, "args": value}
        if event.dimension == "GPUUtilization" and event.value < _LOW_GPU:
            mark = {"name": _LOW, "ph": "i", "s": "t", "pid": marks, "tid": 0}
            yield {**mark, "ts": at, "args": {name: event.value}}
