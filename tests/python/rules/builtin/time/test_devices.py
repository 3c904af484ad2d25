"""Rules about GPUs, on samples as NVML's counters would give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from profile_fake import START, ProfiledTraining
from rules_fake import FakeRun, judge
from tdbg.rules import (
    BatchSize,
    DataLoaderBound,
    DeviceThrottled,
    LoadBalancing,
    LowGPUUtilization,
    Rule,
    UnusedDevice,
    check,
)
from tdbg.run.findings import Finding, Severity

Busy = Callable[[float], float]


def training(
    *busy: Busy,
    seconds: float = 150,
    wait: float = 0.0,
    n_used: int = 1,
    **columns: Any,
) -> ProfiledTraining:
    """A GPU for each function of time; the first *n_used* are the training's."""
    made = ProfiledTraining(FakeRun())
    loader = {"workers": 1, "fetch": 0.1}
    made.steps(seconds, {"data_wait": wait, "forward": 0.1}, loader=loader)
    for k, share in enumerate(busy):
        made.samples(
            "gpu",
            START,
            instance=f"GPU-{k}",
            index=k,
            busy=share,
            run_processes=int(k < n_used),
            **columns,
        )
    return made


def found(made: ProfiledTraining, rule: Rule) -> list[Finding]:
    return [each for each in judge(made.run, rule) if each.phase == "begin"]


def test_a_device_that_is_seldom_busy_is_found() -> None:
    (finding,) = found(training(lambda _: 0.3), LowGPUUtilization())
    assert finding.tensor == "GPU 0"
    assert "busy for 30% of the time, at most 30%" in finding.message
    assert "The largest part of a step is the forward pass" in finding.advice


def test_a_device_that_is_busy_and_idle_in_turn_is_found() -> None:
    (finding,) = found(training(lambda s: float(s % 5 < 2)), LowGPUUtilization())
    assert "does nothing in 60% of the samples" in finding.message


def test_a_busy_device_and_one_of_other_people_are_fine() -> None:
    assert found(training(lambda _: 0.9, lambda _: 0.1), LowGPUUtilization()) == []


def test_an_idle_device_follows_from_what_it_waits_for() -> None:
    made = training(lambda _: 0.3, wait=0.2)
    report = check(made.run, [LowGPUUtilization(), DataLoaderBound()], record=False)
    causes = {each.rule: each.cause and each.cause.rule for each in report.findings}
    assert causes == {"DataLoaderBound": None, "LowGPUUtilization": "DataLoaderBound"}


def test_a_value_of_smdebug_brings_its_formula_back() -> None:
    rule = LowGPUUtilization(threshold_p95=50.0, patience=100)
    assert found(training(lambda _: 0.6), rule) == []
    (finding,) = found(training(lambda _: 0.4), rule)
    assert "The use of the GPU is low: its 95th percentile is 40%" in finding.message
    (finding,) = found(training(lambda s: float(s % 20 > 2)), rule)
    assert "fluctuates" in finding.message
    # By default it waits for 1,000 samples.
    assert found(training(lambda _: 0.4), LowGPUUtilization(threshold_p95=50.0)) == []


def test_devices_that_do_nothing_are_counted() -> None:
    made = training(lambda _: 0.9, lambda _: 0.0, lambda _: 0.0, seconds=200)
    (finding,) = found(made, UnusedDevice())
    assert "2 of 3 GPUs did nothing for 2 minutes" in finding.message
    busy = training(lambda _: 0.9, lambda s: float(s > 100), seconds=200)
    assert found(busy, UnusedDevice()) == []
    used = training(lambda _: 0.0, seconds=200)
    assert found(used, UnusedDevice()) == []


def test_a_gpu_with_room_and_nothing_to_wait_for_can_take_a_larger_batch() -> None:
    room = {"memory_used": 20, "memory_total": 80}
    (finding,) = found(training(lambda _: 0.4, **room), BatchSize())
    assert "busy for more than 40% of the time" in finding.message
    assert "more than 25% of its memory" in finding.message
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    ("busy", "used", "wait"),
    [(0.9, 20, 0.0), (0.4, 70, 0.0), (0.4, 20, 0.05)],
    ids=["busy", "full", "waits for data"],
)
def test_a_larger_batch_is_not_advised_where_it_helps_nobody(
    busy: float, used: int, wait: float
) -> None:
    made = training(lambda _: busy, wait=wait, memory_used=used, memory_total=80)
    assert found(made, BatchSize()) == []


def test_a_gpu_whose_memory_nobody_measured_is_not_judged() -> None:
    assert judge(training(lambda _: 0.4).run, BatchSize()) == []


@pytest.mark.parametrize(
    ("bits", "severity", "words"),
    [
        (0x40, Severity.WARNING, "too hot for the hardware (88 °C, 1,200 MHz)"),
        (0x21, Severity.WARNING, "because it is too hot"),
        (0x04, Severity.INFO, "its power is capped"),
    ],
)
def test_a_gpu_that_runs_slower_to_protect_itself_is_found(
    bits: int, severity: Severity, words: str
) -> None:
    def reasons(seconds: float) -> int:
        return bits if int(2 * seconds) % 4 == 0 else 0

    made = training(
        lambda _: 0.9, throttle_reasons=reasons, temperature=88.0, sm_clock_hz=1.2e9
    )
    (finding,) = found(made, DeviceThrottled())
    assert finding.severity is severity
    assert "lowered in 25% of the samples" in finding.message
    assert words in finding.message


@pytest.mark.parametrize("bits", [0, 0x1, 0x2, 0x10, 2**32 - 1])
def test_other_reasons_of_clocks_and_unknown_ones_are_fine(bits: int) -> None:
    assert (
        found(training(lambda _: 0.9, throttle_reasons=bits), DeviceThrottled()) == []
    )


def test_gpus_that_are_not_busy_alike_are_found() -> None:
    made = training(lambda _: 0.9, lambda _: 0.5, n_used=2)
    (finding,) = found(made, LoadBalancing())
    assert "GPU 0 of worker 0 is busy for 90% of the time" in finding.message
    assert (
        found(training(lambda _: 0.9, lambda _: 0.8, n_used=2), LoadBalancing()) == []
    )
    # The other one is not the training's.
    assert found(training(lambda _: 0.9, lambda _: 0.1), LoadBalancing()) == []


def test_histograms_of_gpus_are_compared_as_smdebug_does_with_full_ones() -> None:
    rule = LoadBalancing(threshold=0.5)
    apart = training(lambda _: 1.0, lambda _: 0.5, n_used=2)
    (finding,) = found(apart, rule)
    assert finding.value == pytest.approx(0.8326, abs=1e-3)  # The root of ln 2.
    assert found(training(lambda _: 1.0, lambda _: 1.0, n_used=2), rule) == []
