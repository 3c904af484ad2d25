"""Frames of a profile, and what they say about job, steps, devices and loaders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smdebug_profiles import NODE, START, training
from tdbg.compat.smdebug.profiler.analysis.frame_analysis import (
    PandasFrameAnalysis,
    PT_dataloader_analysis,
    Resource,
    StatsBy,
)
from tdbg.compat.smdebug.profiler.analysis.frames import (
    FRAMEWORK_COLUMNS,
    LOADER_COLUMNS,
    SYSTEM_COLUMNS,
    PandasFrame,
)
from tdbg.compat.smdebug.profiler.analysis.timeline import MergedTimeline, MergeUnit


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> PandasFrame:
    return PandasFrame(training(tmp_path_factory.mktemp("profile")))


@pytest.fixture(scope="module")
def analysis(frame: PandasFrame) -> PandasFrameAnalysis:
    return PandasFrameAnalysis(
        frame.get_all_system_metrics(), frame.get_all_framework_metrics()
    )


def test_metrics_of_the_system_have_smdebugs_columns(frame: PandasFrame) -> None:
    system = frame.get_all_system_metrics()
    assert list(system.columns) == list(SYSTEM_COLUMNS)
    assert len(system) == 30 * 7
    assert system.iloc[0].to_dict() == {
        "timestamp": "2020-09-13T12:26:40:000000",
        "timestamp_us": 0,
        "value": 40,
        "system_metric": "cpu0",
        "dimension": "CPUUtilization",
        "nodeID": NODE,
        "type": "cpu",
    }
    assert len(frame.get_all_system_metrics(["gpu1"])) == 30


def test_events_have_smdebugs_columns(frame: PandasFrame) -> None:
    events = frame.get_all_framework_metrics()
    assert list(events.columns) == list(FRAMEWORK_COLUMNS)
    step = events[events["step"] == 3].iloc[0]
    assert step["framework_metric"] == "Step:ModeKeys.TRAIN"
    assert (step["start_time_us"], step["end_time_us"]) == (11_000_000, 12_900_000)
    assert step["pid"] == 42
    assert set(events["bytes"]) == {-1}
    assert len(frame.get_all_framework_metrics(["Forward"])) == 10


def test_loaders_have_smdebugs_columns(frame: PandasFrame) -> None:
    made = frame.get_all_dataloader_metrics(["DataLoaderIterInitialize"])
    assert list(made.columns) == list(LOADER_COLUMNS)
    row = made.iloc[0]
    assert row["framework_metric"] == "_MultiProcessingDataLoaderIter.__init__"
    assert (row["num_workers"], row["pin_memory"]) == (2, "True")
    assert len(frame.get_all_dataloader_metrics([".*GetNext"])) == 10


def test_both_are_selected_by_time_and_by_step(frame: PandasFrame) -> None:
    system, events = frame.get_profiler_data_by_time(START, START + 6_000_000)
    assert system["timestamp_us"].max() == 6_000_000
    assert set(events["step"]) == {-1, 0}
    system, events = frame.get_profiler_data_by_step(2, 3)
    assert sorted(events["step"]) == [2, 3]
    assert (system["timestamp_us"].min(), system["timestamp_us"].max()) == (
        9_000_000,
        12_000_000,
    )


def test_events_are_summed_at_times_and_in_intervals(frame: PandasFrame) -> None:
    at = ["2020-09-13T12:26:45:500000", "2020-09-13T12:26:47:500000"]
    phases, names, steps = frame.get_framework_metrics_by_timesteps(at)
    assert phases["Workers"] == 1
    assert phases["Forward"] == pytest.approx(1 / 40)
    assert names["Forward"] == 1_000_000
    assert steps == {"Step:ModeKeys.TRAIN": 3_600_000}
    phases, names = frame.get_framework_metrics_by_begin_and_end_timesteps(
        at[:1], at[1:], ["Forward", "DataLoaderIter"]
    )
    assert phases["Forward"] == 1
    assert names["MultiProcessingDataLoaderIter::GetNext"] == pytest.approx(0.1)


def test_a_job_divides_into_three_parts(analysis: PandasFrameAnalysis) -> None:
    stats = analysis.get_job_statistics()
    assert stats is not None
    assert stats["job_duration"] == 29_000_000
    assert stats["initialization"] == 5_000_000
    assert stats["training_loop_duration"] == 19_800_000
    assert stats["finalization"] == 4_200_000
    shares = [
        stats[f"{p}_%"] for p in ("initialization", "training_loop", "finalization")
    ]
    assert sum(shares) == pytest.approx(100)
    assert "initialization" in repr(stats)


def test_steps_have_statistics_by_mode_name_and_group(
    analysis: PandasFrameAnalysis,
) -> None:
    stats = analysis.get_step_statistics()
    assert list(stats.columns) == [
        "training_phase",
        "duration_mean_us",
        "duration_min_us",
        "duration_max_us",
        "duration_p50_us",
        "duration_p95_us",
        "duration_p99_us",
    ]
    train = stats[stats["training_phase"] == "Step:ModeKeys.TRAIN"].iloc[0]
    assert train["duration_max_us"] == 1_900_000
    assert train["duration_p50_us"] == 1_800_000
    by_name = analysis.get_step_statistics(StatsBy.FRAMEWORK_METRICS)
    assert "Forward" in set(by_name["framework_metric"])
    assert "DataLoaderIter" in set(
        analysis.get_step_statistics(StatsBy.PROCESS)["process"]
    )
    assert analysis.get_step_statistics("step") is None


def test_an_event_belongs_to_the_step_that_it_lies_in(
    analysis: PandasFrameAnalysis,
) -> None:
    events = analysis.framework_metrics_df
    forwards = events[events["framework_metric"] == "Forward"]
    assert sorted(forwards["step"]) == list(range(10))
    outside = events[events["framework_metric"] == "DataLoaderWorker"]
    assert list(outside["step"]) == [-1]


def test_utilization_is_by_resource_node_and_phase(
    analysis: PandasFrameAnalysis,
) -> None:
    stats = analysis.get_utilization_stats()
    assert list(stats["Resource"]) == ["cpu", "gpu", "network", "memory"]
    gpu = analysis.get_utilization_stats([Resource.GPU]).iloc[0]
    assert (gpu["utilization_min"], gpu["utilization_max"]) == (0, 100)
    by_phase = analysis.get_utilization_stats(Resource.GPU, StatsBy.TRAINING_PHASE)
    assert list(by_phase.columns)[:3] == ["Resource", "Training_phase", "nodeID"]
    assert "After Step:ModeKeys.EVAL" in set(by_phase["Training_phase"])
    assert analysis.get_utilization_stats("cpu") is None
    assert analysis.get_utilization_stats(by="step") is None


def test_devices_are_counted_in_ranges(analysis: PandasFrameAnalysis) -> None:
    usage = analysis.get_device_usage_stats(Resource.GPU)
    assert usage[(90, 100)].tolist() == [50]
    assert usage[(0, 10)].tolist() == [10]
    for ranges in ([(30,)], [], ((0, 10),)):
        assert analysis.get_device_usage_stats(Resource.GPU, ranges).empty
    assert analysis.get_device_usage_stats("cpu").empty


def test_a_profile_divides_into_intervals_of_phases(
    analysis: PandasFrameAnalysis,
) -> None:
    every = analysis.get_training_phase_intervals()
    assert list(every["phase"]) == [
        "Before Step:ModeKeys.TRAIN",
        "Step:ModeKeys.TRAIN",
        "Between Step:ModeKeys.EVAL and Step:ModeKeys.TRAIN",
        "Step:ModeKeys.EVAL",
        "After Step:ModeKeys.EVAL",
    ]
    assert every.iloc[0]["start_time_us"] == 0
    assert every.iloc[-1]["end_time_us"] == 29_000_000
    each_step = analysis.get_training_phase_intervals("Step:ModeKeys.TRAIN")
    assert len(each_step) == 2 * 8 + 1
    assert analysis.get_training_phase_intervals("Step:ModeKeys.GLOBAL") is None
    assert analysis.get_training_phase_intervals(("Step:ModeKeys.TRAIN",)) is None


def test_outliers_of_loaders_are_printed_and_returned(
    frame: PandasFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    loaders = PT_dataloader_analysis(frame)
    loaders.analyze_dataloaderIter_initialization()
    assert (
        "_MultiProcessingDataLoaderIter.__init__: 1, pin_memory=True, num_workers=2"
        in (capsys.readouterr().out)
    )
    assert loaders.analyze_dataloaderWorkers() is None
    slow = loaders.analyze_dataloader_getnext()
    assert slow["duration_us"].tolist() == [250_000]
    assert slow["worker_id"].tolist() == [1]
    assert loaders.analyze_batchtime() is None
    assert "No outliers among batches" in capsys.readouterr().out


# --- The merged timeline -----------------------------------------------------


def merged(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path(path).read_text())
    return found


def test_a_merged_timeline_has_events_counters_and_marks(
    frame: PandasFrame, tmp_path: Path
) -> None:
    timeline = MergedTimeline(frame.path, output_directory=tmp_path)
    rows = merged(timeline.merge_timeline(START, START + 30_000_000))
    kinds = {kind: [r for r in rows if r["ph"] == kind] for kind in "XCiM"}
    assert len(kinds["X"]) == len(frame.get_all_framework_metrics())
    assert len(kinds["C"]) == 30 * 7
    assert len(kinds["i"]) == 10
    times = [row["ts"] for row in rows if "ts" in row]
    assert times == sorted(times)
    names = {
        r["pid"]: r["args"]["name"] for r in kinds["M"] if r["name"] == "process_name"
    }
    assert [names[pid] for pid in sorted(names)][:3] == [
        "Step:ModeKeys.EVAL",
        "Step:ModeKeys.TRAIN",
        "Forward",
    ]


def test_a_merged_timeline_may_be_of_steps_and_without_the_system(
    frame: PandasFrame, tmp_path: Path
) -> None:
    timeline = MergedTimeline(frame.path, ["pythontimeline.json"], tmp_path / "new")
    rows = merged(timeline.merge_timeline(2, 4, MergeUnit.STEP, {}))
    steps = [row["args"]["step_num"] for row in rows if row["ph"] == "X"]
    assert steps == ["2", "3"]
    assert not [row for row in rows if row["ph"] == "C"]
