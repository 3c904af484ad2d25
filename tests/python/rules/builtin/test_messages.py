"""What was measured is told: numbers in messages and advice are those of the run.

Only the parts with numbers are held here; the words between may change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rules_fake import FakeRun, judge
from tdbg.modes import ModeKeys
from tdbg.rules import (
    AllZero,
    DeadEmbedding,
    DeadRelu,
    ExplodingGradient,
    ExplodingTensor,
    LossMisuse,
    LossNotDecreasing,
    LossSpike,
    NotNormalizedData,
    Rule,
    SaturatedActivation,
    StoppedOptimizer,
    TensorVariance,
    UnchangedTensor,
    Underfitting,
    UnregisteredParameter,
    UnshuffledData,
    VanishingGradient,
    VanishingLearningRate,
    WeightUpdateRatio,
    ZeroLearningRate,
)
from tdbg.run.loss_facts import LossFact, LossFault, UntrainedParameter
from tdbg.run.model_info import ModelInfo, ParameterFacts

LOSS = "CrossEntropyLoss_output_0"
SIGNS = np.resize([1.0, -1.0], 8)


def repeated(n_steps: int, **rows: object) -> FakeRun:
    run = FakeRun(every=10)
    for step in range(n_steps):
        run.step(step, {name.replace("__", "/"): row for name, row in rows.items()})
    return run


def two_of_three(sick: object, sound: object, name: str) -> FakeRun:
    """Tensors 0 and 1 are sick, 2 is not."""
    rows = {name.format(i): sick if i < 2 else sound for i in range(3)}
    run = FakeRun(every=10)
    for step in range(5):
        run.step(step, rows)
    return run


def unchanged() -> FakeRun:
    run = two_of_three(np.full(4, 0.5), np.full(4, 0.5), "{}.weight")
    for step in range(5):
        rows: dict[str, object] = {f"gradient/{i}.weight": [1.0] for i in range(3)}
        run.step(step, rows | {"2.weight": [float(step)]})
    return run


def grown() -> FakeRun:
    """Gradients of norm 3 and 4, and one of 30, then 300 times as large but one."""
    run = FakeRun(every=10)
    for step in range(10):
        scale = 300.0 if step == 9 else 1.0
        rows = {f"gradient/{i}.weight": [scale * norm] for i, norm in enumerate((3, 4))}
        run.step(step, rows | {"gradient/2.weight": [30.0]})
    return run


def of_losses(values: list[float]) -> FakeRun:
    run = FakeRun(every=10)
    for step, value in enumerate(values):
        run.step(step, {LOSS: [value]})
    return run


def underfits() -> FakeRun:
    run = FakeRun(every=10)
    for step in range(210):
        mode = ModeKeys.EVAL if step == 50 else ModeKeys.TRAIN
        value = 1.9 if step == 50 else 2.0 if step < 105 else 1.98
        run.step(step, {LOSS: [value]}, mode=mode)
    return run


def of_units(name: str, active: list[int], beyond: list[int]) -> FakeRun:
    run = FakeRun(every=10)
    linear = ParameterFacts(
        shape=(4, 4), dtype="float32", requires_grad=True, module="Linear"
    )
    modules = {"0": "Linear", "1": "Tanh", "2": "Linear", "3": "ReLU", "4": "Linear"}
    parameters = {f"{i}.weight": linear for i in (0, 2, 4)}
    run.known_facts = [ModelInfo(step=0, modules=modules, parameters=parameters)]
    for step in range(4):
        run.units(step, name, active, 200, beyond)
        run.step(step)
    return run


def embedded() -> FakeRun:
    run = FakeRun(every=10)
    for step in range(12):
        # Of 50 rows 10 are always used, one once and none twice.
        used = (np.arange(50) < 10) | ((np.arange(50) == 20) & (step == 3))
        run.units(step, "gradient/e.weight", used * 2, 2)
        run.step(step)
    return run


def updated(*ratios: float) -> FakeRun:
    rows: dict[str, object] = {}
    for i, ratio in enumerate(ratios):
        rows |= {f"{i}.weight": SIGNS, f"update__{i}.weight": ratio * SIGNS}
    return repeated(6, **rows)


def rates(*given: float) -> FakeRun:
    run = FakeRun(every=10)
    for step in range(5):
        for i, rate in enumerate(given):
            run.scalar(step, f"optimizer/group_{i}/lr", rate)
        run.step(step)
    return run


def decayed() -> FakeRun:
    """From 0.25 at step 4 by half at each step to 0.25 / 1024 at step 14."""
    run = FakeRun()
    for step in range(40):
        rate = 0.25 * 0.5 ** min(10, step - 4) if step >= 4 else 0.01
        run.scalar(step, "optimizer/group_0/lr", rate)
        run.step(step)
    return run


def sorted_in_halves() -> FakeRun:
    """Batches of the classes 0 to 3, then of 4 to 7: means of 1.5 and 5.5."""
    run = FakeRun(every=10)
    for step in range(10):
        labels = np.arange(8) % 4 + 4 * (step >= 5)
        run.step(step, {"CrossEntropyLoss_input_1": labels})
        run.tensor_of("CrossEntropyLoss_input_1").dtype = "int64"
    return run


def known(**facts: Any) -> FakeRun:
    run = of_losses([2.0] * 2)
    run.known_facts = [
        ModelInfo(step=0, modules={"Net": "Net"}, optimizers=("Adam",), **facts)
    ]
    return run


def untrained(*parameters: tuple[str | None, bool]) -> FakeRun:
    return known(
        untrained=tuple(
            UntrainedParameter(name, (4, 8), is_training)
            for name, is_training in parameters
        )
    )


def fed(mean: float, std: float, name: str = "Model_input_0") -> FakeRun:
    return repeated(3, **{name: mean + std * np.resize([1.0, -1.0], 600)})


@pytest.mark.parametrize(
    ("run", "rule", "value", "threshold", "parts"),
    [
        (two_of_three(np.full(4, 1e-9), np.ones(4), "gradient/{}.weight"),
         VanishingGradient(), 1e-9, 1e-7,
         ["is 1e-9 at", "100 times smaller than the limit of 1e-7",
          "1 billion times smaller than gradient/2.weight", "2 of 3 layers are"]),
        (two_of_three(np.zeros(8), SIGNS, "{}_output_0"), AllZero(), 100, 100,
         ["All 8 elements", "at 3 recorded steps", "1 other tensor too"]),
        (two_of_three(5 + 1e-5 * SIGNS, SIGNS, "{}_output_0"), TensorVariance(),
         1e-10, 25e-8, ["variance was 1e-10", "close to 5:",
          "The output of this layer is"]),
        (repeated(4, Model_input_0=3 + 0 * SIGNS), TensorVariance(), 0, 9e-8,
         ["variance was 0,", "close to 3:", "The data is"]),
        (repeated(4, a_output_0=3 * SIGNS), TensorVariance(max_threshold=8.0), 9, 8,
         ["too large: 9, above the limit of 8"]),
        (repeated(4, a_output_0=3 * SIGNS), TensorVariance(min_threshold=10.0), 9, 10,
         ["variance was 9,"]),
        (unchanged(), UnchangedTensor(), 0, 0,
         ["at 3 recorded steps", "(mean 0.5, L2 norm 1)",
          "2 of 3 tensors are affected"]),
        (grown(), ExplodingGradient(), 300, 100,
         ["norm is 900, 300 times its median over the last 20 recorded steps (3)",
          "2 of 3 gradients", "is 1,500 now and was about 5.", "max_norm=10."]),
        (repeated(2, gradient__a=[3e18]), ExplodingGradient(), 3e18, 1e18,
         ["norm is 3e18"]),
        (of_losses([4.0] * 10 + [2.0] * 60 + [5.0] * 2), LossSpike(), 3.0, 1.0,
         ["jumped from 2,", "the 50 recorded steps before, to 5.", "started at 4."]),
        (of_losses([4.0] * 25 + [4.2] * 25), LossNotDecreasing(), -5.0, 0.5,
         ["25 recorded steps rose by 5%, from 4 to 4.2,", "by at least 0.5%",
          "5% above its start", "The loss rises"]),
        (of_losses([4.0] * 25 + [3.99] * 25), LossNotDecreasing(), 0.25, 0.5,
         ["fell by 0.25%, from 4 to 3.99,", "0.25% below its start",
          "does not learn"]),
        (of_losses([4.0] * 10 + [3.0] * 40 + [2.985] * 50), LossNotDecreasing(), 0.5, 1,
         ["50 recorded steps fell by 0.5%, from 3 to 2.985,", "25% below its",
          "does not learn"]),
        (of_losses([4.0] * 10 + [5.0] * 10), LossNotDecreasing(), -25.0, 1.0,
         ["last 10 values", "first 10, and their median rose from 4 to 5.",
          "loss rises"]),
        (underfits(), Underfitting(), 1.0, 30.0,
         ["flat at 1.98 (1.9 in validation), only 1% below its start of 2."]),
        (of_units("3_output_0", [0, 0, 0, 0, 0, 0, 1, 9], [0] * 8), DeadRelu(), 87.5,
         80, ["7 of 8 units (88%)", "less than 1%",
          "last 3 recorded steps, and 6 of "]),
        (of_units("1_output_0", [9] * 8, [200] * 6 + [0] * 2), SaturatedActivation(),
         75, 50, ["6 of 8 units (75%)", "more than 90%", "last 3 recorded steps",
                  "75% of this layer's values"]),
        (embedded(), DeadEmbedding(), 78.0, 50.0,
         ["11 of 50 rows had a gradient in the last 10 recorded steps", "About 78%",
          "this data needs about 11 rows"]),
        (updated(1e-8, 1e-8, 1e-9), WeightUpdateRatio(), 1e-8, 1e-6,
         ["1e-6% of the weight", "at 5 recorded steps",
          "All 3 weights are affected: 0.",
          "about 100,000-fold", "about 1 million steps"]),
        (updated(1e-3, 1e-3, 1e-9), WeightUpdateRatio(), 1e-9, 1e-6,
         ["1e-7% of the weight", "1 of 3 weights is affected.",
          "The median update is 0.1% of its weight"]),
        (updated(1e-3, 5.0, 2.0), WeightUpdateRatio(), 5.0, 1.0,
         ["update is 5 times as large",
          "2 of 3 weights are affected: 1.weight, 2.weight",
          "about 500-fold"]),
        (rates(0.0, 0.5, 0.2), ZeroLearningRate(), 0, 0,
         ["0 at 3 recorded steps", "1 of 3 parameter groups is", "up to 0.5."]),
        (rates(0.0, 0.0), ZeroLearningRate(), 0, 0,
         ["0 at 3 recorded steps", "Both parameter groups", "No parameter changes"]),
        (decayed(), VanishingLearningRate(remaining=1e-3), 2**-10, 1e-3,
         ["fell from 0.25 to 0.00024 within 29 steps", "For 19 steps, it has changed",
          "ends after about 10 steps"]),
        (sorted_in_halves(), UnshuffledData(), 400 / 5.25, 50,
         ["76% of the labels' variance is between batches"]),
        (known(has_stopped=True), StoppedOptimizer(), 0, 1,
         ["(Adam) has never stepped"]),
        (untrained(("Net.layers[0].weight", True), (None, False)),
         UnregisteredParameter(), 2, 0,
         ["2 parameters", "Net.layers[0].weight, one of shape (4, 8)", "ModuleList"]),
        (untrained((None, True)), UnregisteredParameter(), 1, 0, ["add_param_group"]),
        (untrained((None, False)), UnregisteredParameter(), 1, 0,
         ["requires_grad_(False)"]),
        (fed(4.0, 1.0), NotNormalizedData(), 4.0, 3.0,
         ["mean is 4, far from 0 (standard deviation 1)", "from each input"]),
        (fed(0.0, 6.0), NotNormalizedData(), 6.0, 5.0, ["is 6, far above 1 (mean 0)"]),
        (fed(0.0, 0.01), NotNormalizedData(), 0.01, 0.02, ["is 0.01, far below 1"]),
        (fed(40.0, 1.0, "MSELoss_input_1"), NotNormalizedData(), 40.0, 30.0,
         ["mean is 40,", "from each target", "undo the scaling in predictions"]),
        (fed(0.0, 60.0, "L1Loss_input_1"), NotNormalizedData(), 60.0, 50.0, ["is 60,"]),
        (fed(0.0, 0.001, "HuberLoss_input_1"), NotNormalizedData(), 0.001, 0.002,
         ["is 0.001, far below 1"]),
    ],
    ids=lambda given: getattr(given, "name", ""),
)  # fmt: skip
def test_the_first_finding_tells_what_was_measured(
    run: FakeRun, rule: Rule, value: float, threshold: float, parts: list[str]
) -> None:
    finding = judge(run, rule)[0]
    assert finding.value == pytest.approx(value)
    assert finding.threshold == pytest.approx(threshold)
    told = f"{finding.message}\n{finding.advice}"
    for part in parts:
        assert part in told


@pytest.mark.parametrize(
    ("fault", "shapes", "value", "threshold", "parts"),
    [
        ("softmax_twice", [(32, 10)], 1.461, 0, ["of shape (32, 10)", "below 1.46"]),
        ("sigmoid_twice", [(32, 1)], 0.3133, 0, ["of shape (32, 1)", "below 0.313"]),
        ("likelihood_of_scores", [(32, 10)], 1, 0, ["(32, 10)", "cross_entropy"]),
        ("likelihood_of_probabilities", [], 1, 0, ["softmax, instead of their",
          "log_softmax"]),
        ("softmax_over_samples", [(32, 10)], 32, 1,
         ["32 samples of a batch instead of the 10 classes", "dim=1"]),
        ("softmax_of_one", [(32, 1)], 1, 1, ["(32, 1). Its result is always 1",
          "with_logits"]),
        ("broadcast", [(32, 1), (32, 32)], 1024, 32,
         ["shape (32, 1)", "broadcast to (32, 32)", "targets.unsqueeze(1)"]),
        ("negated", [], -1, 0, ["the negative of named", "Remove the minus sign"]),
        ("no_graph", [], 0, 0, ["no parameter gets a gradient", "loss.item()"]),
        ("mean_over_classes", [(32, 10), (10, 2)], 0.1, 1,
         ["by the 10 classes as well", "Beside 1 other term", "batchmean"]),
        ("targets_out_of_reach", [(20, 64), (-3, 4)], 20 / 64, 0,
         ["20 of 64 targets", "between -3 and 4", "Scale the targets"]),
        ("summed", [(32, 10)], 32, 1, ["about 32 times", 'reduction="mean"']),
    ],
)  # fmt: skip
def test_what_a_loss_is_misused_for_is_told_with_its_shapes(
    fault: str,
    shapes: list[tuple[int, ...]],
    value: float,
    threshold: float,
    parts: list[str],
) -> None:
    fact = LossFact(LossFault(fault), "named", tuple(shapes))
    (finding,) = judge(known(loss_facts=(fact,)), LossMisuse())
    assert (finding.tensor, finding.step) == (LOSS, 0)
    assert finding.value == pytest.approx(value, rel=1e-3)
    assert finding.threshold == threshold
    for part in parts:
        assert part in f"{finding.message}\n{finding.advice}"


def test_of_several_misuses_the_worst_is_told_first_with_its_advice() -> None:
    facts = [
        LossFact(LossFault(fault), "named", ((32, 10),))
        for fault in ("summed", "softmax_twice")
    ]
    (finding,) = judge(known(loss_facts=tuple(facts)), LossMisuse())
    first, _, second = finding.message.partition("1.46. ")
    assert first.endswith("below ")
    assert "about 32 times" in second
    assert "from before the softmax" in finding.advice


def not_finite(name: str, *others: str) -> FakeRun:
    values = [np.nan, np.nan, np.inf, -np.inf, -np.inf, -np.inf, 1.0, 2.0, 3.0]
    run = repeated(2, **{each: [1.0] for each in (name, *others)})
    run.step(2, {name: values} | {each: [np.nan] for each in others})
    return run


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Model_input_0", "The data already contains it"),
        ("0_output_0", "Look for log, exp"),
        ("Loss_output_0", "The inputs of the loss"),
        ("0.weight", "The update of the previous step"),
        ("gradient/0.weight", "The forward pass was finite"),
    ],
)
def test_of_what_is_not_finite_first_it_is_told_how_much_and_what_to_do(
    name: str, advice: str
) -> None:
    later = [f"{i}_output_0" for i in range(3, 8)]
    (finding,) = judge(not_finite(name, *later), ExplodingTensor())
    assert (finding.tensor, finding.step, finding.value) == (name, 2, 6.0)
    assert "2 NaN, 1 +Inf and 3 -Inf among 9 elements" in finding.message
    assert "3_output_0, 4_output_0, 5_output_0 and 2 more" in finding.message
    assert advice in finding.advice


Where = dict[str, list[float]]


@pytest.mark.parametrize(
    ("n_workers", "rows", "says"),
    [
        (1, {"worker_0": [np.nan]}, ""),
        (2, {"worker_0": [1.0], "worker_1": [np.nan]}, ", on worker_1 of 2 workers"),
        (2, {"worker_0": [np.inf], "worker_1": [1.0]}, ", on worker_0 of 2 workers"),
        (2, {"worker_0": [-np.inf], "worker_1": [1.0]}, ", on worker_0 of 2 workers"),
        (2, {"worker_0": [1.0], "worker_1": [1.0]}, ""),
        (2, {"worker_0": [np.nan]}, ""),
    ],
)
def test_the_worker_is_told_where_there_are_several(
    n_workers: int, rows: Where, says: str
) -> None:
    run = not_finite("0.weight")
    run.n_workers = n_workers
    run.by_worker(2, "0.weight", rows)
    (finding,) = judge(run, ExplodingTensor())
    assert (" of 2 workers" in finding.message) == bool(says)
    assert says in finding.message


@pytest.mark.parametrize(
    ("captured", "differs_at", "n_findings"),
    [((0, 2), 2, 0), ((0, 2), 1, 1), ((0, 2), None, 1), ((2,), 2, 1), ((0,), 2, 1)],
)
def test_where_values_were_kept_rows_alone_do_not_say_unchanged(
    captured: tuple[int, ...], differs_at: int | None, n_findings: int
) -> None:
    """The first and the last of the steps are compared, if both were kept."""
    run = FakeRun(every=10)
    for step in range(3):
        run.step(step, {"a.weight": [1.0, 2.0], "gradient/a.weight": [1.0]})
        if step in captured:
            swapped = step == differs_at
            run.value(step, "a.weight", [2.0, 1.0] if swapped else [1.0, 2.0])
    for rule in (UnchangedTensor(), UnchangedTensor(rtol=0.1)):
        assert len(judge(run, rule)) == n_findings
    assert len(judge(run, UnchangedTensor(atol=2.0))) == 1


@pytest.mark.parametrize(("first", "n_findings"), [(1.0, 0), (1e-7, 1)])
def test_a_weight_that_has_arrived_stays(first: float, n_findings: int) -> None:
    """Its gradient was larger at first; one that never was is a fault."""
    run = FakeRun(every=10)
    for step in range(5):
        gradient = first if step == 0 else 1e-7
        run.step(step, {"a.weight": [1.0, 2.0], "gradient/a.weight": [gradient]})
    assert len(judge(run, UnchangedTensor())) == n_findings


def test_what_no_optimizer_has_is_not_said_to_be_unchanged() -> None:
    run = repeated(4, **{"a.weight": [1.0], "gradient/a.weight": [1.0]})
    for optimizer, complete, n_findings in (
        ("SGD", True, 1),
        (None, True, 0),
        (None, False, 1),
    ):
        parameter = ParameterFacts(
            shape=(1,),
            dtype="float32",
            requires_grad=True,
            module="Linear",
            optimizer=optimizer,
        )
        parameters = {"a.weight": parameter}
        run.known_facts = [ModelInfo(step=0, complete=complete, parameters=parameters)]
        assert len(judge(run, UnchangedTensor())) == n_findings
