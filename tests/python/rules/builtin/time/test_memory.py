"""Rules about memory: each finds its fault, says when, and spares its twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from profile_fake import SECOND, START, ProfiledTraining
from rules_fake import FakeRun, judge
from tdbg.rules import (
    GPUMemoryIncrease,
    MaxInitializationTime,
    MemoryLeak,
    MemoryPressure,
    Rule,
)
from tdbg.rules.builtin.time.memory_leak import growth
from tdbg.rules.window import Idle
from tdbg.run.findings import Finding, Severity

GB = 10**9


def training(
    used: Callable[[float], float], *, limit: float = 8 * GB, seconds: float = 400
) -> ProfiledTraining:
    made = ProfiledTraining(FakeRun())
    made.steps(seconds, {"forward": 0.5})
    made.samples(
        "system",
        START,
        cgroup_memory=lambda s: int(used(s)),
        cgroup_limit=int(limit),
        shm_used=0,
        shm_total=GB,
    )
    return made


def found(made: ProfiledTraining, rule: Rule) -> list[Finding]:
    return [each for each in judge(made.run, rule) if each.phase != "end"]


def test_memory_that_grows_is_found_with_the_time_that_is_left() -> None:
    first, *_ = found(training(lambda s: GB + 1e7 * s, limit=20 * GB), MemoryLeak())
    assert first.severity is Severity.WARNING
    assert first.tensor == "memory of the container"
    assert "grows by 10 MB/s" in first.message
    # After 330 s, 20 - 4.3 GB last for 26 minutes.
    assert "of 20 GB, it is full in 26 minutes" in first.message
    assert "append loss.item()" in first.advice


@pytest.mark.parametrize(("share", "severity"), [(0.9, "ERROR"), (0.1, "WARNING")])
def test_memory_that_others_take_is_no_leak_of_the_training(
    share: float, severity: str
) -> None:
    made = training(lambda s: GB + 1e7 * s, limit=5.2 * GB)
    made.samples(
        "process", START, pid=7, resident_bytes=lambda s: int(GB + share * 1e7 * s)
    )
    first, *_ = found(made, MemoryLeak())
    assert first.severity.name == severity
    is_of_others = severity == "WARNING"
    assert ("own processes grow by 1 MB/s of that" in first.message) is is_of_others
    assert ("another program" in first.advice) is is_of_others


def test_the_time_that_is_left_is_right_and_decides_how_bad_it_is() -> None:
    made = training(lambda s: GB + 1e7 * s, limit=5.2 * GB)
    first, *_ = found(made, MemoryLeak())
    assert first.severity is Severity.ERROR
    at = 0.5 * first.step  # Steps take half a second.
    left = (5.2 * GB - (GB + 1e7 * at)) / 1e7 / 60
    assert first.value == pytest.approx(left, rel=0.25)


@pytest.mark.parametrize(
    "used",
    [
        lambda _: 4 * GB,
        lambda s: 4 * GB + 5e8 * (s % 60) / 60,  # A sawtooth.
        lambda s: 4 * GB + 2 * GB * (1 - np.exp(-s / 80)),  # A cache that fills.
        lambda s: 4 * GB + 2 * GB * (s > 200),  # A jump.
        lambda s: 4 * GB + 1e4 * s,  # Full in a week.
    ],
)
def test_memory_that_is_not_going_to_run_out_is_fine(
    used: Callable[[float], float],
) -> None:
    assert found(training(used), MemoryLeak()) == []


def test_a_sawtooth_does_not_hide_a_leak_and_is_none() -> None:
    time = np.arange(0, 300, 0.5) * 1e9
    for seed in range(50):
        random = np.random.default_rng(seed)
        saw = 5e8 * ((time / 1e9 + random.random() * 60) % 60) / 60
        noise = 2e7 * random.standard_normal(len(time))
        assert growth(time, 4 * GB + saw + noise, 0.0, 64 * GB) == 0.0
        leak = growth(time, 4 * GB + saw + noise + 1e7 * time / 1e9, 0.0, 64 * GB)
        assert leak == pytest.approx(1e7, rel=0.25) or leak == 0.0
        plain = growth(time, 4 * GB + noise + 1e7 * time / 1e9, 0.0, 64 * GB)
        assert plain == pytest.approx(1e7, rel=0.05)


def on_gpu(used: Callable[[float], float]) -> ProfiledTraining:
    made = ProfiledTraining(FakeRun())
    made.steps(400, {"forward": 0.5})
    made.samples(
        "gpu",
        START,
        instance="GPU-1",
        index=3,
        memory_used=lambda s: int(used(s)),
        memory_total=8 * GB,
    )
    return made


def test_memory_of_a_gpu_is_judged_in_the_same_way() -> None:
    first, *_ = found(on_gpu(lambda s: GB + 1e7 * s), GPUMemoryIncrease())
    assert first.tensor == "memory of GPU 3"
    assert found(on_gpu(lambda _: 7 * GB), GPUMemoryIncrease()) == []


def test_a_value_of_smdebug_brings_its_formula_back() -> None:
    steep = on_gpu(lambda s: GB + 1.5e8 * (s % 40))
    assert found(steep, GPUMemoryIncrease()) == []
    first, *_ = found(steep, GPUMemoryIncrease(increase=5.0))
    assert "within ten samples" in first.message
    assert found(on_gpu(lambda _: GB), GPUMemoryIncrease(increase=5.0)) == []


def pressed(**totals: float) -> list[Finding]:
    made = ProfiledTraining(FakeRun())
    made.steps(90, {"forward": 0.1})
    given = {"memory_full_ns": 0, "major_faults": 0, "swap_in_bytes": 0, **totals}
    made.samples("system", START, totals={**given, "cgroup_oom_kills": 0})
    return found(made, MemoryPressure())


def test_too_little_memory_is_found_by_stalls_and_by_swapping() -> None:
    (stalled,) = pressed(memory_full_ns=2e8)
    assert "all tasks wait for memory for 20% of the time" in stalled.message
    (swapped,) = pressed(major_faults=500, swap_in_bytes=4e6)
    assert "4 MB/s come back from the swap" in swapped.message
    assert pressed(major_faults=500) == []
    assert pressed() == []


def test_a_first_step_that_comes_late_is_found() -> None:
    """The fake run begins 1,000 s before its first step."""
    made = training(lambda _: GB, seconds=20)
    (finding,) = found(made, MaxInitializationTime(threshold=10.0))
    assert finding.message == (
        "The first step took 16.7 minutes to come, nearly all of it in other code."
    )
    assert found(made, MaxInitializationTime()) == []


def test_the_start_counts_from_that_of_the_program_and_its_parts_are_told() -> None:
    made = ProfiledTraining(FakeRun())
    made.run.settings = {"program_start_ns": START - 900 * SECOND}
    made.steps(1, {"data_wait": 240.0, "compile": 360.0, "forward": 1.0}, scatter=0.0)
    made.steps(20, {"forward": 0.1})
    assert found(made, MaxInitializationTime()) == []
    (finding,) = found(made, MaxInitializationTime(threshold=18.0))
    assert finding.message == (
        "The first step took 25 minutes to come: 15 minutes before the run was opened, "
        "6 minutes in the compiler and 4 minutes until the first batch."
    )
    assert "importtime" in finding.advice
    # What the compiler takes does not count.
    assert found(made, MaxInitializationTime(threshold=19.5)) == []


def test_a_slow_first_batch_has_advice_of_its_own() -> None:
    made = ProfiledTraining(FakeRun())
    made.run.settings = {"program_start_ns": START - 60 * SECOND}
    made.steps(1, {"data_wait": 1500.0, "forward": 1.0}, scatter=0.0)
    made.steps(20, {"forward": 0.1})
    (finding,) = found(made, MaxInitializationTime())
    assert (
        "26 minutes to come, nearly all of it until the first batch" in finding.message
    )
    assert "workers that start" in finding.advice


@pytest.mark.parametrize("began", [None, -5, START + 1, "soon"])
def test_where_nobody_knows_when_the_program_began_the_run_counts(began: Any) -> None:
    made = training(lambda _: GB, seconds=20)
    made.run.settings = {"program_start_ns": began}
    (finding,) = found(made, MaxInitializationTime(threshold=10.0))
    assert "16.7 minutes" in finding.message


def test_a_training_without_a_step_is_judged_while_it_waits() -> None:
    def idle(seconds: float, **given: Any) -> list[int]:
        state: dict[str, Any] = {"last_step": -1, "ended": False, **given}
        waiting = Idle(seconds=seconds, mode=None, alive=True, **state)
        found = MaxInitializationTime().on_idle(waiting)
        return [int(each.severities[0, 0]) for each in found]

    assert idle(1300.0) == [Severity.WARNING]
    assert idle(100.0) == [0]
    assert idle(1300.0, last_step=5) == []
    assert idle(1300.0, ended=True) == []
