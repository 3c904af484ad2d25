"""A run of tdbg answers by smdebug's classes, so that its notebooks work on runs."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg.compat.smdebug.profiler import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
)
from tdbg.compat.smdebug.profiler.analysis.frame_analysis import (
    PandasFrameAnalysis,
    PT_dataloader_analysis,
)
from tdbg.compat.smdebug.profiler.analysis.frames import (
    FRAMEWORK_COLUMNS,
    SYSTEM_COLUMNS,
    PandasFrame,
)
from tdbg.compat.smdebug.profiler.analysis.notebook_utils import (
    Heatmap,
    StepHistogram,
    TrainingJob,
)
from tdbg.compat.smdebug.profiler.analysis.timeline import MergedTimeline
from tdbg.compat.smdebug.trials import create_trial
from tdbg.run.profile_tables import GPU, LOADER, NETWORK, STEP, SYSTEM, core_type

MS = 1_000_000
ALWAYS = (0, 1e18)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of ten steps of 100 ms, with two cores, a GPU and a network."""
    path = tmp_path_factory.mktemp("runs") / "run"
    builder = RunBuilder(path)
    at = time.monotonic_ns()
    ends = at + 100 * MS * np.arange(1, 11)
    steps = np.zeros(10, STEP)
    steps["time"] = ends
    steps["global_step"] = steps["mode_step"] = np.arange(10)
    steps["mode"] = [1] * 8 + [2] * 2
    steps["duration_ns"] = 100 * MS
    steps["data_wait_ns"], steps["forward_ns"] = 40 * MS, 30 * MS
    steps["backward_ns"], steps["other_ns"] = 20 * MS, 10 * MS
    builder.samples("step", steps)
    batches = np.zeros(10, LOADER)
    batches["time"] = ends - 60 * MS
    batches["worker"], batches["workers"] = np.arange(10) % 2, 2
    batches["wait_ns"], batches["bytes"] = 40 * MS, 512
    batches["wait_ns"][5] = 90 * MS
    builder.samples("loader", batches)
    samples = at + 250 * MS * np.arange(5)
    system = np.zeros(5, SYSTEM)
    system["time"] = samples
    system["memory_total"], system["memory_available"] = 100, 25
    system["cpu_iowait"] = [0.25, np.nan, 0, 0, 0]
    builder.samples("system", system)
    cores = np.zeros(5, core_type(2))
    cores["time"], cores["busy"] = samples, (100, 255)
    builder.samples("core", cores)
    gpu = np.zeros(5, GPU)
    gpu["time"], gpu["index"], gpu["busy"] = samples, 3, 0.5
    gpu["memory_used"], gpu["memory_total"] = 1, 4
    builder.samples("gpu", gpu, "GPU-1")
    network = np.zeros(5, NETWORK)
    network["time"], network["received_bytes"] = samples, 1000 * np.arange(5)
    network["sent_bytes"] = 2**64 - 1
    builder.samples("network", network, "eth0")
    builder.spans(4, [("tokenize", int(ends[4]) - 15 * MS, 5 * MS, 7)])
    builder.close()
    return path


def test_metrics_of_the_system_have_smdebugs_names(run: Path) -> None:
    reader = LocalSystemMetricsReader(run)
    events = reader.get_events(*ALWAYS)
    assert Counter((e.type, e.name, e.dimension) for e in events) == {
        ("cpu", "cpu0", "CPUUtilization"): 5,
        ("cpu", "cpu", "I/OWaitPercentage"): 4,
        ("gpu", "gpu3", "GPUUtilization"): 5,
        ("gpu", "gpu3", "GPUMemoryUtilization"): 5,
        ("memory", "MemoryUsedPercent", ""): 5,
        ("network", "ReceiveBytesPerSecond", "Algorithm"): 4,
    }
    values = {(e.name, e.dimension): e.value for e in events}
    assert values["cpu0", "CPUUtilization"] == 50
    assert values["gpu3", "GPUUtilization"] == 50
    assert values["gpu3", "GPUMemoryUtilization"] == 25
    assert values["MemoryUsedPercent", ""] == 75
    assert values["ReceiveBytesPerSecond", "Algorithm"] == pytest.approx(4000)
    assert {e.node_id for e in events} == {"algo-1"}
    assert {e.type for e in reader.get_events(*ALWAYS, event_type="gpu")} == {"gpu"}
    first = reader.get_timestamp_of_first_available_file()
    assert abs(first / 1e6 - time.time()) < 3600
    assert len(reader.get_events(first, first + 1)) == 5


def test_steps_phases_batches_and_spans_are_events(run: Path) -> None:
    reader = LocalAlgorithmMetricsReader(run)
    events = reader.get_events(*ALWAYS)
    assert Counter(event.event_name for event in events) == {
        "Step:ModeKeys.TRAIN": 8,
        "Step:ModeKeys.EVAL": 2,
        "DataLoaderIter::GetNext": 10,
        "DataWait": 10,
        "Forward": 10,
        "Backward(post-forward)": 10,
        "tokenize": 1,
    }
    of_step = {e.event_name: e for e in events if e.step == 4}
    step, wait = of_step["Step:ModeKeys.TRAIN"], of_step["DataWait"]
    assert step.duration == 100_000
    assert wait.start_time == step.start_time
    assert of_step["Forward"].start_time == wait.end_time
    assert wait.arg("laid_out")
    assert step.start_time < of_step["tokenize"].start_time < step.end_time
    steps = reader.get_events_by_step(2, 4, file_suffix_filter=["pythontimeline.json"])
    assert sorted(e.step for e in steps if e.step >= 0) == [2, 3]


def test_frames_and_analyses_work_on_a_run(run: Path) -> None:
    frame = PandasFrame(run)
    system, events = frame.get_all_system_metrics(), frame.get_all_framework_metrics()
    assert list(system.columns) == list(SYSTEM_COLUMNS)
    assert list(events.columns) == list(FRAMEWORK_COLUMNS)
    analysis = PandasFrameAnalysis(system, events)
    stats = analysis.get_step_statistics()
    assert stats["duration_p50_us"].tolist() == [100_000, 100_000]
    job = analysis.get_job_statistics()
    assert job is not None
    assert job["training_loop_duration"] == 1_000_000
    slow = PT_dataloader_analysis(frame).analyze_dataloader_getnext()
    assert slow["duration_us"].tolist() == [90_000]
    assert slow["worker_id"].tolist() == [1]


def test_plots_and_the_merged_timeline_work_on_a_run(run: Path, tmp_path: Path) -> None:
    job = TrainingJob(run)
    job.wait_for_sys_profiling_data_to_be_available()
    job.wait_for_framework_profiling_data_to_be_available()
    system, framework = job.system_metrics_reader, job.framework_metrics_reader
    assert system is not None
    assert framework is not None
    assert Heatmap(system).figure is not None
    histogram = StepHistogram(framework)
    histogram.plot()
    assert len(histogram.step_metrics) == 4
    assert job.describe_training_job()["TrainingJobStatus"] == "Completed"
    path = MergedTimeline(run, output_directory=tmp_path).merge_timeline(*ALWAYS)
    rows = json.loads(Path(path).read_text())
    assert Counter(row["ph"] for row in rows if row["ph"] != "M") == {
        "X": 51,
        "C": 28,
        "i": 5,
    }


def test_a_profiler_trial_reads_a_run(run: Path, tmp_path: Path) -> None:
    trial = create_trial(str(run), profiler=True, output_dir=str(tmp_path / "out"))
    assert trial.job_finished()
    assert (tmp_path / "out").is_dir()
    begin, end = trial.get_first_timestamp(), trial.get_latest_timestamp()
    assert 0 < begin < end
    trial.wait_for_data(end + 10**9, begin)
    assert len(trial.get_framework_metrics(begin, end)) >= 40
    assert trial.get_system_metrics(begin, end)


def test_a_run_without_a_profile_has_no_events(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "run").close()
    reader = LocalAlgorithmMetricsReader(tmp_path / "run")
    assert reader.get_events(*ALWAYS) == []
    assert reader.get_timestamp_of_latest_available_file() == 0
    system = LocalSystemMetricsReader(tmp_path / "run")
    assert system.get_events(*ALWAYS) == []
