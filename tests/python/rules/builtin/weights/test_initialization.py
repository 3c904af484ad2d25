"""PoorWeightInitialization at its limits, check by check."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rules_by_the_book import spied
from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.modes import ModeKeys
from tdbg.rules import PoorWeightInitialization
from tdbg.rules.builtin.weights.signal_propagation import chain_of_most_change
from tdbg.run.findings import Finding, Severity
from tdbg.run.model_info import ModelInfo, ParameterFacts

RULE = PoorWeightInitialization()
LOSS = "CrossEntropyLoss"


def model_info(n_layers: int, n_units: int = 9) -> ModelInfo:
    """A model of Linear layers with so many units, which are 0, 1, ..."""
    linear = ParameterFacts(
        shape=(n_units, 9), dtype="float32", requires_grad=True, module="Linear"
    )
    return ModelInfo(
        step=0,
        modules={str(i): "Linear" for i in range(n_layers)},
        parameters={f"{i}.weight": linear for i in range(n_layers)},
    )


def sound(n_layers: int, seed: int = 0) -> dict[str, object]:
    """Weights and gradients of layers, as they should be."""
    random = np.random.default_rng(seed)
    rows: dict[str, object] = {}
    for i in range(n_layers):
        rows[f"{i}.weight"] = random.normal(size=81)
        rows[f"gradient/{i}.weight"] = random.normal(size=81)
    return rows


def begun(known: ModelInfo, *steps: dict[str, object], **flags: object) -> FakeRun:
    run = FakeRun()
    run.known_facts = [known]
    for step, rows in enumerate(steps):
        run.step(step, rows, **flags)
    return run


def found(run: FakeRun) -> list[Finding]:
    return judge(run, RULE)


@pytest.mark.parametrize(
    ("sizes", "threshold", "names"),
    [
        ([1.0, 10.0, 100.0, 1000.0], 1000.0, "0123"),
        ([1.0, 10.0, 100.0, 1000.0], 1000.1, ""),
        ([1000.0, 100.0, 10.0, 1.0], 1000.0, "0123"),
        ([1.0, 100.0, 10000.0], 100.0, ""),
        ([1.0, 1.5, 2.25, 3.375], 3.0, "0123"),
        ([1.0, 1.49, 2.25, 3.375], 3.0, ""),
        ([1.0, 2.0, 4.0, 8.0, 8.0, 80.0, 800.0, 8000.0], 8.0, "4567"),
        ([1.0, 10.0, 100.0, 1000.0, 1000.0, 2000.0, 4000.0, 8000.0], 8.0, "0123"),
        ([8.0, 1.0, 2.0, 4.0, 8.0, 1.0], 8.0, "1234"),
        ([1.0, 0.0, 2.0, 4.0, 8.0], 8.0, "0234"),
        ([0.0, 0.0], 1.0, ""),
        ([], 1.0, ""),
    ],
)
def test_the_chain_with_the_greatest_change_is_found(
    sizes: list[float], threshold: float, names: str
) -> None:
    given = {str(i): size for i, size in enumerate(sizes)}
    assert "".join(chain_of_most_change(given, threshold)) == names


def outputs(sizes: list[float]) -> dict[str, object]:
    """Outputs with these root mean squares."""
    return {f"{i}_output_0": size * np.resize([1.0, -1.0], 8) for i, size in
            enumerate(sizes)}  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "says", "advises"),
    [
        ([1.0, 10.0, 100.0, 1000.0], "grow from layer to layer, 10-fold", "divide"),
        (
            [8.0, 0.8, 0.08, 0.008],
            "shrink from layer to layer, 10-fold",
            "multiply",
        ),
    ],
)
def test_the_gain_of_layers_is_told(
    sizes: list[float], says: str, advises: str
) -> None:
    (finding,) = found(begun(model_info(4), sound(4) | outputs(sizes)))
    assert (finding.tensor, finding.severity) == ("3_output_0", Severity.WARNING)
    assert says in finding.message
    assert (
        f"square is {sizes[0]:g} at 0_output_0 and {sizes[3]:,g} here, 3 layers later"
        in (finding.message)
    )
    assert f"{advises} the initial weights by 10 " in finding.advice
    assert finding.value == pytest.approx(1000.0)
    assert finding.threshold == 100.0


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([1.0, 20.0, 400.0, 8000.0], "shrink towards the input, 8,000-fold over 4"),
        ([8000.0, 400.0, 20.0, 1.0], "grow towards the input, 8,000-fold over 4"),
    ],
)
def test_what_becomes_of_gradients_is_told(sizes: list[float], says: str) -> None:
    ones = np.resize([1.0, -1.0], 8)
    rows = {f"gradient/{i}.weight": size * ones for i, size in enumerate(sizes)}
    (finding,) = found(begun(model_info(4), sound(4) | rows))
    assert (finding.tensor, finding.severity) == (
        "gradient/0.weight",
        Severity.WARNING,
    )
    assert says in finding.message
    assert f"square is {sizes[3]:,g} at gradient/3.weight and {sizes[0]:,g} here" in (
        finding.message
    )
    assert finding.value == pytest.approx(8000.0)


def test_gradients_of_two_optimizers_are_no_chain() -> None:
    """A critic and a generator: each has a loss of its own."""
    ones = np.resize([1.0, -1.0], 8)
    sizes = [8000.0, 400.0, 20.0, 1.0]
    rows = {f"gradient/{i}.weight": size * ones for i, size in enumerate(sizes)}
    known = model_info(4)
    of_two = {
        name: replace(facts, optimizer=int(i > 1))
        for i, (name, facts) in enumerate(known.parameters.items())
    }
    assert found(begun(replace(known, parameters=of_two), sound(4) | rows)) == []
    of_one = {
        name: replace(facts, optimizer=0) for name, facts in known.parameters.items()
    }
    assert len(found(begun(replace(known, parameters=of_one), sound(4) | rows))) == 1


def shifted(n_sick: int, n_layers: int, by: float) -> dict[str, object]:
    """Outputs of deviation 1, of which some are so far away from zero."""
    ones = np.resize([1.0, -1.0], 8)
    return {
        f"{i}_output_0": ones + (by if i < n_sick else 0.0) for i in range(n_layers)
    }


@pytest.mark.parametrize(
    ("n_sick", "n_layers", "by", "n_units", "n_findings"),
    [
        (2, 2, 5.5, 8, 1),
        (2, 2, 5.0, 8, 0),
        (2, 2, -5.5, 8, 1),
        (2, 2, 5.5, 7, 0),
        (1, 1, 9.0, 8, 0),
        (2, 4, 5.5, 8, 1),
        (2, 5, 5.5, 8, 0),
    ],
)
def test_outputs_of_half_of_the_layers_must_be_on_one_side(
    n_sick: int, n_layers: int, by: float, n_units: int, n_findings: int
) -> None:
    rows = sound(n_layers) | shifted(n_sick, n_layers, by)
    findings = found(begun(model_info(n_layers, n_units), rows))
    assert len(findings) == n_findings
    for finding in findings:
        assert (finding.tensor, finding.severity) == ("0_output_0", Severity.WARNING)
        assert f"their mean, {by:g}, is 5.5 standard dev" in finding.message
        assert ("Both layers" if n_layers == 2 else "2 of ") in finding.message
        assert finding.value == pytest.approx(5.5)


def guessed(
    loss: float, n_classes: int, spread: float, dtype: str = "int64", name: str = LOSS
) -> FakeRun:
    """A first loss of so many classes, of outputs from -spread / 2 to spread / 2."""
    scores = np.linspace(-spread / 2, spread / 2, 8 * n_classes)
    run = begun(
        model_info(1),
        sound(1)
        | {f"{name}_output_0": [loss], f"{name}_input_0": scores}
        | {f"{name}_input_1": np.zeros(8)},
    )
    run.tensor_of(f"{name}_input_1").dtype = dtype
    return run


TWO, TEN = math.log(2), math.log(10)


@pytest.mark.parametrize(
    ("run", "n_findings"),
    [
        (guessed(TEN + 5.01, 10, 20.0), 1),
        (guessed(TEN + 5.0, 10, 20.0), 0),
        (guessed(TEN + 8.0, 10, 8.0), 1),
        (guessed(TEN + 8.1, 10, 8.0), 0),
        (guessed(TWO + 6.0, 2, 20.0), 1),
        (guessed(6.0, 1, 20.0), 0),
        (guessed(TEN + 6.0, 10, 20.0, dtype="float32"), 0),
        (guessed(TEN + 6.0, 10, 20.0, name="NLLLoss"), 0),
        (guessed(TEN + 6.0, 10, 20.0, name="cross_entropy_Loss"), 1),
    ],
)
def test_the_first_loss_is_held_against_guessing(run: FakeRun, n_findings: int) -> None:
    findings = found(run)
    assert len(findings) == n_findings
    for finding in findings:
        assert finding.severity is Severity.WARNING
        assert finding.value > 5.0 == finding.threshold


@pytest.mark.parametrize(
    ("size", "dtype", "n_findings"),
    [
        (0.1, "float32", 1),
        (1.1, "float32", 1),
        (1.3, "float32", 0),
        (200.0, "float32", 0),
        (200.0, "int64", 1),
    ],
)
def test_large_inputs_make_the_first_loss_large_and_are_the_fault_of_the_data(
    size: float, dtype: str, n_findings: int
) -> None:
    """The excess of 6 is that of inputs of size one, if they are no larger."""
    run = guessed(TEN + 6.0, 10, 20.0)
    run.step(0, {"Net_input_0": np.full(8, size)})
    run.tensor_of("Net_input_0").dtype = dtype
    run.tensor_of("Net_input_0").role = "input"
    assert len(found(run)) == n_findings


def test_a_model_that_was_trained_before_may_be_sure_at_first() -> None:
    run = guessed(TEN + 6.0, 10, 20.0)
    known = model_info(2)
    frozen = replace(known.parameters["1.weight"], requires_grad=False)
    for is_frozen in (False, True):
        changed = {"1.weight": frozen} if is_frozen else {}
        run.known_facts = [replace(known, parameters=known.parameters | changed)]
        assert len(found(run)) == (not is_frozen)


def test_logits_that_a_program_multiplies_may_be_large_at_first() -> None:
    run = guessed(TEN + 60.0, 10, 128.0)
    for scale in (1.0, 11.0, 64.0):
        run.known_facts = [replace(model_info(2), logit_scale=scale)]
        assert len(found(run)) == (scale < 12)


def test_only_the_very_first_loss_is() -> None:
    good, bad = guessed(TEN, 10, 20.0), guessed(TEN + 9.0, 10, 20.0)
    for name, tensor in good.tensors.items():
        tensor.rows[1] = bad.tensors[name].rows[0]
    good.step(1)
    assert found(good) == []


EQUAL = np.full(81, 0.125)


@pytest.mark.parametrize(
    ("alike", "severity"),
    [("0", Severity.WARNING), ("02", Severity.WARNING), ("12", Severity.ERROR)],
)
def test_equal_weights_are_an_error_side_by_side(
    alike: str, severity: Severity
) -> None:
    rows = {f"{i}.weight": EQUAL for i in alike}
    (finding,) = found(begun(model_info(3), sound(3) | rows))
    assert (finding.tensor, finding.severity) == (f"{alike[0]}.weight", severity)
    assert finding.value == len(alike)
    assert "9 units have the same initial weights (mean 0.125)" in finding.message
    assert f"{len(alike)} of 3 layers" in finding.message


@pytest.mark.parametrize(("beside", "n_findings"), [("drawn", 0), ("alike", 1)])
def test_scales_beside_weights_that_are_drawn_may_begin_alike(
    beside: str, n_findings: int
) -> None:
    """As in the layers of a Kolmogorov-Arnold network."""
    own = ParameterFacts(
        shape=(9, 9), dtype="float32", requires_grad=True, module="KANLayer"
    )
    names = ("coef", "scale")
    known = ModelInfo(
        step=0,
        modules={"0": "KANLayer"},
        parameters={f"0.{name}": own for name in names},
    )
    rows = sound(2)
    drawn = rows["0.weight"] if beside == "drawn" else EQUAL
    run = begun(
        known,
        {
            "0.coef": drawn,
            "0.scale": EQUAL,
            "gradient/0.coef": rows["gradient/0.weight"],
            "gradient/0.scale": rows["gradient/1.weight"],
        },
    )
    assert len(found(run)) == n_findings


def test_units_are_alike_only_if_all_are() -> None:
    values = np.tile(np.arange(9.0), (9, 1))
    run = begun(model_info(1), sound(1))
    run.value(0, "0.weight", values)
    assert len(found(run)) == 1
    for row in (1, 8):
        other = values.copy()
        other[row] += 1.0
        run.value(0, "0.weight", other)
        assert found(run) == []


@pytest.mark.parametrize(
    ("apart", "n_findings"), [(0.0, 1), (1e-6, 1), (0.1, 0), (np.nan, 1)]
)
def test_units_that_get_different_gradients_do_not_stay_alike(
    apart: float, n_findings: int
) -> None:
    """As the channels of a state-space model, which have inputs of their own."""
    run = begun(model_info(1), sound(1))
    run.value(0, "0.weight", np.tile(np.arange(9.0), (9, 1)))
    gradient = np.full((9, 9), 0.5)
    gradient[4] += apart
    run.value(0, "gradient/0.weight", gradient)
    assert len(found(run)) == n_findings


def widened(n_kinds: int, *, told_apart: bool = False) -> FakeRun:
    """Two layers of nine units, of which the first has so many kinds."""
    random = np.random.default_rng(1)
    kinds = np.arange(9) % n_kinds
    run = begun(model_info(2), sound(2))
    run.value(0, "0.weight", random.normal(size=(9, 9))[kinds])
    following = random.normal(size=(9, 9))
    if not told_apart:
        following = following[:, kinds]
    run.value(0, "1.weight", following)
    return run


def test_copies_of_units_are_found_if_what_follows_does_not_tell_them_apart() -> None:
    (finding,) = found(widened(4))
    assert (finding.tensor, finding.severity) == ("0.weight", Severity.WARNING)
    assert "Only 4 of 9 units have different" in finding.message
    assert "1.weight weighs the copies of a unit equally" in finding.message
    # Every second one is a copy at most, or what follows learns from each.
    assert found(widened(5)) == []
    assert found(widened(4, told_apart=True)) == []


@pytest.mark.parametrize("n_kinds", [4, 5])
def test_units_may_be_the_last_dimension_of_a_kernel(n_kinds: int) -> None:
    torch_run, run = widened(n_kinds), FakeRun()
    kernels = model_info(2)
    run.known_facts = [
        replace(
            kernels,
            modules={"enc/0": "Dense", "enc/1": "Dense"},
            kinds={"Dense": "linear"},
            parameters={
                f"enc/{i}/kernel": replace(
                    kernels.parameters[f"{i}.weight"], module="Dense", unit_axis=1
                )
                for i in range(2)
            },
        )
    ]
    rows = {
        name.replace(f"{i}.weight", f"enc/{i}/kernel"): values
        for i in range(2)
        for name, values in sound(2).items()
        if f"{i}.weight" in name
    }
    run.step(0, rows)
    for i in range(2):
        values = torch_run.tensors[f"{i}.weight"].values[0]
        run.value(0, f"enc/{i}/kernel", values.T)
    expected = [each.tensor for each in found(torch_run)]
    assert len(expected) == (n_kinds == 4)
    assert [each.tensor for each in found(run)] == [
        f"enc/{name.partition('.')[0]}/kernel" for name in expected
    ]


def test_weights_that_were_changed_before_are_not_initial() -> None:
    second = sound(2) | {"1.weight": EQUAL}
    assert found(begun(model_info(2), sound(2), second)) == []
    assert len(found(begun(model_info(2), second, sound(2)))) == 1


def test_frozen_weights_and_embeddings_are_left_out() -> None:
    rows = sound(2) | {"0.weight": EQUAL}
    known = model_info(2)
    assert len(found(begun(known, rows))) == 1
    for change in ({"requires_grad": False}, {"module": "Embedding"}, {"shape": (9,)}):
        given = replace(known.parameters["0.weight"], **change)  # type: ignore[arg-type]
        parameters = {**known.parameters, "0.weight": given}
        assert found(begun(replace(known, parameters=parameters), rows)) == []


def test_of_rows_that_are_lost_or_not_finite_nothing_is_said() -> None:
    rows = sound(2) | {"0.weight": EQUAL}
    for flags in ({"complete": False}, {"lossless": False}, {"mode": ModeKeys.EVAL}):
        assert spied(begun(model_info(2), rows, **flags), RULE) == {}
    assert len(found(begun(model_info(2), rows, mode=ModeKeys.GLOBAL))) == 1
    assert (
        found(begun(model_info(2), sound(2) | {"0.weight": np.append(EQUAL, np.nan)}))
        == []
    )


@pytest.mark.parametrize(("skipped", "n_judged"), [(False, 1), (True, 3)])
def test_the_first_step_is_judged_and_those_after_it_while_all_updates_are_skipped(
    skipped: bool, n_judged: int
) -> None:
    steps = [sound(2, seed) for seed in range(5)]
    expected = {
        (ModeKeys.TRAIN, name, step): 0
        for step, rows in enumerate(steps[:n_judged])
        for name in rows
    }
    run = begun(model_info(2), *steps, skipped=skipped)
    assert spied(run, RULE) == expected
    assert spied(run, RULE, max_window=1) == expected


def test_a_tensor_that_comes_late_has_seen_updates() -> None:
    steps = [sound(2, seed) for seed in range(3)]
    late = steps[0].pop("1.weight"), steps[0].pop("gradient/1.weight")
    assert late
    run = begun(model_info(2), *steps)
    for parts in ({}, {"max_window": 1}):
        seen = spied(run, RULE, **parts)
        assert {step for _, _, step in seen} == {0}


# ---- layers beside each other ----------------------------------------------------


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


RANDOM = np.random.default_rng(0)


def beginning(n_steps: int = 1, **weights: object) -> FakeRun:
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


@pytest.mark.parametrize(
    ("constant", "severity"),
    [("a", Severity.WARNING), ("ac", Severity.WARNING), ("ab", Severity.ERROR)],
)
def test_units_that_are_alike_are_an_error_where_their_neighbors_are_too(
    constant: str, severity: Severity
):
    run = beginning(**dict.fromkeys(constant, np.full(16, 0.1)))
    (finding,) = judge(run, PoorWeightInitialization())
    assert finding.tensor == "a.weight"
    assert finding.severity is severity
    assert "All 4 units have the same initial weights" in finding.message


def test_units_with_equal_rows_are_found_by_their_values():
    run = beginning()
    run.value(0, "b.weight", np.tile([1.0, 2.0, 3.0, 4.0], (4, 1)))
    run.value(0, "c.weight", RANDOM.normal(size=(4, 4)))
    (finding,) = judge(run, PoorWeightInitialization())
    assert finding.tensor == "b.weight"


def test_a_layer_of_zeros_is_an_error_only_if_no_gradient_reaches_it():
    zero = np.zeros(16)
    assert judge(beginning(c=zero), PoorWeightInitialization()) == []
    (finding,) = judge(beginning(b=zero, gb=zero), PoorWeightInitialization())
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


@pytest.mark.parametrize(
    ("large", "inputs", "n_findings"),
    [("ab", 64, 1), ("a", 64, 0), ("ab", 15, 0), ("", 64, 0)],
)
def test_weights_may_not_be_far_too_large_for_their_inputs(
    large: str, inputs: int, n_findings: int
):
    run = beginning(
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
        assert "with 64 inputs for each unit" in found[0].message
        assert "deviation of 0.18" in found[0].advice
