"""LossMisuse by numbers: losses that are given something else than they expect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdbg.pytorch as td
from rules_by_the_book import Row, Verdicts, spied
from rules_fake import FakeRun, judge, judge_in_parts, row_of
from tdbg.config.kinds import InputHandling, Kind
from tdbg.modes import ModeKeys
from tdbg.rules import LossMisuse, check
from tdbg.rules.builtin.loss.loss_inputs import broadcast_shape, wrong_axis
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo

CLASSES = "CrossEntropyLoss_input_0"
BITS = "BCEWithLogitsLoss_input_0"
WARNING = int(Severity.WARNING)
Severities = list[int | None]
RANDOM = np.random.default_rng(0)


def softmax(n: int, classes: int) -> np.ndarray:
    scores = np.exp(RANDOM.normal(size=(n, classes)))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def of_classes(n: int = 16, classes: int = 10, **changed: float) -> dict[str, Row]:
    """What a cross-entropy is given: probabilities, and numbers of classes."""
    row = row_of(softmax(n, classes)) | changed
    labels = row_of(np.arange(n) % classes) | {"count": row["count"] / classes}
    return {CLASSES: row, label_of(CLASSES): labels}


def of_bits(n: int = 64, **changed: float) -> dict[str, Row]:
    """What a binary cross-entropy is given: probabilities, and zeros and ones."""
    row = row_of(RANDOM.uniform(0.05, 0.95, n)) | changed
    return {BITS: row, label_of(BITS): row_of(np.arange(n) % 2)}


def label_of(prediction: str) -> str:
    return prediction.replace("_input_0", "_input_1")


def recorded(rows: Callable[[], dict[str, Row]], n_steps: int = 4) -> FakeRun:
    run = FakeRun(every=10)
    for step in range(n_steps):
        run.step(step, rows())
    return run


def severities(run: FakeRun, name: str) -> Severities:
    """The verdict at each step; None: unknown."""
    found: Verdicts = spied(run, LossMisuse())
    return [found.get((ModeKeys.TRAIN, name, step)) for step in sorted(run.steps)]


SQUASHED: Severities = [None, None, WARNING, WARNING]
SOUND: Severities = [0] * 4
UNKNOWN: Severities = [None] * 4


def test_probabilities_of_classes_are_named_with_the_floor_of_the_loss():
    (finding,) = judge(recorded(of_classes), LossMisuse())
    assert (finding.tensor, finding.step) == (CLASSES, 2)
    assert finding.severity is Severity.WARNING
    assert "160 numbers from" in finding.message
    assert "at 3 recorded steps in a row" in finding.message
    assert "gets the result of a softmax over 10 classes" in finding.message
    # The best there is: 1 for the right class and 0 for the others, as scores.
    right = np.exp(1.0) / (np.exp(1.0) + 9)
    assert finding.value == pytest.approx(-np.log(right))
    assert "cannot fall below 1.46" in finding.message
    assert "before the softmax or sigmoid" in finding.advice


def test_probabilities_of_yes_and_no_are_named_with_theirs():
    (finding,) = judge(recorded(of_bits), LossMisuse())
    assert (finding.tensor, finding.step) == (BITS, 2)
    assert finding.severity is Severity.WARNING
    assert "gets the result of a sigmoid" in finding.message
    assert finding.value == pytest.approx(-np.log(1 / (1 + np.exp(-1.0))))
    assert "cannot fall below 0.313" in finding.message


def test_scores_that_come_to_lie_within_zero_and_one_are_no_probabilities():
    run = FakeRun(every=10)
    for step in range(40):
        run.step(step, of_bits(**({"min": -0.3} if step < 2 else {})))
    assert judge(run, LossMisuse()) == []
    assert judge_in_parts(run, range(0, 40, 7), LossMisuse()) == []


def one_hot() -> dict[str, Row]:
    return {
        CLASSES: row_of(softmax(16, 4)),
        label_of(CLASSES): row_of(np.eye(4)[np.arange(16) % 4]),
    }


def test_labels_may_be_a_probability_for_each_class():
    (finding,) = judge(recorded(one_hot), LossMisuse())
    assert "softmax over 4 classes" in finding.message


def test_two_classes_are_no_yes_and_no():
    (finding,) = judge(recorded(lambda: of_classes(16, 2)), LossMisuse())
    assert "softmax over 2 classes" in finding.message
    assert finding.value == pytest.approx(np.log(1 + np.exp(-1.0)))
    assert finding.threshold == 0.0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, SQUASHED),
        ({"count": 32.0}, SQUASHED),
        ({"count": 31.0}, UNKNOWN),
        ({"min": 0.0}, SQUASHED),
        ({"min": -1e-9}, SOUND),
        ({"max": 1.0009}, SQUASHED),
        ({"max": 1.0011}, SOUND),
        ({"mean": 0.5 * 1.0009}, SQUASHED),
        ({"mean": 0.5 * 1.0011}, SOUND),
        ({"mean": 0.5 * 0.9989}, SOUND),
        ({"nan": 1.0}, UNKNOWN),
        ({"positive_infinity": 1.0}, UNKNOWN),
    ],
)
def test_the_limits_for_classes(changed: dict[str, float], expected: Severities):
    run = recorded(lambda: of_classes(16, 2, **changed))
    assert severities(run, CLASSES) == expected


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, SQUASHED),
        ({"count": 32.0}, SQUASHED),
        ({"count": 31.0}, UNKNOWN),
        ({"min": 1e-30}, SQUASHED),
        # A ReLU, or a layer that begins with zeros.
        ({"min": 0.0}, SOUND),
        ({"max": 1.0}, SQUASHED),
        ({"max": 1.0000001}, SOUND),
        ({"min": -0.1}, SOUND),
        ({"nan": 1.0}, UNKNOWN),
        ({"negative_infinity": 1.0}, UNKNOWN),
    ],
)
def test_the_limits_for_yes_and_no(changed: dict[str, float], expected: Severities):
    assert severities(recorded(lambda: of_bits(**changed)), BITS) == expected


def test_scores_are_sound():
    def scores() -> dict[str, Row]:
        return {
            CLASSES: row_of(RANDOM.normal(size=(16, 10))),
            label_of(CLASSES): row_of(np.arange(16) % 10),
            BITS: row_of(RANDOM.normal(size=64)),
        }

    run = recorded(scores)
    assert severities(run, CLASSES) == SOUND
    assert severities(run, BITS) == SOUND


def test_one_class_is_none():
    """A single output whose target is 1, whatever the loss makes of it."""
    ones = row_of(np.ones(64))
    run = recorded(lambda: {CLASSES: ones, label_of(CLASSES): ones})
    assert severities(run, CLASSES) == SOUND


LOGARITHMS = "NLLLoss_input_0"


def of_logarithms(**changed: float) -> dict[str, Row]:
    """What a log-likelihood is given."""
    return {LOGARITHMS: row_of(np.log(softmax(16, 10))) | changed}


def with_values(run: FakeRun, values: np.ndarray) -> FakeRun:
    """The same with what the likelihood was given, at each step."""
    for step in list(run.steps):
        run.value(step // run.every, LOGARITHMS, values)
    return run


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, SOUND),
        ({"max": 0.0}, SOUND),
        # A rounded logarithm of one.
        ({"max": 0.0009}, SOUND),
        ({"max": 0.0011}, SQUASHED),
        ({"max": 5.0, "count": 32.0}, SQUASHED),
        ({"max": 5.0, "count": 31.0}, UNKNOWN),
        ({"max": 5.0, "nan": 1.0}, UNKNOWN),
    ],
)
def test_the_limits_for_logarithms(changed: dict[str, float], expected: Severities):
    run = recorded(lambda: of_logarithms(**changed))
    assert severities(with_values(run, np.log(softmax(16, 10))), LOGARITHMS) == expected


def test_without_values_it_is_not_known_over_which_axis_they_are():
    assert severities(recorded(of_logarithms), LOGARITHMS) == UNKNOWN
    run = recorded(lambda: of_logarithms(max=1.0))
    assert severities(run, LOGARITHMS) == SQUASHED


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        (-3.0, 5.0, "never positive, but gets scores ("),
        (0.0, 1.0, "but gets probabilities ("),
    ],
)
def test_what_is_no_logarithm_is_named(least: float, most: float, said: str):
    run = recorded(lambda: of_logarithms(min=least, max=most))
    (finding,) = judge(run, LossMisuse())
    assert (finding.tensor, finding.value) == (LOGARITHMS, most)
    assert said in finding.message
    assert "CrossEntropyLoss" in finding.advice


def test_without_labels_the_classes_are_not_known():
    run = recorded(lambda: {CLASSES: of_classes()[CLASSES]})
    assert severities(run, CLASSES) == UNKNOWN
    run = recorded(of_classes)
    del run.tensor_of(label_of(CLASSES)).rows[10]
    # It takes three in a row, and the second is not known.
    assert severities(run, CLASSES) == UNKNOWN


@pytest.mark.parametrize(
    ("prediction", "rows", "expected"),
    [
        ("cross_entropy_input_0", of_classes, SQUASHED),
        ("CrossEntropyLoss_input_0@1", of_classes, SQUASHED),
        ("binary_cross_entropy_with_logits_input_0", of_bits, SQUASHED),
        ("BCEWithLogitsLoss_input_0@2", of_bits, SQUASHED),
        # They are to be given probabilities, or what is anything.
        ("BCELoss_input_0", of_bits, UNKNOWN),
        ("binary_cross_entropy_input_0", of_bits, UNKNOWN),
        ("NLLLoss_input_0", of_classes, SQUASHED),
        ("nll_loss_input_0@1", of_classes, SQUASHED),
        ("KLDivLoss_input_0", of_classes, SQUASHED),
        ("GaussianNLLLoss_input_0", of_classes, UNKNOWN),
        ("MSELoss_input_0", of_classes, UNKNOWN),
    ],
)
def test_which_losses_expect_scores(
    prediction: str, rows: Callable[[], dict[str, Row]], expected: Severities
):
    def renamed() -> dict[str, Row]:
        given, labels = rows().values()
        return {prediction: given, label_of(prediction): labels}

    run = recorded(renamed)
    run.tensor_of(prediction).role = "prediction"
    run.tensor_of(label_of(prediction)).role = "label"
    assert severities(run, prediction) == expected


def test_only_predictions_are_judged_and_only_with_labels():
    run = recorded(of_bits)
    run.tensor_of(BITS).role = "input"
    assert severities(run, BITS) == UNKNOWN
    run = recorded(of_classes)
    run.tensor_of(label_of(CLASSES)).role = "input"
    assert severities(run, CLASSES) == UNKNOWN


@pytest.mark.parametrize(("rows", "name"), [(of_classes, CLASSES), (of_bits, BITS)])
def test_a_step_without_predictions_is_unknown(
    rows: Callable[[], dict[str, Row]], name: str
):
    run = recorded(rows)
    del run.tensor_of(name).rows[30]
    assert severities(run, name) == [None, None, WARNING, None]


def test_each_call_of_a_loss_is_judged_with_its_own_labels():
    def two_calls() -> dict[str, Row]:
        first, second = of_classes(16, 10), of_classes(16, 4)
        return first | {f"{name}@1": row for name, row in second.items()}

    found = judge(recorded(two_calls), LossMisuse())
    assert [(each.tensor, "over 10 classes" in each.message) for each in found] == [
        (CLASSES, True),
        (f"{CLASSES}@1", False),
    ]
    assert "over 4 classes" in found[1].message


@pytest.mark.parametrize("rows", [of_classes, of_bits])
def test_it_must_last(rows: Callable[[], dict[str, Row]]):
    """Sabotaged: a PATIENCE of 2 or 4."""
    assert judge(recorded(rows, 2), LossMisuse()) == []
    assert len(judge(recorded(rows, 3), LossMisuse())) == 1
    dense = FakeRun()
    for step in range(12):
        dense.step(step, rows())
    assert judge(dense, LossMisuse())[0].step == 9


def test_what_is_between_begins_anew():
    """Sabotaged: a count that rows between do not end."""
    run = recorded(of_classes, 9)
    run.step(2, {**of_classes(), CLASSES: row_of(RANDOM.normal(size=160))})
    run.step(5, lossless=False)
    # Lost, that is, and after it three more are wanted.
    expected: Severities = [None, None, 0, None, None, None, None, None, WARNING]
    assert severities(run, CLASSES) == expected
    begin, *others = judge(run, LossMisuse())
    assert (begin.step, others) == (8, [])
    assert judge_in_parts(run, range(9), LossMisuse()) == [begin]


def test_evaluation_is_not_judged():
    run = FakeRun(every=10)
    for step in range(5):
        run.step(step, of_classes(), mode=ModeKeys.EVAL)
    assert judge(run, LossMisuse()) == []


# ---- a softmax over another axis -------------------------------------------------


def over(axis: int, *shape: int) -> np.ndarray:
    """Logarithms of probabilities that add up to one over this axis."""
    scores = np.exp(RANDOM.normal(size=shape))
    return np.asarray(np.log(scores / scores.sum(axis=axis, keepdims=True)))


@pytest.mark.parametrize(
    ("values", "axis"),
    [
        (over(0, 64, 10), 0),
        (over(0, 10, 64), 0),
        (over(0, 64, 10).astype(np.float16), 0),
        (over(1, 64, 10), None),
        (over(0, 8, 10, 6), 0),
        (over(2, 8, 10, 6), 2),
        (over(1, 8, 10, 6), None),
        # Of pairs either is asked for.
        (over(0, 64, 64), None),
        # One sample, or none that can be compared.
        (over(0, 1, 10), None),
        (over(0, 10), None),
        # Where nothing has been learned yet both add up, or neither.
        (np.full((10, 10), -np.log(10)), None),
        (np.full((64, 10), -np.log(10)), None),
        (RANDOM.normal(size=(64, 10)) - 5.0, None),
        # Scores that grow are for others, and no overflow.
        (np.full((64, 10), 1e6), None),
    ],
)
def test_over_which_axis_probabilities_add_up(values: np.ndarray, axis: int | None):
    assert wrong_axis(values) == axis


def test_a_softmax_over_the_batch_is_named_at_once():
    """Sabotaged: no look at values, another axis, an end at rows without values."""
    run = recorded(lambda: {LOGARITHMS: row_of(over(0, 64, 10))}, 9)
    for step in (0, 1, 8):
        run.value(step, LOGARITHMS, over(0, 64, 10))
    (finding,) = judge(run, LossMisuse())
    assert (finding.tensor, finding.step) == (LOGARITHMS, 0)
    assert finding.severity is Severity.WARNING
    assert "add up to 1 over the 64 samples of the batch, and" in finding.message
    assert "to 0.156 on average over the 10 classes" in finding.message
    assert finding.value == pytest.approx(10 / 64)
    assert finding.threshold == 1.0
    assert "dim=1" in finding.advice
    assert judge_in_parts(run, range(9), LossMisuse()) == [finding]


def test_the_softmax_is_over_the_classes_from_some_step_on():
    run = recorded(of_logarithms, 6)
    for step in range(6):
        run.value(step, LOGARITHMS, over(0 if step < 3 else 1, 64, 10))
    begin, end = judge(run, LossMisuse())
    assert (begin.phase, begin.step, end.phase, end.step) == ("begin", 0, "end", 5)
    assert judge_in_parts(run, range(6), LossMisuse()) == [begin, end]


def test_divergences_are_of_any_axis():
    name = "KLDivLoss_input_0"
    run = recorded(lambda: {name: row_of(over(0, 64, 10))})
    for step in range(4):
        run.value(step, name, over(0, 64, 10))
    assert severities(run, name) == SOUND


def over_samples(n: int = 64, classes: int = 10) -> dict[str, Row]:
    """What a cross-entropy is given after a softmax over the batch."""
    row = row_of(np.exp(over(0, n, classes)))
    labels = row_of(np.arange(n) % classes)
    return {CLASSES: row, label_of(CLASSES): labels}


def test_a_cross_entropy_that_is_given_one_over_the_batch():
    (finding,) = judge(recorded(over_samples), LossMisuse())
    assert (finding.tensor, finding.step) == (CLASSES, 2)
    assert (
        "gets the result of a softmax over the 64 samples of a batch" in finding.message
    )
    assert "those of a sample to 0.156 on average" in finding.message
    assert (finding.value, finding.threshold) == (pytest.approx(10 / 64), 1.0)
    assert "Remove the softmax" in finding.advice


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, SQUASHED),
        ({"mean": 1.0009 / 64}, SQUASHED),
        ({"mean": 1.0011 / 64}, SOUND),
        ({"min": -1e-9}, SOUND),
        ({"max": 1.0011}, SOUND),
    ],
)
def test_the_limits_over_the_batch(changed: dict[str, float], expected: Severities):
    def rows() -> dict[str, Row]:
        found = over_samples()
        return {**found, CLASSES: found[CLASSES] | changed}

    assert severities(recorded(rows), CLASSES) == expected


# ---- outputs that are compared with all targets ----------------------------------


Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("outputs", "targets", "both"),
    [
        ((32, 1), (32,), (32, 32)),
        ((32,), (32, 1), (32, 32)),
        ((32, 1), (1, 7), (32, 7)),
        ((32, 1), (32, 1), None),
        ((32, 8), (32, 1), None),
        ((32, 8), (8,), None),
        ((1, 1), (1,), None),
        ((), (32,), None),
        ((32, 3), (32,), None),
        ((0, 1), (0,), None),
    ],
)
def test_what_is_compared_with_more_than_its_own_target(
    outputs: Shape, targets: Shape, both: Shape | None
):
    assert broadcast_shape(outputs, targets) == both


@pytest.mark.parametrize(
    ("outputs", "targets", "aligned"),
    [
        ((32, 1), (32,), None),
        ((32,), (32, 1), None),
        ((32, 7, 1), (32, 7), None),
        ((32, 1), (1, 32), (32, 32)),
        ((32, 1, 1), (32,), (32, 1, 32)),
        ((32, 1), (), None),
    ],
)
def test_what_a_loss_does_to_its_inputs_first(
    outputs: Shape, targets: Shape, aligned: Shape | None
):
    handling = InputHandling.ALIGN_RANKS
    assert broadcast_shape(outputs, targets, handling) == aligned
    assert broadcast_shape(outputs, targets, InputHandling.RESHAPE_TARGETS) is None


@pytest.mark.parametrize(
    ("kind", "handling", "outputs", "said"),
    [
        (Kind.MSE, None, np.ones((16, 1)), "broadcast to (16, 16)"),
        (Kind.MSE, InputHandling.ALIGN_RANKS, np.ones((16, 1)), ""),
        (Kind.MSE, InputHandling.RESHAPE_TARGETS, np.ones((16, 1)), ""),
        (Kind.NLL, None, "over the last", "over axis 2"),
        (Kind.NLL, InputHandling.CLASSES_LAST, "over the last", ""),
        (Kind.BCE_WITH_LOGITS, None, np.full((64, 1), 0.5), "a sigmoid"),
        (Kind.BCE, None, np.linspace(0.0, 1.0, 64), ""),
        (Kind.BCE, None, np.linspace(-0.5, 1.0, 64), "gets scores (64 numbers"),
        (Kind.BCE, None, np.linspace(0.0, 1.5, 64), "gets scores (64 numbers"),
        (Kind.CROSS_ENTROPY_OF_PROBABILITIES, None, softmax(16, 4), ""),
        (Kind.CROSS_ENTROPY_OF_PROBABILITIES, None, np.linspace(0, 9, 64), ""),
        (Kind.CROSS_ENTROPY_OF_PROBABILITIES, None, -np.ones(64), "gets scores"),
        (Kind.BCE_WITH_LOGITS, InputHandling.FIND_SCORES, np.full((64, 1), 0.5), ""),
    ],
)
def test_a_loss_is_judged_by_what_it_does_to_its_inputs(
    kind: Kind, handling: InputHandling | None, outputs: Any, said: str
):
    outputs = over(2, 8, 10, 6) if isinstance(outputs, str) else outputs
    run = FakeRun(every=10)
    handlings = {} if handling is None else {"FitLoss": str(handling)}
    run.known_facts = [
        ModelInfo(step=0, kinds={"FitLoss": str(kind)}, input_handling=handlings)
    ]
    for step in range(6):
        run.step(step, {"FitLoss_input_0": outputs, "FitLoss_input_1": np.ones(16)})
        run.value(step, "FitLoss_input_0", outputs)
        run.value(step, "FitLoss_input_1", np.ones(16))
    messages = [each.message for each in judge(run, LossMisuse())]
    assert [said in each for each in messages] == ([True] if said else [])


def regressed(name: str, outputs: Shape, targets: Shape) -> FakeRun:
    run = FakeRun(every=10)
    given = {
        f"{name}_input_0": np.linspace(0.0, 1.0, int(np.prod(outputs))),
        f"{name}_input_1": np.linspace(0.0, 1.0, int(np.prod(targets))),
    }
    for step in range(6):
        run.step(step, given)
        run.value(step, f"{name}_input_0", given[f"{name}_input_0"].reshape(outputs))
        run.value(step, f"{name}_input_1", given[f"{name}_input_1"].reshape(targets))
    return run


@pytest.mark.parametrize("loss", ["MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"])
def test_a_column_against_a_row_is_named_at_the_first_batch(loss: str):
    run = regressed(loss, (16, 1), (16,))
    (finding,) = judge(run, LossMisuse())
    assert (finding.tensor, finding.step) == (f"{loss}_input_0", 0)
    assert finding.severity is Severity.WARNING
    assert "Outputs of shape (16, 1) and targets of shape (16,)" in finding.message
    assert (finding.value, finding.threshold) == (256.0, 16.0)
    assert "unsqueeze(1)" in finding.advice
    assert judge_in_parts(run, range(6), LossMisuse()) == [finding]


@pytest.mark.parametrize(
    "run",
    [
        regressed("MSELoss", (16, 1), (16, 1)),
        regressed("MSELoss", (16, 4), (4,)),
        # Whose shapes mean something else.
        regressed("CosineEmbeddingLoss", (16, 1), (16,)),
    ],
)
def test_shapes_that_are_meant_are_not_named(run: FakeRun):
    assert judge(run, LossMisuse()) == []


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("sick", [True, False])
def test_a_training_whose_targets_are_a_row(tmp_path: Path, *, sick: bool):
    torch.manual_seed(0)
    model, criterion = nn.Linear(4, 1), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    hook = td.Hook(tmp_path / "run", rules=["LossMisuse"])
    hook.register_module(model)
    hook.register_loss(criterion)
    for _ in range(3):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        criterion(model(x), x.sum(1) if sick else x.sum(1, keepdim=True)).backward()
        optimizer.step()
    hook.close()
    found = check(tmp_path / "run", ["LossMisuse"], record=False).findings
    assert [(each.tensor, each.step) for each in found] == (
        [("MSELoss_output_0", 0)] if sick else []
    )
