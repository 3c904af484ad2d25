"""Rules of weights: their updates, and how they begin."""

from __future__ import annotations

import numpy as np
import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.errors import ConfigurationError
from tdbg.facts import Facts, ParameterFacts
from tdbg.findings import Severity
from tdbg.rules import PoorWeightInitialization, WeightUpdateRatio

FLAGS = [{"complete": False}, {"lossless": False}, {"skipped": True}]


def known(**shapes: tuple[int, ...]) -> Facts:
    """Facts of a model of Linear layers; a__b is the parameter a.b."""
    names = {name.replace("__", "."): shape for name, shape in shapes.items()}
    return Facts(
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
    assert "the update is 5 times" in finding.message
    assert judge(run, WeightUpdateRatio(min_scale=0.12)) == []


def test_updates_that_are_all_too_small_are_one_finding():
    run = updated({name: [1e-8] * 6 for name in "abc"})
    (finding,) = judge(run, WeightUpdateRatio())
    assert (finding.tensor, finding.step) == ("a.weight", 4)
    assert "3 of 3 weights" in finding.message
    assert "raise the learning rate" in finding.advice


def test_late_in_a_schedule_updates_may_be_small():
    ratios = [1e-3] * 20 + [1e-9] * 20
    assert judge(updated({"a": ratios}), WeightUpdateRatio(until=20)) == []
    assert len(judge(updated({"a": ratios}), WeightUpdateRatio(until=40))) == 1


def test_one_layer_far_behind_the_others_is_reported_whenever_it_is():
    run = updated({"a": [1e-3] * 9, "b": [1e-3] * 9, "c": [1e-8] * 9})
    (finding,) = judge(run, WeightUpdateRatio(until=5))
    assert finding.tensor == "c.weight"
    assert "others change by 0.001" in finding.advice
    near = updated({"a": [1e-4] * 9, "b": [1e-4] * 9, "c": [9e-7] * 9})
    assert judge(near, WeightUpdateRatio()) == []


def test_scales_embeddings_and_single_units_are_left_out():
    facts = known(a__weight=(16,), b__weight=(1, 16), c__weight=(16, 1))
    run = updated({name: [1e-9] * 9 for name in "abc"})
    run.known_facts = [facts]
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
    assert "1 of 1 weights" in finding.message


@pytest.mark.parametrize("flags", FLAGS)
def test_steps_that_are_not_whole_are_not_judged(flags: dict[str, bool]):
    assert judge(updated({"a": [9.0] * 9}, **flags), WeightUpdateRatio()) == []
    assert judge(updated({"a": [1e-9] * 9}, **flags), WeightUpdateRatio()) == []


def test_nan_and_no_update_are_for_other_rules():
    assert judge(updated({"a": [np.nan] * 9}), WeightUpdateRatio()) == []
    assert judge(updated({"a": [0.0] * 9}), WeightUpdateRatio()) == []


@pytest.mark.parametrize(
    "parameters",
    [
        {"small_threshold": 0.0},
        {"large_threshold": 1e-7},
        {"relative": 2.0},
        {"patience": 0},
        {"until": 1},
        {"min_weight": -1.0},
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, float]):
    with pytest.raises(
        ConfigurationError, match=f"WeightUpdateRatio.{next(iter(parameters))}"
    ):
        WeightUpdateRatio(**parameters)


# --- How weights begin -------------------------------------------------------------

RANDOM = np.random.default_rng(0)


def begun(n_steps: int = 1, **weights: object) -> FakeRun:
    """First steps with these weights, each with a gradient."""
    run = FakeRun(every=10)
    run.known_facts = [THREE]
    for step in range(n_steps):
        rows: dict[str, object] = {}
        for name in "abc":
            rows[f"{name}.weight"] = weights.get(name, RANDOM.normal(size=16))
            rows[f"gradient/{name}.weight"] = weights.get(
                f"g{name}", RANDOM.normal(size=16)
            )
        run.step(step, rows)
    return run


def test_random_weights_are_well():
    assert judge(begun(5), PoorWeightInitialization()) == []


@pytest.mark.parametrize(
    ("constant", "severity"),
    [("a", Severity.WARNING), ("ac", Severity.WARNING), ("ab", Severity.ERROR)],
)
def test_units_that_are_alike_are_an_error_where_their_neighbors_are_too(
    constant: str, severity: Severity
):
    run = begun(**dict.fromkeys(constant, np.full(16, 0.1)))
    (finding,) = judge(run, PoorWeightInitialization())
    assert finding.tensor == "a.weight"
    assert finding.severity is severity
    assert "all 4 units have the same initial weights" in finding.message


def test_units_with_equal_rows_are_found_by_their_values():
    run = begun()
    run.value(0, "b.weight", np.tile([1.0, 2.0, 3.0, 4.0], (4, 1)))
    run.value(0, "c.weight", RANDOM.normal(size=(4, 4)))
    (finding,) = judge(run, PoorWeightInitialization())
    assert finding.tensor == "b.weight"


def test_a_layer_of_zeros_is_an_error_only_if_no_gradient_reaches_it():
    zero = np.zeros(16)
    assert judge(begun(c=zero), PoorWeightInitialization()) == []
    (finding,) = judge(begun(b=zero, gb=zero), PoorWeightInitialization())
    assert (finding.tensor, finding.severity) == ("b.weight", Severity.ERROR)


def ending_at_zero(first_bad: int, stride: int = 1, **flags: bool) -> FakeRun:
    """Weights that are zero, without a gradient, from some recorded step on."""
    run = FakeRun()
    run.known_facts = [THREE]
    for step in range(6):
        zero = np.zeros(16) if step >= first_bad else np.tile([1.0, -1.0], 8)
        rows = {"a.weight": zero, "gradient/a.weight": zero}
        given = flags if step < first_bad else {}
        run.step(step * stride, rows, **given)
    return run


def test_after_the_first_update_nothing_is_said():
    assert len(judge(ending_at_zero(0), PoorWeightInitialization())) == 1
    assert judge(ending_at_zero(1), PoorWeightInitialization()) == []


def test_while_the_scaler_skips_updates_the_initial_weights_are_judged():
    run = ending_at_zero(2, skipped=True)
    (finding,) = judge(run, PoorWeightInitialization())
    assert finding.step == 2
    assert judge_in_parts(run, range(6), PoorWeightInitialization()) == [finding]
    assert judge(run, PoorWeightInitialization(steps=2)) == []
    for other in (
        ending_at_zero(2, stride=2, skipped=True),
        ending_at_zero(2, skipped=True, lossless=False),
    ):
        assert judge(other, PoorWeightInitialization()) == []


FOUR = known(a__weight=(4, 4), b__weight=(4, 4), c__weight=(4, 4), d__weight=(4, 4))


def chained(kind: str, sizes: list[float]) -> FakeRun:
    run = FakeRun(every=10)
    run.known_facts = [FOUR]
    rows: dict[str, object] = {}
    for name, size in zip("abcd", sizes, strict=True):
        values = RANDOM.normal(size=400)
        rows[f"{name}.weight"] = values
        output = f"{name}_output_0"
        rows[output if kind == "output" else f"gradient/{name}.weight"] = values * size
    run.step(0, rows)
    return run


@pytest.mark.parametrize(
    ("sizes", "n_findings"),
    [
        ([1.0, 6.0, 30.0, 150.0], 1),
        ([1.0, 0.15, 0.03, 0.005], 1),
        ([1.0, 2.0, 4.0, 8.0], 0),
        ([1.0, 100.0, 1.0, 100.0], 0),
        ([1.0, 1.0, 1.0, 1e-3], 0),
    ],
)
def test_outputs_may_not_grow_or_shrink_from_layer_to_layer(
    sizes: list[float], n_findings: int
):
    found = judge(chained("output", sizes), PoorWeightInitialization())
    assert len(found) == n_findings
    if found:
        assert found[0].tensor == "d_output_0"
        assert ("grow" in found[0].message) == (sizes[-1] > 1)


def test_gradients_may_not_either_and_the_first_layer_is_named():
    (finding,) = judge(
        chained("gradient", [1e-4, 2e-3, 4e-2, 1.0]), PoorWeightInitialization()
    )
    assert finding.tensor == "gradient/a.weight"
    assert "shrink towards the input" in finding.message


@pytest.mark.parametrize(
    ("large", "inputs", "n_findings"),
    [("ab", 64, 1), ("a", 64, 0), ("ab", 15, 0), ("", 64, 0)],
)
def test_weights_may_not_be_far_too_large_for_their_inputs(
    large: str, inputs: int, n_findings: int
):
    run = begun(
        **{
            name: RANDOM.normal(scale=1.0 if name in large else 0.2, size=8 * inputs)
            for name in "abc"
        }
    )
    shapes = dict.fromkeys(("a__weight", "b__weight", "c__weight"), (8, inputs))
    run.known_facts = [known(**shapes)]
    found = judge(run, PoorWeightInitialization())
    assert len(found) == n_findings
    if found:
        assert found[0].tensor == "a.weight"
        assert found[0].value == pytest.approx(8.0, rel=0.2)
        assert "with 64 inputs to a unit" in found[0].message
        assert "deviation of 0.18" in found[0].advice


def test_outputs_all_on_one_side_are_reported_in_several_layers_only():
    wide = known(a__weight=(9, 9), b__weight=(9, 9), c__weight=(9, 9))

    def run_with(n_layers: int) -> FakeRun:
        run = begun()
        run.known_facts = [wide]
        rows = {
            f"{name}_output_0": RANDOM.normal(size=90) + (20 if i < n_layers else 0)
            for i, name in enumerate("abc")
        }
        run.step(0, rows)
        return run

    assert judge(run_with(1), PoorWeightInitialization()) == []
    (finding,) = judge(run_with(2), PoorWeightInitialization())
    assert "deviations away from zero" in finding.message


@pytest.mark.parametrize(
    ("loss", "spread", "n_findings"),
    [(2.3, 3.0, 0), (7.2, 60.0, 0), (7.4, 60.0, 1), (147.0, 6.0, 0)],
)
def test_a_first_loss_far_above_guessing_is_reported_unless_it_is_a_sum(
    loss: float, spread: float, n_findings: int
):
    run = begun()
    rows = {
        "CrossEntropyLoss_output_0": [loss],
        "CrossEntropyLoss_input_0": np.linspace(0, spread, 640),
        "CrossEntropyLoss_input_1": np.arange(64),
    }
    run.step(0, rows)
    run.tensor_of("CrossEntropyLoss_input_1").dtype = "int64"
    for name, role in (("input_0", "prediction"), ("input_1", "label")):
        run.tensor_of(f"CrossEntropyLoss_{name}").role = role
    found = judge(run, PoorWeightInitialization())
    assert len(found) == n_findings
    if found:
        assert "guessing among 10 classes gives 2.3" in found[0].message


@pytest.mark.parametrize("flags", FLAGS[:2])
def test_first_steps_that_are_not_whole_are_not_judged(flags: dict[str, bool]):
    run = begun(a=np.ones(16), b=np.ones(16))
    run.step(0, **flags)
    assert judge(run, PoorWeightInitialization()) == []


@pytest.mark.parametrize(
    "name",
    [
        "steps",
        "threshold",
        "gradient_threshold",
        "asymmetry",
        "gain",
        "loss_excess",
    ],
)
def test_parameters_of_the_beginning_are_checked(name: str):
    with pytest.raises(ConfigurationError, match=f"PoorWeightInitialization.{name}"):
        PoorWeightInitialization(**{name: 0})
