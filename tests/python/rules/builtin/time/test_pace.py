"""Rules about the pace of steps: each finds its fault and spares its twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from profile_fake import SECOND, START, ProfiledTraining
from rules_fake import FakeRun, judge
from tdbg.errors import ConfigurationError
from tdbg.rules import (
    CheckpointStall,
    EvaluationShare,
    GcPauses,
    IdleBetweenSteps,
    RecompilationStorm,
    Rule,
    StepOutlier,
    StepTimeRegression,
)
from tdbg.run.findings import Finding, Severity

FORWARD = {"forward": 0.1}


def training(
    seconds: float = 90, phases: Any = FORWARD, **given: Any
) -> ProfiledTraining:
    made = ProfiledTraining(FakeRun())
    made.steps(seconds, phases, **given)
    return made


def found(made: ProfiledTraining, rule: Rule) -> list[Finding]:
    return judge(made.run, rule)


def begun(made: ProfiledTraining, rule: Rule) -> Finding:
    return next(each for each in found(made, rule) if each.phase == "begin")


# --- IdleBetweenSteps -----------------------------------------------------------------


def with_samples(made: ProfiledTraining, *counts: int, phase: int = 0) -> None:
    """Add Python samples to each 10 s, so many of each line."""
    samples = [
        {"phase": phase, "stack": [f"train.py:{k} main"], "count": count}
        for k, count in enumerate(counts)
    ]
    for at in range(0, 90, 10):
        made.event("python_lines", start_ns=START + at * SECOND, samples=samples)


def with_lines(other: float, *counts: int, phase: int = 0) -> ProfiledTraining:
    """Steps of 0.1 s and *other* s of no phase, whose samples are in some lines."""
    return with_phases(
        {"forward": 0.05, "backward": 0.05, "other": other}, *counts, phase=phase
    )


def with_phases(phases: Any, *counts: int, phase: int = 0) -> ProfiledTraining:
    made = training(phases=phases)
    with_samples(made, *counts, phase=phase)
    return made


def test_a_line_that_takes_the_time_between_phases_is_named() -> None:
    finding = begun(with_lines(0.1, 80, 20), IdleBetweenSteps())
    assert finding.message.startswith("train.py:0 main takes 40% of the time")
    assert "Without it you have 40% shorter steps." in finding.advice


def test_a_line_is_not_blamed_where_the_model_computes_in_the_same_time() -> None:
    """TensorFlow's loops and Gluon tell neither a backward pass nor a whole step."""
    tape = {"forward": 0.02, "optimizer": 0.01, "other": 0.1}
    assert found(with_phases(tape, 80, 20), IdleBetweenSteps()) == []
    told = {"compute": 0.02, "optimizer": 0.01, "other": 0.1}
    assert begun(with_phases(told, 80, 20), IdleBetweenSteps())


@pytest.mark.parametrize("idle_ranks", [1, 3])
def test_what_one_rank_does_alone_is_left_to_straggler(idle_ranks: int) -> None:
    made = ProfiledTraining(FakeRun(), n_workers=3)
    for _ in range(450):
        at, number = made.now, made.n_steps
        for rank in range(3):
            made.now, made.n_steps = at, number
            idles = "other" if rank < idle_ranks else "communication"
            phases = {"backward": 0.1, idles: 0.1}
            made.steps(0.19, phases, worker=rank, scatter=0.0)
    with_samples(made, 90)
    assert bool(found(made, IdleBetweenSteps())) is (idle_ranks == 3)


def test_the_line_that_called_a_package_or_tdbg_is_named() -> None:
    packages = ["/v/lib/python3.11/site-packages/x.py:1 f", "/src/python/tdbg/y.py:2 g"]
    made = training(phases={"forward": 0.05, "backward": 0.05, "other": 0.1})
    for at in range(0, 90, 10):
        stack = ["/me/train.py:7 main", *packages]
        samples = [{"phase": 0, "stack": stack, "count": 80}]
        made.event("python_lines", start_ns=START + at * SECOND, samples=samples)
    assert begun(made, IdleBetweenSteps()).message.startswith("/me/train.py:7 main")


def test_time_that_no_line_stands_out_in_is_not_blamed() -> None:
    assert found(with_lines(0.1, 40, 40, 40), IdleBetweenSteps()) == []
    # Few samples, samples of another phase, and little time.
    assert found(with_lines(0.1, 2), IdleBetweenSteps()) == []
    assert found(with_lines(0.1, 90, phase=1), IdleBetweenSteps()) == []
    assert found(with_lines(0.002, 90), IdleBetweenSteps()) == []


def test_a_line_that_waits_for_a_busy_device_is_not_blamed() -> None:
    made = with_lines(0.1, 90)
    for row in made.profile._rows["step"]:
        row["gpu_ns"] = row["duration_ns"]
    made.profile._arrays.clear()
    assert found(made, IdleBetweenSteps()) == []


# --- StepOutlier ----------------------------------------------------------------------


def with_pauses(every: int, phase: str, seconds: float) -> ProfiledTraining:
    pauses = {n: {phase: seconds} for n in range(0, 2000, every)}
    return training(150, {"forward": 0.05}, extra=pauses)


def test_slow_steps_that_cost_much_are_found_with_what_they_share() -> None:
    finding = begun(with_pauses(20, "gc", 0.3), StepOutlier())
    assert "10 steps in 200 take" in finding.message
    assert "costs 23% of the time" in finding.message
    assert "(100%) is garbage collection" in finding.advice


@pytest.mark.parametrize("scatter", [0.02, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_steps_that_scatter_or_pause_now_and_then_are_healthy(
    scatter: float, seed: int
) -> None:
    made = ProfiledTraining(FakeRun(), seed=seed)
    pauses = {n: {"other": 0.2} for n in range(0, 2000, 100)}
    made.steps(150, {"forward": 0.1}, scatter=scatter, extra=pauses)
    assert found(made, StepOutlier()) == []


def test_checkpoints_and_evaluations_are_no_outliers() -> None:
    assert found(with_pauses(20, "checkpoint", 1.0), StepOutlier()) == []
    assert found(with_pauses(20, "evaluation", 1.0), StepOutlier()) == []


def test_a_value_of_smdebug_brings_its_formula_back() -> None:
    made = with_pauses(50, "gc", 0.1)
    assert found(made, StepOutlier()) == []
    finding = begun(made, StepOutlier(n_outliers=10))
    assert "take longer than" in finding.message
    assert found(made, StepOutlier(n_outliers=40)) == []
    with pytest.raises(ConfigurationError, match=r"StepOutlier\.mode is 'EVAL'"):
        StepOutlier(mode="EVAL")


# --- StepTimeRegression ---------------------------------------------------------------


def slower(factor: float, scatter: float = 0.05, **columns: Any) -> ProfiledTraining:
    made = training(60, {"forward": 0.05, "data_wait": 0.02}, scatter=scatter)
    phases = {"forward": 0.05, "data_wait": 0.07 * factor - 0.05}
    made.steps(90, phases, scatter=scatter, **columns)
    return made


def test_steps_that_take_longer_from_one_step_on_are_found_there() -> None:
    made = training(60, {"forward": 0.05})
    change = made.n_steps
    made.steps(90, {"forward": 0.05, "data_wait": 0.025})
    finding = begun(made, StepTimeRegression())
    assert finding.first_step == pytest.approx(change, abs=3)
    assert "instead of 50.1 ms, 50% longer" in finding.message
    assert " is waiting for data." in finding.advice
    assert "33% shorter steps" in finding.advice


@pytest.mark.parametrize(("factor", "scatter"), [(1.05, 0.05), (1.0, 0.3)])
def test_small_changes_and_scatter_are_no_regression(
    factor: float, scatter: float
) -> None:
    assert found(slower(factor, scatter), StepTimeRegression()) == []


@pytest.mark.parametrize("cv", [0.05, 0.15])
def test_noise_that_wanders_is_no_regression(cv: float) -> None:
    """Steps whose deviations follow each other, as on a shared machine."""
    n_found = 0
    for seed in range(10):
        random = np.random.default_rng(seed)
        noise = random.standard_normal(2000)
        for k in range(1, 2000):
            noise[k] = 0.7 * noise[k - 1] + (1 - 0.7**2) ** 0.5 * noise[k]
        durations = 5e7 * np.maximum(0.2, 1 + cv * noise)
        rule = StepTimeRegression()
        n_found += any(
            rule._change(durations[k - 1000 : k]) is not None
            for k in range(1000, 2000, 200)
        )
    assert n_found == 0


def test_a_moment_is_no_regression_of_short_steps() -> None:
    made = training(38, {"forward": 0.003})
    made.steps(2, {"forward": 0.0045})
    made.steps(40, {"forward": 0.003})
    assert found(made, StepTimeRegression()) == []
    made.steps(40, {"forward": 0.0045})
    finding = begun(made, StepTimeRegression())
    assert finding.first_step == pytest.approx(26_000, rel=0.05)
    assert "instead of 3 ms, 50% longer" in finding.message


def test_what_a_machine_does_by_itself_is_an_info() -> None:
    assert begun(slower(1.15), StepTimeRegression()).severity is Severity.INFO
    assert begun(slower(1.3), StepTimeRegression()).severity is Severity.WARNING
    rule = StepTimeRegression(warning=10.0)
    assert begun(slower(1.15), rule).severity is Severity.WARNING


def test_larger_batches_take_longer_and_are_told_as_an_info() -> None:
    made = training(60, {"forward": 0.05}, tokens=1000)
    made.steps(90, {"forward": 0.075}, tokens=1500)
    finding = begun(made, StepTimeRegression())
    assert finding.severity is Severity.INFO
    assert "Batches hold 50% more." in finding.message


# --- GcPauses, RecompilationStorm -----------------------------------------------------


def test_a_collector_that_takes_long_is_found() -> None:
    pauses = {n: {"gc": 0.2} for n in range(0, 2000, 10)}
    made = training(90, {"forward": 0.05}, extra=pauses)
    for at in range(0, 90, 5):
        made.event("gc", start_ns=START + at * SECOND, duration_ns=200_000_000)
    finding = begun(made, GcPauses())
    assert "takes 28% of the time of a step" in finding.message
    assert "pauses in the last minute lasted up to 200 ms" in finding.message
    assert "gc.freeze()" in finding.advice


def test_long_pauses_are_an_info_and_short_ones_nothing() -> None:
    for duration, severities in ((0.3, [Severity.INFO]), (0.05, [])):
        made = training(90, {"forward": 0.05})
        for at in range(0, 90, 15):
            start, ns = START + at * SECOND, int(duration * SECOND)
            made.event("gc", start_ns=start, duration_ns=ns)
        assert [each.severity for each in found(made, GcPauses())] == severities


def test_a_model_that_is_compiled_again_and_again_is_found() -> None:
    compiled = {n: {"compile": 0.5} for n in range(0, 2000, 12)}
    made = training(90, {"forward": 0.05}, extra=compiled)
    made.event("compilation", start_ns=START + 30 * SECOND, reason="size mismatch")
    finding = begun(made, RecompilationStorm())
    assert finding.severity is Severity.WARNING
    assert "which takes 45% of the time" in finding.message
    assert "The last reason was: size mismatch" in finding.message


def test_compilations_at_the_beginning_are_healthy() -> None:
    first = {n: {"compile": 0.5} for n in range(15)}
    assert found(training(90, FORWARD, extra=first), RecompilationStorm()) == []
    twice = {300: {"compile": 2.0}, 301: {"compile": 2.0}}
    assert found(training(90, FORWARD, extra=twice), RecompilationStorm()) == []


# --- CheckpointStall, EvaluationShare -------------------------------------------------


def test_checkpoints_that_take_much_of_the_time_are_found() -> None:
    saved = {n: {"checkpoint": 1.0} for n in range(50, 2000, 100)}
    finding = begun(training(120, FORWARD, extra=saved), CheckpointStall())
    assert "stands still for 1 s to save a checkpoint" in finding.message
    assert "One every 100 steps takes 9.1% of the time." in finding.message
    assert "every 500 steps they take 2%" in finding.advice


def test_rare_checkpoints_are_healthy_and_a_very_long_one_is_not() -> None:
    once = {600: {"checkpoint": 5.0}}
    assert found(training(120, FORWARD, extra=once), CheckpointStall()) == []
    long = {600: {"checkpoint": 70.0}}
    made = training(180, FORWARD, extra=long)
    assert "for 70 s" in begun(made, CheckpointStall()).message


def test_the_interval_follows_from_how_often_machines_fail() -> None:
    saved = {n: {"checkpoint": 1.0} for n in range(50, 2000, 100)}
    rule = CheckpointStall(hours_between_failures=2.0)
    # The root of 2 * 1 s * 7,200 s is 120 s.
    assert "every 2 minutes" in begun(training(120, FORWARD, extra=saved), rule).advice


def test_evaluations_that_take_much_of_the_time_are_an_info() -> None:
    held = {n: {"evaluation": 8.0} for n in range(50, 2000, 100)}
    (finding,) = found(training(180, FORWARD, extra=held), EvaluationShare())
    assert finding.severity is Severity.INFO
    assert "Evaluation takes 44% of the time: 8 s every 100 steps." in finding.message
    rare = {n: {"evaluation": 1.0} for n in range(50, 2000, 100)}
    assert found(training(120, FORWARD, extra=rare), EvaluationShare()) == []
