"""Rules about the processor and the disk: each finds its fault and spares its twin."""

from __future__ import annotations

from typing import Any

import pytest

from profile_fake import SECOND, START, ProfiledTraining
from rules_fake import FakeRun, judge
from tdbg.rules import (
    CPUBottleneck,
    CpuContention,
    CpuThrottled,
    Dataloader,
    DataLoaderBound,
    IOBottleneck,
    check,
)
from tdbg.run.findings import Finding, Severity
from tdbg.run.profile_tables import ProcessKind

LOADER = {"workers": 2, "fetch": 0.1, "fetch_cpu_ns": 10**8}


def training(wait: float = 0.05, **columns: Any) -> ProfiledTraining:
    """Steps of 50 ms besides the wait; *columns* of the system's samples."""
    made = ProfiledTraining(FakeRun())
    made.steps(90, {"data_wait": wait, "forward": 0.05}, loader=LOADER)
    given = {"allowed_busy": 0.5, "allowed_cores": 4.0, "cpu_steal": 0.0, **columns}
    made.samples("system", START, **given)
    return made


def names(made: ProfiledTraining, *rules: Any) -> list[str]:
    return [each.rule for each in judge(made.run, *rules)]


def one(made: ProfiledTraining, rule: Any) -> Finding:
    (finding,) = judge(made.run, rule)
    return finding


# --- CPUBottleneck --------------------------------------------------------------------


def test_workers_that_compute_on_busy_cores_are_a_cpu_bottleneck() -> None:
    made = training(allowed_busy=0.97)
    for pid in (1, 2):
        made.process(START, pid, run=0.6, queued=0.3)
    finding = one(made, CPUBottleneck())
    assert finding.severity is Severity.WARNING
    assert "steps wait for 50% of their time" in finding.message
    assert "the 4 allowed cores are 97% busy" in finding.message
    assert "Without the wait you have 50% shorter steps." in finding.advice


@pytest.mark.parametrize(
    ("wait", "busy", "run"), [(0.0, 0.99, 0.95), (0.05, 0.6, 0.95), (0.05, 0.97, 0.1)]
)
def test_busy_cores_alone_are_no_bottleneck(
    wait: float, busy: float, run: float
) -> None:
    made = training(wait, allowed_busy=busy)
    made.process(START, 1, run=run)
    assert names(made, CPUBottleneck()) == []


def test_without_workers_the_fetches_of_the_training_count() -> None:
    for cpu, found in ((0.09, ["CPUBottleneck"]), (0.01, [])):
        made = ProfiledTraining(FakeRun())
        loader = {"workers": 0, "fetch": 0.1, "fetch_cpu_ns": int(cpu * SECOND)}
        made.steps(90, {"data_wait": 0.1, "forward": 0.05}, loader=loader)
        made.samples("system", START, allowed_busy=0.95, allowed_cores=1.0)
        assert names(made, CPUBottleneck()) == found


def test_the_line_in_which_data_is_prepared_is_named() -> None:
    made = training(allowed_busy=0.97)
    made.process(START, 1, run=0.9)
    for at in range(0, 90, 10):
        stack = ["train.py:9 main", "data.py:30 augment", "site-packages/PIL/x.py:1 f"]
        samples = [{"phase": 1, "stack": stack, "count": 40}]
        made.event("python_lines", start_ns=START + at * SECOND, samples=samples)
    advice = one(made, CPUBottleneck()).advice
    assert "Most of it is in data.py:30 augment (100% of the samples)." in advice


# --- IOBottleneck ---------------------------------------------------------------------


def test_readers_that_are_blocked_are_an_io_bottleneck() -> None:
    made = training()
    totals = {"read_bytes": 40e6, "all_read_bytes": 50e6}
    made.process(START, 1, states="DDS", totals=totals)
    finding = one(made, IOBottleneck())
    assert "those who read are blocked for 67% of the time" in finding.message
    assert "40 MB/s from devices; 20% of all that they read was cached" in (
        finding.message
    )


def test_reads_from_memory_are_no_io_bottleneck() -> None:
    made = training(0.05)
    made.process(START, 1, state="R", totals={"read_bytes": 0, "all_read_bytes": 9e8})
    assert names(made, IOBottleneck()) == []


def test_pressure_counts_if_the_training_reads_from_a_device() -> None:
    for rate, found in ((1e7, ["IOBottleneck"]), (0.0, [])):
        made = ProfiledTraining(FakeRun())
        made.steps(90, {"data_wait": 0.05, "forward": 0.05}, loader=LOADER)
        made.samples("system", START, totals={"io_some_ns": 0.3e9})
        made.process(START, 1, state="S", totals={"read_bytes": rate})
        assert names(made, IOBottleneck()) == found


def test_an_idle_disk_gets_more_readers_and_a_busy_one_other_storage() -> None:
    for busy, advice in ((0.3, "more than 2 workers read at once"), (0.95, "shards")):
        made = training()
        made.process(START, 1, state="D")
        made.samples("disk", START, totals={"busy_ns": busy * SECOND}, instance="sda")
        assert advice in one(made, IOBottleneck()).advice


# --- CpuThrottled, CpuContention ------------------------------------------------------


def quota(throttled: float, stopped: float) -> ProfiledTraining:
    """Ten periods a second, so many of them throttled, and seconds stopped."""
    made = ProfiledTraining(FakeRun())
    made.steps(90, {"forward": 0.05}, loader=LOADER)
    totals = {
        "cgroup_periods": 10.0,
        "cgroup_throttled": throttled,
        "cgroup_throttled_ns": stopped * SECOND,
    }
    made.samples("system", START, totals=totals, allowed_cores=2.0, cpu_steal=0.0)
    made.process(START, 1, kind=ProcessKind.RANK, run=0.5, queued=0.4)
    return made


def test_a_quota_that_stops_the_training_is_named() -> None:
    finding = one(quota(9.0, 0.8), CpuThrottled())
    assert "The processor limit of 2 cores stops the training" in finding.message
    assert "throttled in 90% of the scheduling periods" in finding.message
    assert "OMP_NUM_THREADS=2" in finding.advice


@pytest.mark.parametrize(("throttled", "stopped"), [(0.0, 0.0), (0.5, 0.8), (9, 0.01)])
def test_a_quota_that_is_seldom_reached_is_fine(
    throttled: float, stopped: float
) -> None:
    assert names(quota(throttled, stopped), CpuThrottled()) == []


def test_a_host_without_quota_cannot_be_judged() -> None:
    report = check(training().run, [CpuThrottled()], record=False)
    assert report.statuses[0].message.startswith("nothing to judge")


def test_a_throttled_training_is_not_said_to_be_contended() -> None:
    assert names(quota(9.0, 0.8), CpuContention()) == []
    assert names(quota(0.0, 0.0), CpuContention()) == ["CpuContention"]


def contended(queued: float, n_workers: int = 0, **columns: Any) -> ProfiledTraining:
    made = training(**columns)
    made.process(START, 1, kind=ProcessKind.RANK, run=1 - queued, queued=queued)
    for k in range(n_workers):
        made.process(START, 10 + k, run=0.5, queued=0.5, loader_worker=k)
    return made


def test_a_main_thread_that_waits_for_a_core_is_contended() -> None:
    finding = one(contended(0.3), CpuContention())
    assert "had none for 30% of the time" in finding.message
    assert "Other programs use the cores" in finding.advice
    assert "up to 30% shorter steps" in finding.advice
    assert names(contended(0.02), CpuContention()) == []


def test_a_training_that_fills_its_cores_itself_is_told_how_to_ask_for_less() -> None:
    advice = one(contended(0.3, n_workers=8), CpuContention()).advice
    assert "1 rank(s) and 8 workers share 4 cores" in advice
    assert "OMP_NUM_THREADS=4" in advice


def test_time_that_the_hypervisor_takes_is_named() -> None:
    finding = one(contended(0.01, cpu_steal=0.2), CpuContention())
    assert "to other machines for 20% of the time" in finding.message


# --- Dataloader -----------------------------------------------------------------------


def loaded(workers: int, wait: float, **parameters: Any) -> list[Finding]:
    made = ProfiledTraining(FakeRun())
    loader = {"workers": workers, "depth": 2 * workers, "fetch": 0.02}
    for pid in range(max(1, workers)):
        made.steps(0.0, {})
        loader["pid"] = pid
    made.steps(90, {"data_wait": wait, "forward": 0.05}, loader=loader)
    made.samples("system", START, allowed_cores=4.0)
    return judge(made.run, Dataloader(**parameters))


def test_many_more_workers_than_cores_are_too_many_if_nothing_waits() -> None:
    (finding,) = loaded(16, 0.0)
    assert finding.severity is Severity.INFO
    assert "16 workers for 4 cores" in finding.message
    assert "num_workers=2" in finding.advice
    assert loaded(8, 0.0) == []
    assert loaded(16, 0.05) == []


def test_a_threshold_of_smdebug_brings_its_formula_back() -> None:
    """One process for 4 cores is 25 %."""
    (finding,) = loaded(1, 0.0, min_threshold=70)
    assert finding.message == "Too few processes load data: 25% of the cores."
    assert finding.severity is Severity.WARNING
    assert loaded(1, 0.0, min_threshold=20) == []
    assert "Too many" in loaded(1, 0.0, min_threshold=0, max_threshold=20)[0].message


# --- one cause, one voice -------------------------------------------------------------


def test_the_deepest_cause_is_named_and_the_others_follow_from_it() -> None:
    made = ProfiledTraining(FakeRun())
    made.steps(90, {"data_wait": 0.05, "forward": 0.05}, loader=LOADER)
    totals = {"cgroup_periods": 10, "cgroup_throttled": 9, "cgroup_throttled_ns": 9e8}
    made.samples(
        "system", START, totals=totals, allowed_busy=0.97, allowed_cores=2, cpu_steal=0
    )
    made.process(START, 1, kind=ProcessKind.RANK, run=0.5, queued=0.1)
    made.process(START, 2, run=0.5, queued=0.5)
    rules = [CPUBottleneck(), CpuContention(), CpuThrottled(), DataLoaderBound()]
    report = check(made.run, rules, record=False)
    causes = {each.rule: each.cause and each.cause.rule for each in report.findings}
    assert causes == {
        "CpuThrottled": None,
        "CPUBottleneck": "CpuThrottled",
        "DataLoaderBound": "CpuThrottled",
    }
