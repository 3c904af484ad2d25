"""The profile of a run: whose rows, from when to when, on which clock."""

from __future__ import annotations

import datetime as dt
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from run_builder import RunBuilder, new_attempt
from tdbg.errors import (
    ConfigurationError,
    InvalidWorker,
    NoMoreData,
    QueryError,
    StepNotYetAvailable,
)
from tdbg.modes import ModeKeys
from tdbg.run.profile_tables import (
    COLLECTIVE,
    DISK,
    GPU,
    LOADER,
    STEP,
    SYSTEM,
    core_type,
)
from tdbg.run.schema import EventKind
from tdbg.trial import create_trial
from tdbg.trial.profile import Profile

S = 1_000_000_000


def profile_of(path: Path) -> Profile:
    return create_trial(path).profile


def table(rows: np.dtype[Any], times: Any, **columns: Any) -> NDArray[Any]:
    found = np.zeros(len(times), rows)
    found["time"] = times
    for name, values in columns.items():
        found[name] = values
    return found


def step_rows(first: int, n: int, begin: int, duration: int = S) -> NDArray[Any]:
    """Steps that follow each other: half of each waits for data."""
    return table(
        STEP,
        begin + duration * np.arange(1, n + 1),
        global_step=np.arange(first, first + n),
        mode_step=np.arange(first, first + n),
        mode=ModeKeys.TRAIN.value,
        duration_ns=duration,
        data_wait_ns=duration // 2,
        other_ns=duration - duration // 2,
    )


@pytest.fixture
def begin() -> int:
    """A moment on the monotonic clock at which runs of this test begin."""
    return time.monotonic_ns()


def test_a_run_without_a_profile_has_no_rows_and_says_so(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        run.end_step(0)
    profile = profile_of(tmp_path / "run")
    assert profile.is_empty
    assert "no profile" in profile.statement
    assert profile.tables() == []
    for rows in (
        profile.steps(),
        profile.system(),
        profile.cores(),
        profile.disks(steps=(0, 0)),
        profile.networks(),
        profile.gpus(time=(0, 1)),
        profile.processes(),
        profile.workers(),
        profile.collectives(),
        profile.spans(),
        profile.operators(),
        profile.python_lines(),
    ):
        assert len(rows) == 0
        assert "worker" in (rows.dtype.names or ())
    assert profile.windows() == []
    assert profile.machine() == {}
    assert len(profile.get_step_statistics()) == 0
    assert len(profile.get_utilization_stats()) == 0
    assert profile.get_job_statistics()["training_loop"] == 0


def test_rows_of_two_ranks_come_by_time_with_their_worker(
    tmp_path: Path, begin: int
) -> None:
    for rank in range(2):
        with RunBuilder(tmp_path / "run", rank=rank, world_size=2) as run:
            run.samples("step", step_rows(0, 3, begin + rank))
    profile = profile_of(tmp_path / "run")
    steps = profile.steps()
    assert steps["worker"].tolist() == [0, 1] * 3
    assert (np.diff(steps["time"]) >= 0).all()
    assert set(profile.steps(worker=1)["worker"].tolist()) == {1}
    assert set(profile.steps(worker="worker_0")["worker"].tolist()) == {0}
    with pytest.raises(InvalidWorker, match="no worker 2"):
        profile.steps(worker=2)


def test_steps_choose_the_samples_that_overlap_them(tmp_path: Path, begin: int) -> None:
    with RunBuilder(tmp_path / "run") as run:
        run.samples("step", step_rows(0, 10, begin))
        run.samples("system", table(SYSTEM, begin + S // 4 + S * np.arange(11)))
        waits = table(LOADER, begin + S * np.arange(1, 11), wait_ns=S // 2)
        run.samples("loader", waits)
    profile = profile_of(tmp_path / "run")
    # Steps 3 and 4 last from 3 s to 5 s; samples are at 0.25, 1.25, ...
    found = profile.system(steps=(3, 4))["time"] - begin
    assert found.tolist() == [3.25 * S, 4.25 * S, 5.25 * S]
    assert profile.steps(steps=(3, 4))["global_step"].tolist() == [3, 4]
    assert profile.steps(steps=(8, None))["global_step"].tolist() == [8, 9]
    found = profile.workers(steps=(3, 4))["time"] - begin
    assert found.tolist() == [4 * S, 5 * S]
    assert len(profile.system(steps=(50, 60))) == 0


def test_times_are_seconds_since_the_run_began_or_times_of_day(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    with RunBuilder(path) as run:
        run.end_step(0)
        begin = time.monotonic_ns()
        run.samples("step", step_rows(0, 10, begin))
    profile = profile_of(path)
    since = profile.seconds(begin).item()
    assert 0 <= since < 60
    found = profile.steps(time=(since + 3.5, since + 5.5))["global_step"]
    assert found.tolist() == [3, 4, 5]
    wall = profile.wall_ns(begin).item() / 1e9
    assert abs(wall - time.time()) < 60
    at = dt.datetime.fromtimestamp(wall + 8.5, dt.UTC)
    assert profile.steps(time=(at, None))["global_step"].tolist() == [8, 9]
    with pytest.raises(ConfigurationError, match="'noon'"):
        profile.steps(time=("noon", None))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="pair"):
        profile.system(steps=5)  # type: ignore[arg-type]


def test_a_later_attempt_replaces_steps_and_no_samples(
    tmp_path: Path, begin: int
) -> None:
    for attempt, first in enumerate((0, 4)):
        start = begin + 100 * S * attempt
        uuid = new_attempt()
        with RunBuilder(tmp_path / "run", attempt=uuid, ordinal=attempt) as run:
            run.samples("step", step_rows(first, 6, start))
            run.samples("system", table(SYSTEM, start + S * np.arange(6)))
            for step in range(first, first + 6):
                run.end_step(step)
    profile = profile_of(tmp_path / "run")
    assert profile.steps()["global_step"].tolist() == list(range(10))
    assert len(profile.system()) == 12


def test_rows_of_another_tdbg_are_taken_by_their_columns(tmp_path: Path) -> None:
    longer = np.dtype([("time", "<i8"), ("reads", "<u8"), ("colour", "<u4")])
    with RunBuilder(tmp_path / "run") as run:
        run.samples("disk", table(longer, [5], reads=7), "sda")
        run.samples("disk", table(DISK, [6], reads=8, writes=9), "sdb")
        run.samples("aura", table(longer, [5], colour=3))
    profile = profile_of(tmp_path / "run")
    disks = profile.disks()
    assert disks["reads"].tolist() == [7, 8]
    assert disks["writes"].tolist() == [2**64 - 1, 9]
    assert disks["instance"].tolist() == ["sda", "sdb"]
    assert "colour" not in (disks.dtype.names or ())
    assert profile.table("aura")["colour"].tolist() == [3]


def test_hosts_of_any_width_stand_in_one_table_of_cores(tmp_path: Path) -> None:
    for rank, width in enumerate((2, 4)):
        with RunBuilder(tmp_path / "run", rank=rank, world_size=2) as run:
            run.samples("core", table(core_type(width), [rank], busy=100))
    cores = profile_of(tmp_path / "run").cores()
    assert cores["busy"].tolist() == [[100, 100, 255, 255], [100] * 4]


def test_a_cut_shard_keeps_the_rows_before_the_cut(tmp_path: Path, begin: int) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for i in range(20):
            run.samples("step", step_rows(10 * i, 10, begin + 10 * i * S))
            run.flush()
    shard = run.directory / "000001.tds"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    trial = create_trial(tmp_path / "run")
    steps = trial.profile.steps()["global_step"].tolist()
    assert 50 < len(steps) < 150
    assert steps == list(range(len(steps)))
    assert trial.problems()


def test_a_damaged_record_costs_its_rows(tmp_path: Path, begin: int) -> None:
    with RunBuilder(tmp_path / "run") as run:
        for i in range(3):
            run.samples("step", step_rows(i, 1, begin + i * S))
    shard = run.directory / "000001.tds"
    data = bytearray(shard.read_bytes())
    data[data.index(step_rows(1, 1, begin + S).tobytes()) + 40] ^= 255
    shard.write_bytes(data)
    trial = create_trial(tmp_path / "run")
    assert trial.profile.steps()["global_step"].tolist() == [0, 2]
    assert [problem.kind for problem in trial.problems()] == ["damage"]


def test_a_live_run_is_followed(tmp_path: Path, begin: int) -> None:
    run = RunBuilder(tmp_path / "run")
    run.samples("step", step_rows(0, 2, begin))
    run.flush()
    profile = profile_of(tmp_path / "run")
    assert len(profile.steps()) == 2
    run.samples("step", step_rows(2, 3, begin + 2 * S))
    run.flush()
    assert profile.steps()["global_step"].tolist() == [0, 1, 2, 3, 4]
    run.close()
    assert len(profile.steps()) == 5


def test_wait_returns_when_the_rows_are_there(tmp_path: Path, begin: int) -> None:
    run = RunBuilder(tmp_path / "run")
    run.end_step(0)
    run.flush()
    profile = profile_of(tmp_path / "run")
    with pytest.raises(StepNotYetAvailable, match="no samples of the hosts"):
        profile.wait(system=1, timeout=0.0)

    def write() -> None:
        run.samples("step", step_rows(0, 3, begin))
        run.flush()

    thread = threading.Thread(target=write)
    thread.start()
    profile.wait(steps=3, timeout=60)
    thread.join()
    run.close()
    with pytest.raises(NoMoreData, match="rows of 3 steps, not 0 and 4"):
        profile.wait(steps=4)


def test_what_events_say_is_read(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as run:
        run.event(EventKind.CONFIGURATION, {"what": "machine", "cores": 8})
        window = {"what": "profile_window", "id": "w1"}
        kinds = {"kinds": ["operators"], "first_step": 3, "last_step": 7}
        run.event(EventKind.CHANGE, {**window, "state": "accepted", **kinds})
        run.event(EventKind.CHANGE, {**window, "state": "ended", "cost_ns": 5})
        each = {"name": "aten::mm", "calls": 3, "self_ns": 10, "total_ns": 12}
        of_window = {"what": "operators", "window": "w1", "device": "cpu"}
        run.event(EventKind.CHANGE, {**of_window, "operators": [each, "odd", {}]})
        functions = {"what": "functions", "window": "w1", "profiler": "cprofile"}
        run.event(EventKind.CHANGE, {**functions, "functions": [{"name": "f"}]})
        sample = {"phase": 1, "stack": ["a.py:1 main", "a.py:9 load"], "count": 4}
        lines = {"what": "python_lines", "start_ns": 10, "end_ns": 20}
        run.event(EventKind.CHANGE, {**lines, "samples": [sample, {"stack": []}]})
        run.event(EventKind.CHANGE, {"what": "operators", "operators": 3})
    profile = profile_of(tmp_path / "run")
    assert profile.machine()["cores"] == 8
    (found,) = profile.windows()
    assert (found.id, found.state, found.kinds) == ("w1", "ended", ("operators",))
    assert (found.first_step, found.last_step, found.cost_ns) == (3, 7, 5)
    (operator,) = profile.operators("w1")
    assert (operator["name"], operator["calls"], operator["bytes"]) == (
        "aten::mm",
        3,
        -1,
    )
    with pytest.raises(QueryError, match=r"no window 'other'.*'w1'"):
        profile.operators("other")
    (function,) = profile.functions()
    assert (function["name"], function["window"]) == ("f", "w1")
    (line,) = profile.python_lines()
    assert (line["line"], line["count"]) == ("a.py:9 load", 4)


def test_collective_operations_are_selected_by_their_kind(
    tmp_path: Path, begin: int
) -> None:
    # The second rank was recorded by a tdbg that knew the kinds in another order.
    for rank, words in enumerate((["all_reduce", "barrier"], ["new", "all_reduce"])):
        with RunBuilder(tmp_path / "run", rank=rank, world_size=2) as run:
            run.event(EventKind.CHANGE, {"what": "collectives", "kinds": words})
            rows = np.zeros(3, COLLECTIVE)
            rows["time"], rows["kind"] = begin + np.arange(3), [0, 1, 9]
            run.samples("collective", rows)
    profile = profile_of(tmp_path / "run")
    found = profile.collectives(kind="all_reduce")
    assert found[["worker", "kind"]].tolist() == [(0, 0), (1, 1)]
    assert len(profile.collectives(kind="send")) == 0
    assert len(profile.collectives(worker=1, kind="new")) == 1
    everything = profile.collectives(worker=0)
    names = profile.collective_kinds(everything).tolist()
    assert names == ["all_reduce", "barrier", ""]
    with pytest.raises(ConfigurationError, match=r"'allreduce'.*all_reduce"):
        profile.collectives(kind="allreduce")


def test_spans_have_names_and_steps(tmp_path: Path, begin: int) -> None:
    with RunBuilder(tmp_path / "run") as run:
        run.spans(2, [("load", begin, 3, 7), ("save", begin + 5, 4, 8)])
    spans = profile_of(tmp_path / "run").spans()
    assert spans["name"].tolist() == ["load", "save"]
    assert spans["global_step"].tolist() == [2, 2]
    assert (spans["time"] - begin).tolist() == [3, 9]


# --- Analyses -----------------------------------------------------------------


@pytest.fixture
def analysed(tmp_path: Path) -> Profile:
    """10 s before the loop, 10 steps of 1 s, two of evaluation, then 5 s."""
    with RunBuilder(tmp_path / "run") as run:
        run.end_step(0)
        start = time.monotonic_ns() + 10 * S
        run.samples("step", step_rows(0, 10, start))
        evaluation = step_rows(10, 2, start + 10 * S, 2 * S)
        evaluation["mode"] = ModeKeys.EVAL.value
        run.samples("step", evaluation)
        times = start - 10 * S + S * np.arange(30)
        busy = np.where((times > start) & (times <= start + 10 * S), 0.8, 0.2)
        rows = table(SYSTEM, times, allowed_busy=busy, memory_total=100)
        rows["memory_available"] = 25
        run.samples("system", rows)
        cores = table(core_type(2), times)
        cores["busy"] = [190, 10]
        run.samples("core", cores)
        gpu = table(GPU, times, busy=0.5, memory_used=30, memory_total=40)
        run.samples("gpu", gpu, "GPU-1")
        disk = table(DISK, times, busy_ns=np.arange(30) * S // 4)
        run.samples("disk", disk, "sda")
    return profile_of(tmp_path / "run")


def test_a_job_is_its_start_its_loop_and_its_end(analysed: Profile) -> None:
    found = analysed.get_job_statistics()
    assert found["training_loop"] == pytest.approx(14)
    assert found["initialization"] == pytest.approx(10, abs=1)
    assert found["finalization"] == pytest.approx(5, abs=1.5)
    shares = [found[f"{name}_share"] for name in ("initialization", "training_loop")]
    assert sum(shares) + found["finalization_share"] == pytest.approx(1)
    assert (found["end_time"] - found["start_time"]).total_seconds() == pytest.approx(
        found["job_duration"], abs=0.01
    )


def test_steps_are_summed_by_mode_part_and_worker(analysed: Profile) -> None:
    by_mode = {row["key"]: row for row in analysed.get_step_statistics()}
    assert set(by_mode) == {"TRAIN", "EVAL"}
    assert by_mode["TRAIN"]["count"] == 10
    assert by_mode["TRAIN"]["p50"] == pytest.approx(1)
    assert by_mode["EVAL"]["total"] == pytest.approx(4)
    parts = analysed.get_step_statistics(by="framework_metric")
    assert {row["key"] for row in parts} == {"data_wait", "other"}
    assert parts["share"].tolist() == [0.5, 0.5]
    (worker,) = analysed.get_step_statistics(by="process")
    assert worker["key"] == "worker 0"
    with pytest.raises(ConfigurationError, match="'colour'"):
        analysed.get_step_statistics(by="colour")


def test_utilization_is_told_by_resource_and_phase(analysed: Profile) -> None:
    (cpu,) = analysed.get_utilization_stats(resource="cpu", phase="TRAIN")
    assert (cpu["p50"], cpu["count"]) == (pytest.approx(0.8), 10)
    by_phase = {
        row["phase"]: row["p50"]
        for row in analysed.get_utilization_stats("cpu", by="training_phase")
    }
    assert by_phase["EVAL"] == pytest.approx(0.2)
    assert by_phase["initialization"] == pytest.approx(0.2)
    everything = {
        (row["resource"], row["device"]): row["mean"]
        for row in analysed.get_utilization_stats()
    }
    assert everything["memory", ""] == pytest.approx(0.75)
    assert everything["gpu", "gpu0"] == pytest.approx(0.5)
    assert everything["gpu_memory", "gpu0"] == pytest.approx(0.75)
    assert everything["i/o", "sda"] == pytest.approx(0.25)
    with pytest.raises(ConfigurationError, match="'tape'"):
        analysed.get_utilization_stats(resource="tape")


def test_usage_of_devices_is_told_in_ranges(analysed: Profile) -> None:
    found = {
        (row["device"], row["low"]): row["share"]
        for row in analysed.get_device_usage_stats()
    }
    assert found["cpu0", 90.0] == pytest.approx(1)
    assert found["cpu1", 0.0] == pytest.approx(1)
    assert found["gpu0", 10.0] == pytest.approx(1)
    (gpu,) = analysed.get_device_usage_stats("gpu", [(0, 100)])
    assert gpu["seconds"] == pytest.approx(29)
    with pytest.raises(ConfigurationError, match=r"\(50, 10\)"):
        analysed.get_device_usage_stats("gpu", [(50, 10)])


def test_phases_have_intervals(analysed: Profile) -> None:
    (train,) = analysed.get_training_phase_intervals("TRAIN")
    assert train["end_s"] - train["start_s"] == pytest.approx(10)
    (evaluation,) = analysed.get_training_phase_intervals("ModeKeys.EVAL")
    assert evaluation["start"] == train["end"]
    (first,) = analysed.get_training_phase_intervals("initialization")
    assert first["start_s"] == pytest.approx(0)
    assert len(analysed.get_training_phase_intervals("PREDICT")) == 0
    with pytest.raises(ConfigurationError, match="'warmup'"):
        analysed.get_training_phase_intervals("warmup")
