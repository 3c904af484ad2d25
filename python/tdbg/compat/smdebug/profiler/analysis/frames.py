"""A profile as frames of pandas.

``smdebug.profiler.analysis.utils.profiler_data_to_pandas``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from tdbg.compat.smdebug.core.utils import match_inc
from tdbg.compat.smdebug.profiler.readers import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
)
from tdbg.compat.smdebug.profiler.utils import (
    CONVERT_TO_MICROSECS,
    convert_utc_datetime_to_microseconds,
    pandas,
    us_since_epoch_to_human_readable_time,
)

SYSTEM_COLUMNS = (
    "timestamp",
    "timestamp_us",
    "value",
    "system_metric",
    "dimension",
    "nodeID",
    "type",
)
FRAMEWORK_COLUMNS = (
    "start_time",
    "end_time",
    "start_time_us",
    "end_time_us",
    "tid",
    "pid",
    "framework_metric",
    "step",
    "bytes",
    "process",
    "nodeID",
)
LOADER_COLUMNS = (
    "start_time",
    "end_time",
    "start_time_us",
    "end_time_us",
    "duration_us",
    "pid",
    "framework_metric",
    "step",
    "worker_id",
    "num_workers",
    "pin_memory",
    "process",
    "node_id",
)
_READABLE = "%Y-%m-%dT%H:%M:%S:%f"


class PandasFrame:
    """The events of a profile as frames: of smdebug's profiler, or of a run of tdbg.

    Columns that end with ``_us`` count microseconds from ``start_time``, which is when
    the metrics of the system begin; ``start_time`` and ``end_time`` are texts in UTC.

    Args:
        path: A directory as for ``LocalSystemMetricsReader``.
        use_in_memory_cache: Keep events that were read, for later calls.
        scan_interval: Microseconds after the newest file that still belong to it.

    Raises:
        MissingCollectionFiles: If there is no profile.
        SMDebugNotImplementedError: If it is on S3.
        ConfigurationError: If pandas is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        use_in_memory_cache: bool = False,
        scan_interval: int = 5_000_000_000,
    ) -> None:
        pandas()
        self.path = str(path)
        self.system_metrics_reader = LocalSystemMetricsReader(path, use_in_memory_cache)
        self.framework_metrics_reader = LocalAlgorithmMetricsReader(
            path, use_in_memory_cache
        )
        self.system_metrics: list[list[Any]] = []
        self.framework_metrics: list[list[Any]] = []
        self.interval = scan_interval
        self.start_time = (
            self.system_metrics_reader.get_timestamp_of_first_available_file()
        )

    def get_all_system_metrics(
        self, selected_system_metrics: Sequence[str] = ()
    ) -> Any:
        """Return the metrics of the system, all or those of these names."""
        system, _ = self.get_profiler_data_by_time(
            0,
            self._end(),
            selected_system_metrics=selected_system_metrics,
            get_framework_metrics=False,
        )
        return system

    def get_all_framework_metrics(
        self, selected_framework_metrics: Sequence[str] = ()
    ) -> Any:
        """Return the events of the training, all or those of these names or phases."""
        _, framework = self.get_profiler_data_by_time(
            0,
            self._end(),
            selected_framework_metrics=selected_framework_metrics,
            get_system_metrics=False,
        )
        return framework

    def get_all_dataloader_metrics(
        self, selected_framework_metrics: Sequence[str] = ()
    ) -> Any:
        """Return the events of data loaders; *selected* holds expressions."""
        events = self.framework_metrics_reader.get_events(0, self._end())
        rows = [
            _loader_row(event, self.start_time)
            for event in events
            if not selected_framework_metrics
            or match_inc(event.event_name, selected_framework_metrics)
            or match_inc(event.event_phase, selected_framework_metrics)
        ]
        return _frame(rows, LOADER_COLUMNS)

    def get_profiler_data_by_time(
        self,
        start_time_us: float,
        end_time_us: float,
        cache_metrics: bool = False,
        selected_framework_metrics: Sequence[str] = (),
        selected_system_metrics: Sequence[str] = (),
        get_framework_metrics: bool = True,
        get_system_metrics: bool = True,
    ) -> tuple[Any, Any]:
        """Return the metrics of the system, and the events, of an interval.

        Args:
            start_time_us: Microseconds since the epoch; so is *end_time_us*.
            end_time_us: The end.
            cache_metrics: Return what earlier calls with it returned, too.
            selected_framework_metrics: Only events of these names or phases.
            selected_system_metrics: Only metrics of these names.
            get_framework_metrics: False: no events.
            get_system_metrics: False: no metrics of the system.
        """
        system: list[list[Any]] = []
        framework: list[list[Any]] = []
        if get_system_metrics:
            metrics = self.system_metrics_reader.get_events(start_time_us, end_time_us)
            system = [
                _system_row(event, self.start_time)
                for event in metrics
                if not selected_system_metrics or event.name in selected_system_metrics
            ]
        if get_framework_metrics:
            events = self.framework_metrics_reader.get_events(
                start_time_us, end_time_us
            )
            framework = [
                _framework_row(event, self.start_time)
                for event in events
                if _is_selected(event, selected_framework_metrics)
            ]
        if cache_metrics:
            self.system_metrics += system
            self.framework_metrics += framework
            system, framework = self.system_metrics, self.framework_metrics
        return _frame(system, SYSTEM_COLUMNS), _frame(framework, FRAMEWORK_COLUMNS)

    def get_profiler_data_by_step(
        self, start_step: int, end_step: int, cache_metrics: bool = False
    ) -> tuple[Any, Any]:
        """Return both for the steps from *start_step* to *end_step*, included."""
        del cache_metrics
        system, framework = (
            self.get_all_system_metrics(),
            self.get_all_framework_metrics(),
        )
        framework = framework[framework["step"].between(start_step, end_step)]
        first, last = framework["start_time_us"].min(), framework["end_time_us"].max()
        return system[system["timestamp_us"].between(first, last)], framework

    def convert_datetime_to_timestamp(self, timestamp: str | datetime) -> int:
        """Convert a time as a frame spells it to microseconds since the epoch."""
        at = pandas().to_datetime(timestamp, format=_READABLE, utc=True)
        return convert_utc_datetime_to_microseconds(at)

    def get_framework_metrics_by_timesteps(
        self,
        timestep_list: Sequence[str | datetime],
        selected_framework_metrics: Sequence[str] = (),
    ) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        """Sum up the events that are active at some times.

        Returns:
            The time in each phase, as a share of the largest; the microseconds of each
            event; the microseconds of each kind of step.
        """
        times = sorted(map(self.convert_datetime_to_timestamp, timestep_list))
        if not times:
            return {}, {}, {}

        def hits(event: Any) -> int:
            return sum(event.start_time < at < event.end_time for at in times)

        phases, names = self._sums(
            times[0], times[-1], selected_framework_metrics, hits
        )
        steps = {name: phases.pop(name) for name in list(phases) if "Step" in name}
        return _of_largest(phases), names, steps

    def get_framework_metrics_by_begin_and_end_timesteps(
        self,
        begin_timestep_list: Sequence[str | datetime],
        end_timestep_list: Sequence[str | datetime],
        selected_framework_metrics: Sequence[str] = (),
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Sum up the events that overlap some intervals; steps themselves do not count.

        Returns:
            The time in each phase and in each event, as shares of the largest.
        """
        begins = list(map(self.convert_datetime_to_timestamp, begin_timestep_list))
        ends = list(map(self.convert_datetime_to_timestamp, end_timestep_list))
        if not begins or not ends:
            return {}, {}
        intervals = list(zip(begins, ends, strict=False))

        def hits(event: Any) -> int:
            if "Step" in event.event_name:
                return 0
            return sum(
                event.end_time >= begin and event.start_time <= end
                for begin, end in intervals
            )

        phases, names = self._sums(
            min(begins), max(ends), selected_framework_metrics, hits
        )
        return _of_largest(phases), _of_largest(names)

    def _sums(
        self,
        first: int,
        last: int,
        selected: Sequence[str],
        hits: Callable[[Any], int],
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Sum up the durations by phase and by name, each as often as it hits."""
        phases: dict[str, float] = {}
        names: dict[str, float] = {}
        for event in self.framework_metrics_reader.get_events(first, last):
            count = hits(event) if _is_selected(event, selected) else 0
            if not count:
                continue
            time = count * event.duration
            phases[event.event_phase] = phases.get(event.event_phase, 0) + time
            if "Step" not in event.event_name:
                names[event.event_name] = names.get(event.event_name, 0) + time
        return phases, names

    def _end(self) -> int:
        self.system_metrics_reader.refresh_event_file_list()
        self.framework_metrics_reader.refresh_event_file_list()
        return self.interval + max(
            self.system_metrics_reader.get_timestamp_of_latest_available_file(),
            self.framework_metrics_reader.get_timestamp_of_latest_available_file(),
        )


def _is_selected(event: Any, selected: Sequence[str]) -> bool:
    if not selected:
        return True
    return event.event_name in selected or event.event_phase in selected


def _of_largest(sums: dict[str, float]) -> dict[str, float]:
    largest = max(sums.values(), default=0)
    return {name: time / largest if largest else 0.0 for name, time in sums.items()}


def _frame(rows: Iterable[list[Any]], columns: Sequence[str]) -> Any:
    frame = pandas().DataFrame(rows, columns=list(columns))
    return frame[~frame.duplicated()]


def _system_row(event: Any, start: int) -> list[Any]:
    at = int(event.timestamp * CONVERT_TO_MICROSECS)
    return [
        us_since_epoch_to_human_readable_time(at),
        at - start,
        event.value,
        event.name,
        event.dimension,
        event.node_id,
        event.type,
    ]


def _times(event: Any, start: int) -> list[Any]:
    return [
        us_since_epoch_to_human_readable_time(event.start_time),
        us_since_epoch_to_human_readable_time(event.end_time),
        event.start_time - start,
        event.end_time - start,
    ]


def _name_of(event: Any) -> str:
    return str(event.arg("layer_name") or event.arg("name") or event.event_name)


def _framework_row(event: Any, start: int) -> list[Any]:
    return [
        *_times(event, start),
        event.tid,
        event.pid,
        _name_of(event),
        event.step,
        event.arg("bytes_fetched", -1),
        event.event_phase,
        event.node_id,
    ]


def _loader_row(event: Any, start: int) -> list[Any]:
    pinned = event.arg("pin_memory")
    return [
        *_times(event, start),
        event.duration,
        event.pid,
        _name_of(event),
        event.step,
        event.arg("worker_id", -1),
        event.arg("num_workers", -1),
        "NA" if pinned is None else str(pinned is True),
        event.event_phase,
        event.node_id,
    ]
