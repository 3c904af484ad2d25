"""Underfitting's second half: losses that are given something else than they expect."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rules_by_the_book import Row, Verdicts, spied
from rules_fake import FakeRun, judge, judge_in_parts, row_of
from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.rules import Underfitting

CLASSES = "CrossEntropyLoss_input_0"
BITS = "BCEWithLogitsLoss_input_0"
WARNING = int(Severity.WARNING)
Levels = list[int | None]
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


def levels(run: FakeRun, name: str) -> Levels:
    """The verdict at each step; None: unknown."""
    found: Verdicts = spied(run, Underfitting())
    return [found.get((ModeKeys.TRAIN, name, step)) for step in sorted(run.steps)]


SQUASHED: Levels = [None, None, WARNING, WARNING]
SOUND: Levels = [0] * 4
UNKNOWN: Levels = [None] * 4


def test_probabilities_of_classes_are_named_with_the_floor_of_the_loss():
    (finding,) = judge(recorded(of_classes), Underfitting())
    assert (finding.tensor, finding.step) == (CLASSES, 2)
    assert finding.severity is Severity.WARNING
    assert "160 numbers within" in finding.message
    assert "for 3 recorded steps in a row" in finding.message
    assert "what a softmax, of 10 classes gives" in finding.message
    # The best there is: 1 for the right class and 0 for the others, as scores.
    right = np.exp(1.0) / (np.exp(1.0) + 9)
    assert finding.value == pytest.approx(-np.log(right))
    assert "cannot come below 1.46" in finding.message
    assert "before the softmax or sigmoid" in finding.advice


def test_probabilities_of_yes_and_no_are_named_with_theirs():
    (finding,) = judge(recorded(of_bits), Underfitting())
    assert (finding.tensor, finding.step) == (BITS, 2)
    assert finding.severity is Severity.WARNING
    assert "what a sigmoid gives" in finding.message
    assert finding.value == pytest.approx(-np.log(1 / (1 + np.exp(-1.0))))
    assert "cannot come below 0.313" in finding.message


def test_scores_that_come_to_lie_within_zero_and_one_are_no_probabilities():
    run = FakeRun(every=10)
    for step in range(40):
        run.step(step, of_bits(**({"min": -0.3} if step < 2 else {})))
    assert judge(run, Underfitting()) == []
    assert judge_in_parts(run, range(0, 40, 7), Underfitting()) == []


def one_hot() -> dict[str, Row]:
    return {
        CLASSES: row_of(softmax(16, 4)),
        label_of(CLASSES): row_of(np.eye(4)[np.arange(16) % 4]),
    }


def test_labels_may_be_a_probability_for_each_class():
    (finding,) = judge(recorded(one_hot), Underfitting())
    assert "softmax, of 4 classes" in finding.message


def test_two_classes_are_no_yes_and_no():
    (finding,) = judge(recorded(lambda: of_classes(16, 2)), Underfitting())
    assert "softmax, of 2 classes" in finding.message
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
def test_the_limits_for_classes(changed: dict[str, float], expected: Levels):
    run = recorded(lambda: of_classes(16, 2, **changed))
    assert levels(run, CLASSES) == expected


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
def test_the_limits_for_yes_and_no(changed: dict[str, float], expected: Levels):
    assert levels(recorded(lambda: of_bits(**changed)), BITS) == expected


def test_scores_are_sound():
    def scores() -> dict[str, Row]:
        return {
            CLASSES: row_of(RANDOM.normal(size=(16, 10))),
            label_of(CLASSES): row_of(np.arange(16) % 10),
            BITS: row_of(RANDOM.normal(size=64)),
        }

    run = recorded(scores)
    assert levels(run, CLASSES) == SOUND
    assert levels(run, BITS) == SOUND


def test_one_class_is_none():
    """A single output whose target is 1, whatever the loss makes of it."""
    ones = row_of(np.ones(64))
    run = recorded(lambda: {CLASSES: ones, label_of(CLASSES): ones})
    assert levels(run, CLASSES) == SOUND


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
def test_the_limits_for_logarithms(changed: dict[str, float], expected: Levels):
    run = recorded(lambda: of_logarithms(**changed))
    assert levels(with_values(run, np.log(softmax(16, 10))), LOGARITHMS) == expected


def test_without_values_it_is_not_known_over_which_axis_they_are():
    assert levels(recorded(of_logarithms), LOGARITHMS) == UNKNOWN
    run = recorded(lambda: of_logarithms(max=1.0))
    assert levels(run, LOGARITHMS) == SQUASHED


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [(-3.0, 5.0, "are scores and no logarithms"), (0.0, 1.0, "are probabilities and")],
)
def test_what_is_no_logarithm_is_named(least: float, most: float, said: str):
    run = recorded(lambda: of_logarithms(min=least, max=most))
    (finding,) = judge(run, Underfitting())
    assert (finding.tensor, finding.value) == (LOGARITHMS, most)
    assert said in finding.message
    assert "CrossEntropyLoss" in finding.advice


def test_without_labels_the_classes_are_not_known():
    run = recorded(lambda: {CLASSES: of_classes()[CLASSES]})
    assert levels(run, CLASSES) == UNKNOWN
    run = recorded(of_classes)
    del run.tensor_of(label_of(CLASSES)).rows[10]
    # It takes three in a row, and the second is not known.
    assert levels(run, CLASSES) == UNKNOWN


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
    prediction: str, rows: Callable[[], dict[str, Row]], expected: Levels
):
    def renamed() -> dict[str, Row]:
        given, labels = rows().values()
        return {prediction: given, label_of(prediction): labels}

    run = recorded(renamed)
    run.tensor_of(prediction).role = "prediction"
    run.tensor_of(label_of(prediction)).role = "label"
    assert levels(run, prediction) == expected


def test_only_predictions_are_judged_and_only_with_labels():
    run = recorded(of_bits)
    run.tensor_of(BITS).role = "input"
    assert levels(run, BITS) == UNKNOWN
    run = recorded(of_classes)
    run.tensor_of(label_of(CLASSES)).role = "input"
    assert levels(run, CLASSES) == UNKNOWN


@pytest.mark.parametrize(("rows", "name"), [(of_classes, CLASSES), (of_bits, BITS)])
def test_a_step_without_predictions_is_unknown(
    rows: Callable[[], dict[str, Row]], name: str
):
    run = recorded(rows)
    del run.tensor_of(name).rows[30]
    assert levels(run, name) == [None, None, WARNING, None]


def test_each_call_of_a_loss_is_judged_with_its_own_labels():
    def two_calls() -> dict[str, Row]:
        first, second = of_classes(16, 10), of_classes(16, 4)
        return first | {f"{name}@1": row for name, row in second.items()}

    found = judge(recorded(two_calls), Underfitting())
    assert [(each.tensor, "of 10" in each.message) for each in found] == [
        (CLASSES, True),
        (f"{CLASSES}@1", False),
    ]
    assert "of 4 classes" in found[1].message


@pytest.mark.parametrize("rows", [of_classes, of_bits])
def test_it_must_last(rows: Callable[[], dict[str, Row]]):
    """Sabotaged: a PATIENCE of 2 or 4."""
    assert judge(recorded(rows, 2), Underfitting()) == []
    assert len(judge(recorded(rows, 3), Underfitting())) == 1
    dense = FakeRun()
    for step in range(12):
        dense.step(step, rows())
    assert judge(dense, Underfitting())[0].step == 9


def test_what_is_between_begins_anew():
    """Sabotaged: a count that rows between do not end."""
    run = recorded(of_classes, 9)
    run.step(2, {**of_classes(), CLASSES: row_of(RANDOM.normal(size=160))})
    run.step(5, lossless=False)
    # Lost, that is, and after it three more are wanted.
    expected: Levels = [None, None, 0, None, None, None, None, None, WARNING]
    assert levels(run, CLASSES) == expected
    begin, *others = judge(run, Underfitting())
    assert (begin.step, others) == (8, [])
    assert judge_in_parts(run, range(9), Underfitting()) == [begin]


def test_evaluation_is_not_judged():
    run = FakeRun(every=10)
    for step in range(5):
        run.step(step, of_classes(), mode=ModeKeys.EVAL)
    assert judge(run, Underfitting()) == []
