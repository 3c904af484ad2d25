"""VanishingGradient: when it speaks, when it is silent, when it cannot know."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rules_fake import FakeRun, judge
from tdbg.modes import ModeKeys
from tdbg.rules import VanishingGradient
from tdbg.run.findings import Severity


def run_with(scales: dict[str, list[float]], **flags: object) -> FakeRun:
    """Steps at which each gradient has this mean of |g|."""
    run = FakeRun(every=10)
    n_steps = len(next(iter(scales.values())))
    for step in range(n_steps):
        rows = {
            f"gradient/{name}": np.array([1.0, -1.0, 1.0]) * scale[step]
            for name, scale in scales.items()
        }
        run.step(step, rows, **flags)
    return run


def test_a_layer_far_below_the_others_is_an_error_at_the_third_step():
    run = run_with({"0.weight": [1e-9] * 5, "8.weight": [1e-2] * 5})
    (finding,) = judge(run, VanishingGradient())
    assert finding.tensor == "gradient/0.weight"
    assert finding.severity is Severity.ERROR
    assert (finding.step, finding.first_step) == (2, 2)
    assert finding.value == pytest.approx(1e-9)
    assert finding.threshold == 1e-7
    assert "is 1e-9 at" in finding.message
    assert "gradient/8.weight" in finding.message
    assert "1 of 2 layers is affected" in finding.message


@pytest.mark.parametrize(
    ("scales", "severities"),
    [
        # Beside it all is well: so little is the rounding of a zero, or nearly none.
        ([1e-3, 1e-11, 1e-2], [Severity.INFO]),
        ([1e-3, 1e-2, 1e-11], [Severity.INFO]),
        ([1e-3, 1e-8, 1e-2], [Severity.INFO]),
        # The loss reaches what is before it on another way; or nothing before it.
        ([1e-3, 0.0, 1e-2], [Severity.INFO]),
        ([1e-3, 0.0, 0.0], [Severity.INFO] * 2),
        ([0.0, 0.0, 1e-2], [Severity.WARNING] * 2),
        # Nothing is known to reach what is before it.
        ([1e-11, 1e-2, 1e-2], [Severity.ERROR]),
        ([1e-2, 1e-11, 1e-10, 1e-2], [Severity.ERROR] * 2),
    ],
)
def test_a_weight_with_little_effect_on_the_loss_is_no_error_of_depth(
    scales: list[float], severities: list[Severity]
):
    run = run_with({f"{i}.weight": [scale] * 3 for i, scale in enumerate(scales)})
    findings = judge(run, VanishingGradient())
    assert [finding.severity for finding in findings] == severities
    for finding in findings:
        is_error = finding.severity is Severity.ERROR or finding.value == 0
        depends = re.search("loss (hardly|does not) depend", finding.advice)
        assert (depends is None) == is_error
        assert is_error or (depends[1] == "hardly") == (finding.value > 1e-9)


def test_without_comparison_the_absolute_threshold_decides_alone():
    run = run_with({"0.weight": [1e-12] * 3, "8.weight": [1e-11] * 3})
    assert len(judge(run, VanishingGradient(relative=None))) == 2


@pytest.mark.parametrize(
    ("small", "large", "n_findings"),
    [
        (1e-7, 1.0, 0),  # Not below the threshold.
        (0.99e-7, 1.0, 1),
        (0.99e-7, 0.98e-4, 0),  # Not below 1e-3 of the largest.
        (0.99e-7, 1.00e-4, 1),
    ],
)
def test_both_limits_are_strict(small: float, large: float, n_findings: int):
    run = run_with({"0.weight": [small] * 3, "8.weight": [large] * 3})
    assert len(judge(run, VanishingGradient())) == n_findings


def test_an_all_zero_gradient_beside_others_has_vanished():
    run = run_with({"0.weight": [0.0] * 3, "8.weight": [1e-2] * 3})
    (finding,) = judge(run, VanishingGradient())
    assert "exactly zero" in finding.message
    assert finding.value == 0


@pytest.mark.parametrize(
    ("end", "severity"), [(1e-3, Severity.INFO), (0.1, Severity.ERROR)]
)
def test_once_the_losses_are_next_to_nothing_small_gradients_are_an_info(
    end: float, severity: Severity
):
    run = run_with({f"{i}.weight": [scale] * 3 for i, scale in enumerate((1e-9, 1e-2))})
    for step, loss in enumerate((1.0, end, end)):
        run.step(step, {"MSELoss_output_0": [loss]})
    (finding,) = judge(run, VanishingGradient())
    assert finding.severity is severity


@pytest.mark.parametrize(
    ("scales", "n_findings"),
    [
        ([0.0] * 5, 2),
        # A loss that is fitted exactly, and one that counts from some step on.
        ([1e-2, *[0.0] * 8], 0),
        ([0.0, 0.0, 1e-2, 1e-2, 1e-2], 0),
    ],
)
def test_gradients_that_were_all_zero_from_the_start_reach_no_weight(
    scales: list[float], n_findings: int
):
    run = run_with({"0.weight": scales, "8.weight": scales})
    findings = judge(run, VanishingGradient())
    assert len(findings) == n_findings
    for finding in findings:
        assert finding.severity is Severity.WARNING
        assert "every element of 2 gradients has been exactly zero" in finding.message
        assert "optimizer" not in finding.advice


def test_of_a_reverse_direction_that_is_all_zero_the_last_place_is_named():
    name = "gradient/lstm.weight_hh_l1_reverse"
    run = FakeRun()
    for step in range(12):
        run.step(step, {name: [0.0] * 4, "gradient/lstm.weight_hh_l0": [0.1] * 4})
    (finding,) = judge(run, VanishingGradient())
    assert finding.tensor == name
    assert "out[:, -1]" in finding.advice


def test_a_weight_whose_inputs_are_zero_is_an_info_as_its_bias_tells():
    scales = {"0.weight": [0.0] * 3, "0.bias": [1e-2] * 3, "8.weight": [1e-2] * 3}
    (finding,) = judge(run_with(scales), VanishingGradient())
    assert finding.severity is Severity.INFO
    assert "while the bias of its layer has one" in finding.message
    assert "initial state" in finding.advice


@pytest.mark.parametrize("weight", ["weight_hh_l0", "weight_hh_l1"])
def test_of_a_recurrent_layer_only_the_first_step_counts(weight: str):
    name = f"gradient/gru.{weight}"
    run = FakeRun()
    for step in range(12):
        given = {"gradient/gru.weight_ih_l0": [0.1] * 4, name: [0.0] * 4}
        run.step(step, {**given, name.replace("weight", "bias"): [0.1]})
    (finding,) = judge(run, VanishingGradient())
    assert finding.severity is Severity.WARNING
    assert "out[:, 0]" in finding.advice


def test_a_cell_may_begin_with_a_state_of_zeros():
    scales = {"0.weight": [1e-2] * 3, "c.weight_hh": [0.0] * 3, "c.bias_hh": [1e-2] * 3}
    (finding,) = judge(run_with(scales), VanishingGradient())
    assert finding.severity is Severity.INFO


def test_a_bias_without_a_gradient_excuses_no_weight():
    scales = {"0.weight": [0.0] * 3, "0.bias": [0.0] * 3, "8.weight": [1e-2] * 3}
    (finding,) = judge(run_with(scales), VanishingGradient())
    assert finding.severity is Severity.WARNING


def test_of_a_reverse_direction_the_bias_is_no_excuse():
    name = "gradient/lstm.weight_hh_l1_reverse"
    bias = name.replace("weight", "bias")
    run = FakeRun()
    for step in range(12):
        given = {name: [0.0] * 4, bias: [0.1], "gradient/lstm.weight_hh_l0": [0.1] * 4}
        run.step(step, given)
    (finding,) = judge(run, VanishingGradient())
    assert finding.severity is Severity.WARNING
    assert "out[:, -1]" in finding.advice


def test_a_sparse_gradient_is_judged_by_what_is_not_zero():
    run = FakeRun(every=10)
    embedding = np.zeros(1_000_000)
    embedding[:10] = 1e-3
    for step in range(4):
        rows = {"gradient/e.weight": embedding, "gradient/8.weight": np.ones(3)}
        run.step(step, rows)
    assert judge(run, VanishingGradient()) == []


def test_biases_are_left_out_unless_asked_for():
    scales = {"0.bias": [1e-12] * 3, "r.bias_ih_l0": [0] * 3, "8.weight": [1.0] * 3}
    assert judge(run_with(scales), VanishingGradient()) == []
    assert len(judge(run_with(scales), VanishingGradient(biases=True))) == 2


@pytest.mark.parametrize(
    "flags", [{"complete": False}, {"lossless": False}, {"skipped": True}]
)
def test_a_step_that_is_not_whole_starts_the_count_again(flags: dict[str, bool]):
    run = run_with({"0.weight": [1e-9] * 9, "8.weight": [1e-2] * 9})
    for step in (2, 5):
        run.step(step, **flags)
    (finding,) = judge(run, VanishingGradient())
    assert finding.step == 8


def test_other_modes_between_do_not_break_the_count():
    run = FakeRun(every=10)
    rows = {"gradient/0.weight": [1e-9], "gradient/8.weight": [1e-2]}
    for step in range(0, 10, 2):
        run.step(step, rows)
        run.step(step + 1, {"L_output_0": [1.0]}, mode=ModeKeys.EVAL)
    (finding,) = judge(run, VanishingGradient())
    assert finding.step == 4


def test_it_ends_after_three_healthy_steps():
    small = [1e-9] * 4 + [1e-3] * 2 + [1e-9] * 3 + [1e-3] * 4
    run = run_with({"0.weight": small, "8.weight": [1e-2] * len(small)})
    begin, end = judge(run, VanishingGradient())
    assert (begin.phase, begin.step) == ("begin", 2)
    assert (end.phase, end.step, end.first_step) == ("end", 11, 2)
    assert end.last_step == 8
    assert end.n_steps == 3
