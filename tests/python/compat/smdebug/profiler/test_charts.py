"""Plots of a profile: what is drawn, and how a live one grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from smdebug_profiles import START, metric, system_file, training
from tdbg.compat.smdebug.exceptions import NoMoreProfilerData
from tdbg.compat.smdebug.profiler import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
)
from tdbg.compat.smdebug.profiler.analysis.frame_analysis import PT_dataloader_analysis
from tdbg.compat.smdebug.profiler.analysis.frames import PandasFrame
from tdbg.compat.smdebug.profiler.analysis.notebook_utils import (
    Heatmap,
    MetricsHistogram,
    StepHistogram,
    StepTimelineChart,
    TimelineCharts,
    TrainingJob,
)
from tdbg.errors import ConfigurationError

Readers = tuple[LocalSystemMetricsReader, LocalAlgorithmMetricsReader]


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    root = training(tmp_path)
    return LocalSystemMetricsReader(root), LocalAlgorithmMetricsReader(root)


def test_a_histogram_is_drawn_for_each_metric_and_counts_a_full_gpu(
    readers: Readers,
) -> None:
    chart = MetricsHistogram(readers[0])
    chart.plot(select_dimensions=["GPU"], select_events=["gpu", "total"])
    assert chart.figure is not None
    labels = [ax.get_xlabel() for ax in chart.figure.axes]
    assert labels == [
        f"GPUUtilization-nodeid:algo-1_{each}" for each in ("gpu0", "gpu1", "total")
    ]
    gpu1 = chart.figure.axes[1].patches
    assert sum(bar.get_height() for bar in gpu1) == 30
    assert gpu1[-1].get_height() == 20


def test_a_heat_map_has_a_row_for_each_core_and_gpu(readers: Readers) -> None:
    chart = Heatmap(readers[0], select_events=["cpu", "gpu"])
    assert chart.figure is not None
    rows = [label.get_text() for label in chart.figure.axes[0].get_yticklabels()]
    assert len(rows) == 4
    assert rows[0] == "CPUUtilization-nodeid:algo-1_cpu0"
    rates = Heatmap(readers[0], select_dimensions=["Algorithm"], show_workers=False)
    assert rates.figure is not None


def test_timelines_grow_with_what_was_written_since(
    readers: Readers, tmp_path: Path
) -> None:
    chart = TimelineCharts(
        *readers, select_dimensions=["CPUUtil"], select_events=["cpu0"]
    )
    assert chart.figure is not None
    assert len(chart.figure.axes[0].lines[0].get_xdata()) == 30
    late = [metric("cpu", "cpu0", "CPUUtilization", 7, 61)]
    system_file(tmp_path, late, seconds=60)
    chart.update_data(START + 70_000_000)
    assert list(chart.figure.axes[0].lines[0].get_ydata())[-1] == 7


def test_what_ran_between_two_measurements_is_printed_and_drawn(
    readers: Readers, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = TimelineCharts(*readers)
    sums = chart.find_time_annotations([5, 6])
    assert sums["Step:ModeKeys.TRAIN_0"] == pytest.approx(1.8)
    assert "Spent 500.000 ms (cumulative) in Forward" in capsys.readouterr().out
    chart.plot_detailed_profiler_data([5, 9])
    assert chart.figure is not None
    loaders, phases = chart.figure.axes
    assert len(loaders.patches) == 3
    assert {label.get_text() for label in phases.get_yticklabels()} >= {"Forward"}
    assert chart.find_time_annotations([]) == {}
    assert "No selection made" in capsys.readouterr().out


def test_steps_are_drawn_as_histogram_and_over_time(readers: Readers) -> None:
    histogram = StepHistogram(readers[1])
    histogram.plot()
    assert sorted(histogram.step_metrics) == [
        "Forward-nodeid:algo-1-42",
        "Step:ModeKeys.EVAL-nodeid:algo-1-42",
        "Step:ModeKeys.TRAIN-nodeid:algo-1-42",
    ]
    line = StepTimelineChart(readers[1])
    assert line.figure is not None
    durations = line.figure.axes[0].lines[0].get_ydata()
    assert sorted(set(durations)) == [1800, 1900]
    line.update_data(START + 90_000_000)
    assert len(line.steps) == 10


def test_a_window_of_loaders_is_drawn(tmp_path: Path) -> None:
    loaders = PT_dataloader_analysis(PandasFrame(training(tmp_path)))
    chart = loaders.plot_the_window(START, START + 10_000_000, select_events=["cpu0"])
    assert chart.figure is not None


def test_a_job_on_this_machine_waits_for_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = TrainingJob(training(tmp_path))
    job.wait_for_sys_profiling_data_to_be_available()
    job.wait_for_framework_profiling_data_to_be_available()
    system, framework = (
        job.get_systems_metrics_reader(),
        job.get_framework_metrics_reader(),
    )
    assert system is not None
    assert framework is not None
    assert "The newest event is of 2020-09-13T12:27:05:000001 UTC" in (
        capsys.readouterr().out
    )
    assert job.describe_training_job()["TrainingJobName"] == tmp_path.name


def test_a_job_without_data_says_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(NoMoreProfilerData):
        TrainingJob(tmp_path).wait_for_sys_profiling_data_to_be_available()
    with pytest.raises(ConfigurationError, match="'my-job' is no directory"):
        TrainingJob("my-job", region="eu-west-1")
    with pytest.raises(NotImplementedError, match="aws s3 sync"):
        TrainingJob("s3://bucket/job")
