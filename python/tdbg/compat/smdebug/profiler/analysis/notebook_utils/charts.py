"""Plots of a profile in a notebook, with matplotlib.

``smdebug.profiler.analysis.notebook_utils``: ``heatmap``, ``metrics_histogram``,
``step_histogram``, ``step_timeline_chart`` and ``timeline_charts``.  Each keeps its
``figure``, which belongs to the caller (``chart.figure.savefig("cores.pdf")``); a
notebook shows it.  ``update_data(now)`` reads what was written since, and draws again.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tdbg.compat.smdebug.profiler.utils import CONVERT_TO_MICROSECS, TimeUnits
from tdbg.config.libraries import library

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tdbg.compat.smdebug.profiler.events import ProfilerSystemEvent, TraceEvent
    from tdbg.compat.smdebug.profiler.readers import MetricsReaderBase

TOTAL = "total"
_COLUMNS = 4
_INCH = 100
#: Bounds of the bins of a histogram of shares: 100 % has a bin, too.
SHARE_BINS: Final = np.linspace(0, 100, 51)
_MOST_EVENTS = 500
_RATES = {"Algorithm", "Platform", ""}

#: By dimension and name, a row (seconds since the epoch, value) a measurement.
_Metrics = dict[str, dict[str, NDArray[np.float64]]]


class _Chart:
    """A figure that a notebook shows."""

    def __init__(self) -> None:
        self.figure: Figure | None = None

    def _axes(self, n_axes: int, columns: int, width: int, height: int) -> list[Axes]:
        """Make a figure with some axes; sizes are those of one, in pixels.

        Raises:
            ConfigurationError: If matplotlib is not installed.
        """
        drawing = library("matplotlib.figure", "'tdbg[plot]'", "a plot")
        rows = max(-(-n_axes // columns), 1)
        across = min(max(n_axes, 1), columns)
        size = (across * width / _INCH, rows * height / _INCH)
        self.figure = drawing.Figure(figsize=size, dpi=_INCH, layout="constrained")
        return [self.figure.add_subplot(rows, across, at + 1) for at in range(n_axes)]

    def _show(self) -> None:
        """Show the figure, if this is a notebook."""
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is not None:
            import IPython.display

            show: Any = IPython.display.display
            show(self.figure)


class _SystemChart(_Chart, ABC):
    """A chart of metrics of the system, of some dimensions and names."""

    def __init__(self, reader: MetricsReaderBase) -> None:
        super().__init__()
        self.metrics_reader = reader
        self.system_metrics: _Metrics = {}
        self.filtered_dimensions: list[str] = []
        self.filtered_events: list[str] = []
        self.last_timestamp: float = 0
        self.show_workers = True
        self.select_dimensions: Sequence[str] = ()
        self.select_events: Sequence[str] = ()

    def _read(self, start: float, end: float | None) -> None:
        if end is None:
            # A file is named by its beginning: what it holds is younger.
            end = np.iinfo(np.int64).max // 2000
        events = self.metrics_reader.get_events(start, end)
        times = [event.timestamp for event in events]
        newest = max(times, default=0) * CONVERT_TO_MICROSECS
        self.last_timestamp = max(self.last_timestamp, newest)
        found = _metrics_of(events, self.show_workers)
        for dimension, series in found.items():
            known = self.system_metrics.setdefault(dimension, {})
            for name, rows in series.items():
                before = known.get(name, np.empty((0, 2)))
                known[name] = np.concatenate([before, rows])
        for series in self.system_metrics.values():
            series.pop(TOTAL, None)
            series[TOTAL] = _mean_of(list(series.values()))
        names = {name for series in self.system_metrics.values() for name in series}
        self.filtered_dimensions = _matching(
            self.select_dimensions, self.system_metrics
        )
        self.filtered_events = _matching(self.select_events, names)

    def _selected(self) -> list[tuple[str, str, NDArray[np.float64]]]:
        return [
            (dimension, name, self.system_metrics[dimension][name])
            for dimension in self.filtered_dimensions
            for name in self.filtered_events
            if name in self.system_metrics[dimension]
        ]

    def update_data(self, current_timestamp: float) -> None:
        """Read what was measured until now, in us since the epoch, and draw again."""
        self._read(self.last_timestamp + 1, current_timestamp)
        self.create_plot()

    @abstractmethod
    def create_plot(self) -> None:
        """Draw."""


def _metrics_of(events: Iterable[ProfilerSystemEvent], by_node: bool) -> _Metrics:
    rows: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for event in events:
        dimension = event.dimension
        key = f"{dimension}-nodeid:{event.node_id}" if by_node else dimension
        series = rows.setdefault(key, {})
        point = (event.timestamp, event.value)
        series.setdefault(str(event.name), []).append(point)
    return {
        key: {name: np.array(sorted(points)) for name, points in series.items()}
        for key, series in rows.items()
    }


def _mean_of(series: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    length = min(len(rows) for rows in series)
    mean: NDArray[np.float64] = np.mean([rows[:length] for rows in series], axis=0)
    return mean


def _matching(expressions: Sequence[str], names: Iterable[str]) -> list[str]:
    return [
        name
        for name in sorted(names)
        if any(re.search(each, name) for each in expressions)
    ]


def _is_share(dimension: str) -> bool:
    return dimension.partition("-nodeid:")[0] not in _RATES


class MetricsHistogram(_SystemChart):
    """Histograms of how cores, GPUs and the rest were used, one each.

    Args:
        metrics_reader: Reads metrics of the system.
    """

    def plot(
        self,
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = (".*",),
        select_events: Sequence[str] = (".*",),
        show_workers: bool = True,
    ) -> None:
        """Draw what was measured between two times.

        Args:
            starttime: Microseconds since the epoch; so is *endtime*.
            endtime: None: until now.
            select_dimensions: Expressions for dimensions: ``CPU``, ``GPU``.
            select_events: Expressions for names: ``cpu0``, ``total``.
            show_workers: Nodes apart, not all together.
        """
        self.clear()
        self.select_dimensions, self.select_events = select_dimensions, select_events
        self.show_workers = show_workers
        self._read(starttime, endtime)
        self.create_plot()

    def clear(self) -> None:
        """Forget what was read."""
        self.system_metrics = {}

    def create_plot(self) -> None:
        """Draw what was read."""
        selected = self._selected()
        axes = self._axes(len(selected), _COLUMNS, 250, 250)
        for ax, (dimension, name, rows) in zip(axes, selected, strict=True):
            bins: Any = SHARE_BINS if _is_share(dimension) else 50
            ax.hist(rows[:, 1], bins=bins, color="navy", alpha=0.5)
            ax.set(xlabel=f"{dimension}_{name}", ylabel="Occurrences")
            ax.xaxis.label.set_fontsize(7)
        self._show()


class Heatmap(_SystemChart):
    """Cores and GPUs over time: a row each, coloured from 0 to 100 %.

    Args:
        metrics_reader: Reads metrics of the system.
        select_metrics: Accepted, as smdebug does.
        starttime: Microseconds since the epoch; so is *endtime*.
        endtime: None: until now.
        select_dimensions: Expressions for dimensions.
        select_events: Expressions for names.
        plot_height: Pixels.
        show_workers: Nodes apart, not all together.
    """

    def __init__(
        self,
        metrics_reader: MetricsReaderBase,
        select_metrics: Sequence[str] = (),
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = (".*CPU", ".*GPU"),
        select_events: Sequence[str] = (".*",),
        plot_height: int = 350,
        show_workers: bool = True,
    ) -> None:
        super().__init__(metrics_reader)
        del select_metrics
        self.select_dimensions, self.select_events = select_dimensions, select_events
        self.plot_height = plot_height
        self.show_workers = show_workers
        self._read(starttime, endtime)
        self.create_plot()

    def create_plot(self) -> None:
        """Draw what was read; rates are shares of their maximum."""
        selected = self._selected()
        (ax,) = self._axes(1, 1, 1000, self.plot_height)
        for place, (dimension, _, rows) in enumerate(selected):
            times, values = rows[:, 0], rows[:, 1]
            if not _is_share(dimension):
                values = 100 * values / max(np.max(values, initial=0), 1e-9)
            step = np.median(np.diff(times)) if len(times) > 1 else 0.5
            edges = np.append(times, times[-1] + step)
            image = ax.pcolormesh(
                edges, [place, place + 1], values[np.newaxis], vmin=0, vmax=100
            )
            image.set_cmap("viridis")
        names = [f"{dimension}_{name}" for dimension, name, _ in selected]
        ax.set_yticks(np.arange(len(names)) + 0.5, names, fontsize=7)
        ax.set_xlabel("Time in seconds since the epoch")
        self._show()


class TimelineCharts(_SystemChart):
    """Metrics of the system over time, one chart each; and what ran meanwhile.

    Args:
        system_metrics_reader: Reads metrics of the system.
        framework_metrics_reader: Reads events of the training.
        starttime: Microseconds since the epoch; so is *endtime*.
        endtime: None: until now.
        select_dimensions: Expressions for dimensions.
        select_events: Expressions for names.
        x: The newest measurements that are shown.
        show_workers: Nodes apart, not all together.
    """

    def __init__(
        self,
        system_metrics_reader: MetricsReaderBase,
        framework_metrics_reader: MetricsReaderBase,
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = (".*",),
        select_events: Sequence[str] = (".*",),
        x: int = 1000,
        show_workers: bool = True,
    ) -> None:
        super().__init__(system_metrics_reader)
        self.system_metrics_reader = system_metrics_reader
        self.framework_metrics_reader = framework_metrics_reader
        self.select_dimensions, self.select_events = select_dimensions, select_events
        self.width = x
        self.show_workers = show_workers
        self._read(starttime, endtime)
        self.create_plot()

    def create_plot(self) -> None:
        """Draw what was read."""
        selected = self._selected()
        axes = self._axes(len(selected), 1, 1000, 200)
        for ax, (dimension, name, rows) in zip(axes, selected, strict=True):
            shown = rows[-self.width :]
            ax.plot(shown[:, 0], shown[:, 1], color="blue", linewidth=1)
            if _is_share(dimension):
                ax.set_ylim(0, 102)
            ax.set(xlabel="Time in seconds since the epoch")
            ax.set_title(f"{dimension}_{name}", fontsize=8)
        self._show()

    def find_time_annotations(self, indexes: Sequence[int]) -> dict[str, float]:
        """Print and return the seconds of each event between two measurements.

        Args:
            indexes: Places in the series of the cores; the first and the last count.
        """
        sums: dict[str, float] = {}
        for event in self._events_at(indexes):
            name = event.event_name
            key = f"{name}_{event.step}" if event.step >= 0 else name
            sums[key] = sums.get(key, 0) + event.duration / CONVERT_TO_MICROSECS
        for key, seconds in sums.items():
            sys.stdout.write(f"Spent {1000 * seconds:.3f} ms (cumulative) in {key}\n")
        return sums

    def _events_at(self, indexes: Sequence[int]) -> list[TraceEvent]:
        cores = [
            series[TOTAL]
            for dimension, series in self.system_metrics.items()
            if dimension.startswith("CPUUtilization")
        ]
        if not len(indexes) or not cores:
            sys.stdout.write("No selection made\n")
            return []
        times = max(cores, key=len)[:, 0]
        last = len(times) - 1
        begin = times[min(max(min(indexes), 0), last)]
        end = times[min(max(indexes), last)]
        sys.stdout.write(f"Selected timerange: {begin} to {end}\n")
        return self.framework_metrics_reader.get_events(begin, end, TimeUnits.SECONDS)

    def plot_detailed_profiler_data(self, indexes: Sequence[int]) -> None:
        """Draw loaders and phases between two measurements, as bars over time."""
        events = self._events_at(indexes)
        if not events:
            return
        axes = self._axes(2, 1, 1000, 250)
        bars = (self.plot_dataloaders(events), self.plot_framework_events(events))
        labels = ("Worker or thread", "Phase")
        for ax, groups, label in zip(axes, bars, labels, strict=True):
            lanes = {row[2]: name for name, rows in groups.items() for row in rows}
            for rows in groups.values():
                for start, end, lane in rows:
                    ax.barh(lane, end - start, left=start, alpha=0.3, color="blue")
            ax.set_yticks(list(lanes), [lanes[each] for each in lanes], fontsize=7)
            ax.set(xlabel="Time in ms", ylabel=label)
        self._show()

    def plot_framework_events(
        self,
        events: Iterable[TraceEvent],
        begin_timestamp: float = 0,
        end_timestamp: float = 0,
    ) -> dict[str, list[list[int]]]:
        """Return [start, end, lane] in ms of events by phase, those of loaders without.

        The first 500 are.  The times are accepted, as smdebug does.
        """
        del begin_timestamp, end_timestamp
        plain = [event for event in events if not _is_of_loader(event)]
        return _lanes(
            plain, lambda event: event.event_phase, lambda event: event.event_phase
        )

    def plot_dataloaders(
        self,
        events: Iterable[TraceEvent],
        begin_timestamp: float = 0,
        end_timestamp: float = 0,
    ) -> dict[str, list[list[int]]]:
        """Return [start, end, lane] in ms of events of loaders, by name.

        The first 500 are.  The times are accepted, as smdebug does.
        """
        del begin_timestamp, end_timestamp
        loaders = [event for event in events if _is_of_loader(event)]
        return _lanes(
            loaders,
            lambda event: event.event_name,
            lambda event: event.arg("worker_id", event.tid),
        )


def _is_of_loader(event: TraceEvent) -> bool:
    return not {"bytes_fetched", "worker_id"}.isdisjoint(event.event_args or {})


def _lanes(
    events: Sequence[TraceEvent], name_of: Any, lane_of: Any
) -> dict[str, list[list[int]]]:
    if len(events) > _MOST_EVENTS:
        sys.stdout.write(
            f"The first {_MOST_EVENTS} of {len(events)} events are shown\n"
        )
    lanes: dict[Any, int] = {}
    found: dict[str, list[list[int]]] = {}
    for event in events[:_MOST_EVENTS]:
        lane = lanes.setdefault(lane_of(event), len(lanes))
        bar = [int(event.start_time / 1000), int(event.end_time / 1000), lane]
        found.setdefault(name_of(event), []).append(bar)
    return found


class StepHistogram(_Chart):
    """Histograms of the durations of steps and their phases.

    Args:
        metrics_reader: Reads events of the training.
        width: Accepted, as smdebug does.
    """

    def __init__(self, metrics_reader: MetricsReaderBase, width: int = 500) -> None:
        super().__init__()
        self.metrics_reader = metrics_reader
        self.width = width
        self.last_timestamp = metrics_reader.get_timestamp_of_latest_available_file()
        self.step_metrics: dict[str, list[float]] = {}
        self.select_metrics: Sequence[str] = ()
        self.show_workers = True

    def plot(
        self,
        starttime: float = 0,
        endtime: float | None = None,
        select_metrics: Sequence[str] = (
            "Step:ModeKeys",
            "Forward-node",
            r"Backward\(post-forward\)-node",
        ),
        show_workers: bool = True,
    ) -> None:
        """Draw the events between two times.

        Args:
            starttime: Microseconds since the epoch; so is *endtime*.
            endtime: None: until now.
            select_metrics: Expressions for phases.
            show_workers: Nodes apart, not all together.
        """
        self.clear()
        self.select_metrics, self.show_workers = select_metrics, show_workers
        latest = self.metrics_reader.get_timestamp_of_latest_available_file()
        self._read(starttime, latest if endtime is None else endtime)
        self.create_plot()

    def _read(self, start: float, end: float) -> None:
        self.last_timestamp = int(end)
        for event in self.metrics_reader.get_events(start, end):
            name = event.event_phase
            key = f"{name}-nodeid:{event.node_id}" if self.show_workers else name
            if any(re.search(each, key) for each in self.select_metrics):
                seconds = event.duration / CONVERT_TO_MICROSECS
                self.step_metrics.setdefault(key, []).append(seconds)

    def clear(self) -> None:
        """Forget what was read."""
        self.step_metrics = {}

    def create_plot(self) -> None:
        """Draw what was read."""
        axes = self._axes(len(self.step_metrics), _COLUMNS, 450, 350)
        for ax, (name, seconds) in zip(axes, self.step_metrics.items(), strict=True):
            ax.hist(1000 * np.array(seconds), bins=50, color="navy", alpha=0.5)
            ax.set(xlabel=f"{name} step time in ms", ylabel="Occurrences")
        self._show()

    def update_data(self, current_timestamp: float) -> None:
        """Read the events until now, in us since the epoch, and draw again."""
        self._read(self.last_timestamp, current_timestamp)
        self.create_plot()


class StepTimelineChart(_Chart):
    """The durations of steps over time, in ms.

    Args:
        metrics_reader: Reads events of the training.
        width: The newest steps that are shown.
    """

    def __init__(self, metrics_reader: MetricsReaderBase, width: int = 1000) -> None:
        super().__init__()
        self.metrics_reader = metrics_reader
        self.width = width
        self.metric_names: list[str] = []
        self.steps: list[tuple[float, float, int]] = []
        latest = metrics_reader.get_timestamp_of_latest_available_file()
        self.last_timestamp: float = -1
        self.update_data(latest)

    def update_data(self, current_timestamp: float) -> None:
        """Read the steps until now, in us since the epoch, and draw again."""
        for event in self.metrics_reader.get_events(
            self.last_timestamp + 1, current_timestamp
        ):
            is_new = event.start_time > self.last_timestamp
            if event.event_name.startswith("Step") and is_new:
                self.metric_names.append(event.event_name)
                self.steps.append((event.start_time, event.duration, event.step))
        self.last_timestamp = current_timestamp
        self.create_plot()

    def create_plot(self) -> None:
        """Draw what was read."""
        rows = np.array(sorted(self.steps), dtype=float).reshape(-1, 3)[-self.width :]
        (ax,) = self._axes(1, 1, 1000, 250)
        if len(rows):
            ax.plot((rows[:, 0] - rows[0, 0]) / 1000, rows[:, 1] / 1000, color="blue")
        ax.set(xlabel="Time in ms", ylabel="Step duration in ms")
        self._show()
