"""Statistics of a job, its steps, devices and loaders, from frames of a profile.

``smdebug.profiler.analysis.utils.pandas_data_analysis`` and
``pytorch_dataloader_analysis``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np

from tdbg.compat.smdebug.core.base import get_logger
from tdbg.compat.smdebug.profiler.analysis.frames import PandasFrame
from tdbg.compat.smdebug.profiler.utils import pandas

_STEPS = "Step:ModeKeys"
_FIRST_STEPS = ("Step:ModeKeys.TRAIN", "Step:ModeKeys.GLOBAL")
_QUANTILES = (0.5, 0.95, 0.99)
_READABLE = "%Y-%m-%dT%H:%M:%S:%f"
#: A duration of so many medians and more is an outlier.
OUTLIER = 2


class StatsBy(Enum):
    """A grouping of statistics: by mode of the steps, name, or group of events."""

    TRAINING_PHASE = "training_phase"
    FRAMEWORK_METRICS = "framework_metric"
    PROCESS = "process"


class Resource(Enum):
    """A part of the system."""

    CPU = "cpu"
    GPU = "gpu"
    IO = "i/o"
    NETWORK = "network"
    MEMORY = "memory"


class JobStats(dict[str, Any]):
    """Statistics of a job by their names; shown as a table."""

    def __repr__(self) -> str:
        return repr(pandas().DataFrame({"value": pandas().Series(dict(self))}))


class PandasFrameAnalysis:
    """Answers questions about the two frames of a ``PandasFrame``.

    Events that name no step get the step that they lie in, or -1.

    Args:
        system_df: ``PandasFrame.get_all_system_metrics()``.
        framework_df: ``PandasFrame.get_all_framework_metrics()``.

    Raises:
        ConfigurationError: If pandas is not installed.
    """

    def __init__(self, system_df: Any, framework_df: Any) -> None:
        pandas()
        self.sys_metrics_df = system_df.copy()
        self.framework_metrics_df = framework_df.copy()
        self.framework_metrics_df["duration_us"] = (
            self.framework_metrics_df["end_time_us"]
            - self.framework_metrics_df["start_time_us"]
        )
        self.step_time_df = self._step_times()
        self._number_events()

    def get_job_statistics(self) -> JobStats | None:
        """Return start, end and duration, and how they divide into three parts.

        Initialization lasts until the first step of the training begins, the training
        loop until the last event ends.  Durations are microseconds.  None: the profile
        lacks metrics of the system, or a first step.
        """
        system, framework = self.sys_metrics_df, self.framework_metrics_df
        is_step = framework["framework_metric"].isin(_FIRST_STEPS)
        first = framework[is_step & (framework["step"] >= 0)]
        if system.empty or first.empty:
            get_logger().info("the profile has no metrics of the system, or no step")
            return None
        first = first.sort_values("start_time_us").iloc[0]
        last = framework.loc[framework["end_time_us"].idxmax()]
        begin, end = system["timestamp_us"].min(), system["timestamp_us"].max()
        duration = end - begin
        stats = JobStats(
            start_time=system["timestamp"].min(),
            end_time=system["timestamp"].max(),
            job_duration=duration,
            training_loop_start=first["start_time"],
            training_loop_end=last["end_time"],
            training_loop_duration=last["end_time_us"] - first["start_time_us"],
            initialization=first["start_time_us"] - begin,
            finalization=end - last["end_time_us"],
        )
        for part in ("initialization", "training_loop", "finalization"):
            length = stats["training_loop_duration" if "loop" in part else part]
            stats[f"{part}_%"] = 100 * length / duration if duration else np.nan
        return stats

    def get_step_statistics(self, by: Any = StatsBy.TRAINING_PHASE) -> Any:
        """Return mean, least, greatest and three percentiles of durations, in us.

        Returns:
            A frame with the columns of *by*, ``duration_mean_us``, ``duration_min_us``,
            ``duration_max_us``, ``duration_p50_us``, ``duration_p95_us`` and
            ``duration_p99_us``.  None: *by* is no ``StatsBy``.
        """
        if not isinstance(by, StatsBy):
            get_logger().info("%r should be of type StatsBy", by)
            return None
        frame, column = self.framework_metrics_df, by.value
        if by is StatsBy.TRAINING_PHASE:
            column = StatsBy.FRAMEWORK_METRICS.value
            frame = frame[frame[column].str.contains(_STEPS, regex=False)]
        spans = (
            frame.groupby(["step", column])
            .agg({"start_time_us": "min", "end_time_us": "max"})
            .reset_index()
        )
        spans["duration"] = spans["end_time_us"] - spans["start_time_us"]
        stats = _described(spans.groupby(column)["duration"]).reset_index()
        names = [f"duration_{each}_us" for each in _STATISTICS]
        stats.columns = [by.value, *names]
        return stats

    def get_utilization_stats(
        self,
        resource: Any = None,
        by: Any = None,
        phase: Sequence[str] | str | None = None,
    ) -> Any:
        """Return how parts of the system were used, by node, and by phase if *by* says.

        Returns:
            A frame with ``Resource``, ``nodeID`` and ``utilization_mean``, ``_min``,
            ``_max``, ``_p50``, ``_p95``, ``_p99``; by training phase, also
            ``Training_phase``.  None: an argument has the wrong type.
        """
        if by is not None and not isinstance(by, StatsBy):
            get_logger().info("%r should be of type StatsBy", by)
            return None
        requested = _resources(resource, tuple(Resource))
        if requested is None:
            return None
        by_phase = by is StatsBy.TRAINING_PHASE
        if by_phase and not self._mark_phases(phase):
            return None
        keys = ["phase", "nodeID"] if by_phase else ["nodeID"]
        system, found = self.sys_metrics_df, []
        for each in requested:
            rows = system[system["type"].str.contains(each.value, regex=False)]
            if rows.empty:
                continue
            stats = _described(rows.groupby(keys)["value"]).reset_index()
            stats.insert(0, "Resource", each.value)
            found.append(stats)
        shown = ["Training_phase", "nodeID"] if by_phase else ["nodeID"]
        columns = ["Resource", *shown, *(f"utilization_{each}" for each in _STATISTICS)]
        if not found:
            return pandas().DataFrame(columns=columns)
        frame = pandas().concat(found, ignore_index=True)
        frame.columns = columns
        return frame

    def get_device_usage_stats(
        self,
        device: Any = None,
        utilization_ranges: Any = None,
    ) -> Any:
        """Count measurements in ranges of utilization, by default of cores and GPUs.

        Args:
            device: A resource or several.
            utilization_ranges: Pairs of bounds, both included; a value counts in the
                first that holds it.  By default 90 to 100, 10 to 90 and 0 to 10.

        Returns:
            A frame with ``type``, ``nodeID`` and a column for each range; empty if an
            argument makes no sense.
        """
        requested = _resources(device, (Resource.CPU, Resource.GPU))
        ranges = (
            [(90, 100), (10, 90), (0, 10)]
            if utilization_ranges is None
            else utilization_ranges
        )
        is_list = isinstance(ranges, list) and len(ranges) > 0
        if requested is None or not is_list or any(len(each) != 2 for each in ranges):
            get_logger().info(
                "%r: give a list of pairs, such as [(0, 50), (50, 100)]", ranges
            )
            return pandas().DataFrame()
        types = {each.value for each in requested}
        rows = self.sys_metrics_df[self.sys_metrics_df["type"].isin(types)].copy()
        values = rows["value"].to_numpy(dtype=float)
        holds = [(low <= values) & (values <= high) for low, high in ranges]
        rows["range"] = np.select(holds, range(len(ranges)), -1)
        rows = rows[rows["range"] >= 0]
        if rows.empty:
            return pandas().DataFrame()
        counts = rows.pivot_table(
            index=["type", "nodeID"], columns="range", aggfunc="size", fill_value=0
        )
        counts.columns = [ranges[each] for each in counts.columns]
        return counts.reset_index()

    def get_training_phase_intervals(
        self, phase: Sequence[str] | str | None = None
    ) -> Any:
        """Divide the profile by its steps: before, in, between and after them.

        Args:
            phase: Kinds of steps, such as ``Step:ModeKeys.TRAIN``; by default all. One
                kind gives an interval a step, several one for each run of a kind.

        Returns:
            A frame with ``start_time_us``, ``end_time_us`` and ``phase``.  None: the
            profile has none of these steps.
        """
        frame = self.framework_metrics_df
        there = frame["framework_metric"].unique()
        if phase is None:
            phase = [each for each in there if _STEPS in each]
        requested = [phase] if isinstance(phase, str) else phase
        if not isinstance(requested, list):
            get_logger().info("%r should be a list of strings", phase)
            return None
        requested = [each for each in requested if each in there]
        if not requested:
            get_logger().info("the profile has no steps of these kinds")
            return None
        steps = frame[frame["framework_metric"].isin(requested)]
        steps = steps.sort_values("start_time_us")
        runs = _runs(steps) if len(requested) > 1 else steps
        rows = list(
            zip(
                runs["start_time_us"],
                runs["end_time_us"],
                runs["framework_metric"],
                strict=True,
            )
        )
        columns = ["start_time_us", "end_time_us", "phase"]
        return pandas().DataFrame(self._with_gaps(rows), columns=columns)

    def _with_gaps(self, rows: list[Any]) -> list[Any]:
        times = self.sys_metrics_df["timestamp_us"]
        first, last = rows[0], rows[-1]
        begin = first[0] if times.empty else times.min()
        end = last[1] if times.empty else times.max()
        found = [(begin, first[0] - 1, f"Before {first[2]}"), first]
        for before, after in pairwise(rows):
            names = " and ".join(sorted([before[2], after[2]]))
            found += [(before[1] + 1, after[0] - 1, f"Between {names}"), after]
        return [*found, (last[1] + 1, end, f"After {last[2]}")]

    def _mark_phases(self, phase: Sequence[str] | str | None) -> bool:
        intervals = self.get_training_phase_intervals(phase)
        if intervals is None:
            return False
        times = self.sys_metrics_df["timestamp_us"]
        self.sys_metrics_df["phase"] = None
        for row in intervals.itertuples():
            inside = times.between(row.start_time_us, row.end_time_us)
            self.sys_metrics_df.loc[inside, "phase"] = row.phase
        return True

    def _step_times(self) -> Any:
        frame = self.framework_metrics_df
        is_step = frame["framework_metric"].str.contains(_STEPS, regex=False)
        return (
            frame[is_step.astype(bool) & (frame["step"] != -1)]
            .groupby("step")
            .agg({"start_time_us": "min", "end_time_us": "max"})
            .reset_index()
        )

    def _number_events(self) -> None:
        steps = self.step_time_df.sort_values("start_time_us")
        frame = self.framework_metrics_df
        if steps.empty or frame.empty:
            return
        starts = steps["start_time_us"].to_numpy()
        before = np.searchsorted(starts, frame["start_time_us"].to_numpy()) - 1
        place = np.clip(before, 0, None)
        ends = steps["end_time_us"].to_numpy()[place]
        is_inside = (before >= 0) & (ends > frame["end_time_us"].to_numpy())
        found = np.where(is_inside, steps["step"].to_numpy()[place], -1)
        frame["step"] = np.where(frame["step"] == -1, found, frame["step"])


_STATISTICS = ("mean", "min", "max", "p50", "p95", "p99")


def _described(groups: Any) -> Any:
    stats = groups.agg(["mean", "min", "max"])
    quantiles = groups.quantile(list(_QUANTILES)).unstack()
    for name, share in zip(_STATISTICS[3:], _QUANTILES, strict=True):
        stats[name] = quantiles[share]
    return stats


def _runs(steps: Any) -> Any:
    name = steps["framework_metric"]
    return steps.groupby((name != name.shift()).cumsum()).agg(
        {"start_time_us": "min", "end_time_us": "max", "framework_metric": "first"}
    )


def _resources(given: Any, default: tuple[Resource, ...]) -> list[Resource] | None:
    if given is None:
        return list(default)
    if isinstance(given, Resource):
        return [given]
    if isinstance(given, list) and all(isinstance(each, Resource) for each in given):
        return given
    get_logger().info("%r should be a Resource or a list of them", given)
    return None


class PT_dataloader_analysis:  # noqa: N801 - smdebug's name
    """Looks at PyTorch's data loaders in a profile; prints, and returns outliers.

    Args:
        pandas_frame: Reads the profile.
    """

    def __init__(self, pandas_frame: PandasFrame) -> None:
        self.pd_data_frame = pandas_frame
        self.dataIter_metric = self._of(".*DataLoaderIter::GetNext")
        self.initialize_metric = self._of("DataLoaderIterInitialize")
        self.dataWorker_metric = self._of("DataLoaderWorker")

    def _of(self, expression: str) -> Any:
        return self.pd_data_frame.get_all_dataloader_metrics([expression])

    def analyze_dataloaderIter_initialization(self) -> None:  # noqa: N802
        """Print how often iterators were made, and how long that took."""
        frame = self.initialize_metric
        if frame.empty:
            _say("The profile has no events of DataLoaderIter initialization")
            return
        for kind, rows in frame.groupby("framework_metric"):
            pinned, workers = rows["pin_memory"].iloc[0], rows["num_workers"].iloc[0]
            _say(f"{kind}: {len(rows)}, pin_memory={pinned}, num_workers={workers}")
            self._outliers(rows, ["start_time", "end_time", "duration_us"], "iterators")

    def analyze_dataloaderWorkers(self) -> Any:  # noqa: N802
        """Print how long workers lived; return those that lived far longer, or None."""
        columns = ["start_time", "end_time", "duration_us", "worker_id"]
        return self._outliers(self.dataWorker_metric, columns, "DataLoaderWorker")

    def analyze_dataloader_getnext(self) -> Any:
        """Print how long batches were waited for; return the long waits, or None."""
        columns = ["start_time", "end_time", "duration_us", "worker_id"]
        return self._outliers(self.dataIter_metric, columns, "DataLoaderIter::GetNext")

    def analyze_batchtime(self) -> Any:
        """Print the time between batches; return the long ones, or None."""
        frame = self.dataIter_metric.copy()
        for column in ("start_time", "end_time"):
            frame[column] = pandas().to_datetime(frame[column], format=_READABLE)
        frame = frame.sort_values(["node_id", "pid", "end_time"])
        starts = frame.groupby(["node_id", "pid"])["start_time"]
        frame["BatchTime_in_seconds"] = starts.diff().dt.total_seconds()
        frame["previous_batch_start"] = starts.shift()
        self.dataIter_metric = frame
        columns = [
            "previous_batch_start",
            "start_time",
            "BatchTime_in_seconds",
            "worker_id",
        ]
        return self._outliers(frame, columns, "batches", "BatchTime_in_seconds")

    def _outliers(
        self, frame: Any, columns: list[str], what: str, column: str = "duration_us"
    ) -> Any:
        if frame.empty:
            _say(f"The profile has no events of {what}")
            return None
        median = frame[column].median()
        _say(f"{what}: {len(frame)}, median {median}, maximum {frame[column].max()}")
        rows = frame.loc[frame[column] >= OUTLIER * median, columns]
        if rows.empty:
            _say(f"No outliers among {what} (duration >= {OUTLIER} * median)")
            return None
        _say(f"Outliers among {what} (duration >= {OUTLIER} * median)")
        return rows.sort_values(column, ascending=False).reset_index(drop=True)

    def plot_the_window(
        self,
        start_timestamp: float,
        end_timestamp: float,
        select_events: Sequence[str] = (".*",),
        select_dimensions: Sequence[str] = (".*",),
    ) -> Any:
        """Draw metrics of the system between two times, as ``TimelineCharts``."""
        from tdbg.compat.smdebug.profiler.analysis.notebook_utils.charts import (
            TimelineCharts,
        )

        return TimelineCharts(
            self.pd_data_frame.system_metrics_reader,
            self.pd_data_frame.framework_metrics_reader,
            starttime=start_timestamp,
            endtime=end_timestamp,
            select_dimensions=select_dimensions,
            select_events=select_events,
        )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
