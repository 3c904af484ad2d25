"""Rules about GPUs, on samples as NVML's counters would give them."""

from __future__ import annotations

from collections.abc import Callable

from profile_fake import START, ProfiledTraining
from rules_fake import FakeRun, judge
from tdbg.rules import DataLoaderBound, LowGPUUtilization, Rule, UnusedDevice, check
from tdbg.run.findings import Finding

Busy = Callable[[float], float]


def training(
    *busy: Busy, seconds: float = 150, wait: float = 0.0, n_used: int = 1
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
