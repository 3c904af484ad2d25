"""WeightUpdateRatio: updates that are too large, too small, or far behind."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rules_fake import FakeRun, judge
from tdbg.rules import WeightUpdateRatio
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo, ParameterFacts


def known(**shapes: tuple[int, ...]) -> ModelInfo:
    """Facts of a model of Linear layers; a__b is the parameter a.b."""
    names = {name.replace("__", "."): shape for name, shape in shapes.items()}
    return ModelInfo(
        step=0,
        modules={name.rpartition(".")[0]: "Linear" for name in names},
        parameters={
            name: ParameterFacts(
                shape=shape, dtype="float32", requires_grad=True, module="Linear"
            )
            for name, shape in names.items()
        },
    )


THREE = known(a__weight=(4, 4), b__weight=(4, 4), c__weight=(4, 4))


def updated(
    ratios: dict[str, list[float]], size: float = 1.0, **flags: bool
) -> FakeRun:
    run = FakeRun(every=10)
    run.known_facts = [THREE]
    for step in range(len(next(iter(ratios.values())))):
        rows = {}
        for name, ratio in ratios.items():
            rows[f"{name}.weight"] = np.full(16, size)
            rows[f"update/{name}.weight"] = np.full(16, size * ratio[step])
        run.step(step, rows, **flags)
    return run


@pytest.mark.parametrize(("ratio", "n_findings"), [(0.99, 0), (1.01, 1), (1e-3, 0)])
def test_an_update_larger_than_its_weight_is_reported_at_once(
    ratio: float, n_findings: int
):
    run = updated({"a": [1e-3] * 5, "b": [ratio] * 5})
    found = judge(run, WeightUpdateRatio())
    assert len(found) == n_findings
    if found:
        assert (found[0].tensor, found[0].step) == ("b.weight", 0)
        assert found[0].severity is Severity.WARNING
        assert "1 of 2 weights" in found[0].message


@pytest.mark.parametrize(("optimizer", "n_findings"), [("SGD", 1), ("LBFGS", 0)])
def test_of_what_finds_a_minimum_in_each_step_updates_have_any_length(
    optimizer: str, n_findings: int
):
    run = updated({"a": [1e-3] * 5, "b": [8.0] * 5})
    held = {
        name: dataclasses.replace(each, optimizer=0)
        for name, each in THREE.parameters.items()
    }
    info = dataclasses.replace(THREE, parameters=held, optimizers=(optimizer,))
    run.known_facts = [info]
    assert len(judge(run, WeightUpdateRatio())) == n_findings


@pytest.mark.parametrize(
    ("ratios", "severity"),
    [
        ({"a": [5.0], "b": [5.0], "c": [1e-3]}, Severity.ERROR),
        # The second update of a momentum is larger than the first.
        ({"a": [0.9, 1.5], "b": [0.9, 1.5], "c": [1e-3] * 2}, Severity.ERROR),
        ({"a": [5.0], "b": [1e-3], "c": [1e-3]}, Severity.WARNING),
        # A single weight may have to become something else altogether.
        ({"a": [5.0]}, Severity.WARNING),
        ({"a": [1e-3] * 4 + [5.0], "b": [1e-3] * 4 + [5.0]}, Severity.WARNING),
    ],
)
def test_updates_that_replace_most_weights_at_the_beginning_are_an_error(
    ratios: dict[str, list[float]], severity: Severity
):
    (finding,) = judge(updated(ratios), WeightUpdateRatio())
    assert finding.severity is severity


@pytest.mark.parametrize(("size", "is_over"), [(1.9, True), (14.0, False)])
def test_a_weight_that_was_replaced_is_not_sound_again_when_its_updates_look_small(
    size: float, is_over: bool
):
    run = FakeRun(every=10)
    run.known_facts = [known(a__weight=(4, 4))]
    for step in range(10):
        weight, update = (size, 0.01) if step else (1.0, 5.0)
        rows = {"a.weight": np.full(16, weight), "update/a.weight": np.full(16, update)}
        run.step(step, rows)
    assert judge(run, WeightUpdateRatio())[-1].is_over is is_over


def test_weights_that_begin_close_to_zero_may_change_by_more():
    assert judge(updated({"a": [5.0] * 5}, size=1e-4), WeightUpdateRatio()) == []
    assert judge(updated({"a": [5.0] * 5}, size=0.0), WeightUpdateRatio()) == []


def test_close_to_zero_is_measured_by_the_fan_in():
    """A policy's head with a gain of 0.01 is overwritten at once, rightly."""
    run, rule = updated({"a": [5.0] * 5}, size=0.04), WeightUpdateRatio()
    # 0.1 / sqrt(fan-in) is 0.05 for (4, 4), and less for wider layers.
    assert judge(run, rule) == []
    run.known_facts = [known(a__weight=(1, 16))]
    assert judge(run, rule) == []  # A single unit is no matrix.
    run.known_facts = [known(a__weight=(2, 8))]
    (finding,) = judge(run, rule)
    assert "The update is 5 times" in finding.message
    assert judge(run, WeightUpdateRatio(min_scale=0.12)) == []


def test_updates_that_are_all_too_small_are_one_finding():
    run = updated({name: [1e-8] * 6 for name in "abc"})
    (finding,) = judge(run, WeightUpdateRatio())
    assert (finding.tensor, finding.step) == ("a.weight", 4)
    assert "All 3 weights" in finding.message
    assert "Raise the learning rate" in finding.advice


def with_loss(ratios: list[float], losses: list[float]) -> FakeRun:
    """A training of two weights, of which every step is recorded."""
    run = FakeRun(every=1)
    run.known_facts = [THREE]
    for step, (ratio, loss) in enumerate(zip(ratios, losses, strict=True)):
        rows = {"Loss_output_0": [loss]}
        for name in "ab":
            rows[f"{name}.weight"] = np.full(16, 1.0)
            rows[f"update/{name}.weight"] = np.full(16, ratio)
        run.step(step, rows)
    return run


LEVEL = (2.3 + np.random.default_rng(0).normal(0.0, 0.02, 60)).tolist()


def test_slow_updates_are_reported_where_the_loss_has_not_come_down_either():
    (finding,) = judge(with_loss([5e-5] * 60, LEVEL), WeightUpdateRatio())
    assert (finding.step, finding.stage) == (49, Stage.RATE)
    assert "no loss has fallen" in finding.message
    assert "Raise the learning rate about 20-fold" in finding.advice


@pytest.mark.parametrize(
    ("ratios", "losses"),
    [
        pytest.param([5e-5] * 60, np.linspace(2.3, 1.9, 60).tolist(), id="it learns"),
        pytest.param(np.linspace(1e-6, 6e-5, 60).tolist(), LEVEL, id="a warm-up"),
        pytest.param([1e-3] * 10 + [5e-5] * 50, LEVEL, id="slow later on"),
        pytest.param([2e-4] * 60, LEVEL, id="not slow"),
    ],
)
def test_slow_updates_by_themselves_are_no_fault(
    ratios: list[float], losses: list[float]
):
    assert judge(with_loss(ratios, losses), WeightUpdateRatio()) == []


def test_late_in_a_schedule_updates_may_be_small():
    ratios = [1e-3] * 20 + [1e-9] * 20
    assert judge(updated({"a": ratios}), WeightUpdateRatio(until=20)) == []
    assert len(judge(updated({"a": ratios}), WeightUpdateRatio(until=40))) == 1


def test_updates_that_became_small_are_the_work_of_what_made_them_small():
    """So a schedule that ran out is the cause, and no advice is to raise the rate."""
    (finding,) = judge(
        updated({"a": [1e-3] * 20 + [1e-9] * 20, "b": [2e-3] * 20 + [2e-9] * 20}),
        WeightUpdateRatio(),
    )
    assert finding.stage is Stage.STANDSTILL
    assert "At step 0, the median update was 0.15% of its weight" in finding.advice
    assert "learning rate schedule ends too soon" in finding.advice
    assert "Raise" not in finding.advice
    (always,) = judge(updated({"a": [1e-9] * 9, "b": [2e-9] * 9}), WeightUpdateRatio())
    assert always.stage is Stage.RATE


def test_one_layer_far_behind_the_others_is_reported_whenever_it_is():
    run = updated({"a": [1e-3] * 9, "b": [1e-3] * 9, "c": [1e-8] * 9})
    (finding,) = judge(run, WeightUpdateRatio(until=5))
    assert finding.tensor == "c.weight"
    assert "The median update is 0.1% of its weight" in finding.advice
    near = updated({"a": [1e-4] * 9, "b": [1e-4] * 9, "c": [9e-7] * 9})
    assert judge(near, WeightUpdateRatio()) == []


def test_a_layer_far_behind_slow_ones_follows_from_what_keeps_it_back():
    """So in a network whose gradients vanish towards its first layers."""
    ratios = {"a": [6e-13] * 9, "b": [3e-6] * 9, "c": [2e-3] * 9}
    (finding,) = judge(updated(ratios), WeightUpdateRatio())
    assert finding.tensor == "a.weight"
    assert finding.stage is Stage.STANDSTILL
    assert "how large its gradient is" in finding.advice
    assert "Raise" not in finding.advice


@pytest.mark.parametrize(
    ("ratio", "factor"), [(2.0, "200"), (30.0, "3,000"), (1e7, "1 billion")]
)
def test_the_factor_of_a_rate_is_written_out(ratio: float, factor: str):
    (finding,) = judge(updated({"a": [1e-3], "b": [ratio]}), WeightUpdateRatio())
    assert f"about {factor}-fold" in finding.advice


def test_scales_embeddings_and_single_units_are_left_out():
    model_info = known(a__weight=(16,), b__weight=(1, 16), c__weight=(16, 1))
    run = updated({name: [1e-9] * 9 for name in "abc"})
    run.known_facts = [model_info]
    assert judge(run, WeightUpdateRatio()) == []


def test_without_facts_normalizations_are_known_by_name():
    run = FakeRun(every=10)
    for step in range(9):
        rows = {}
        for name in ("bn1.weight", "norm.weight", "fc.weight"):
            rows |= {name: [1.0, 1.0], f"update/{name}": [1e-9, 1e-9]}
        run.step(step, rows)
    (finding,) = judge(run, WeightUpdateRatio())
    assert finding.tensor == "fc.weight"
    assert "The only weight" in finding.message
