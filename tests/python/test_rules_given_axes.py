"""Underfitting's second half: a softmax over another axis than that of the classes."""

from __future__ import annotations

import numpy as np
import pytest

from rules_by_the_book import Row
from rules_fake import judge, judge_in_parts, row_of
from tdbg.findings import Severity
from tdbg.rules import Underfitting
from tdbg.rules.loss.axes import wrong_axis
from test_rules_given import (
    CLASSES,
    LOGARITHMS,
    RANDOM,
    SOUND,
    SQUASHED,
    Levels,
    label_of,
    levels,
    of_logarithms,
    recorded,
)


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
    (finding,) = judge(run, Underfitting())
    assert (finding.tensor, finding.step) == (LOGARITHMS, 0)
    assert finding.severity is Severity.WARNING
    assert "add up to 1 over the 64 samples of the batch and not" in finding.message
    assert "over the 10 classes: there they add up to 0.156" in finding.message
    assert finding.value == pytest.approx(10 / 64)
    assert finding.threshold == 1.0
    assert "dim=1" in finding.advice
    assert judge_in_parts(run, range(9), Underfitting()) == [finding]


def test_the_softmax_is_over_the_classes_from_some_step_on():
    run = recorded(of_logarithms, 6)
    for step in range(6):
        run.value(step, LOGARITHMS, over(0 if step < 3 else 1, 64, 10))
    begin, end = judge(run, Underfitting())
    assert (begin.phase, begin.step, end.phase, end.step) == ("begin", 0, "end", 5)
    assert judge_in_parts(run, range(6), Underfitting()) == [begin, end]


def test_divergences_are_of_any_axis():
    name = "KLDivLoss_input_0"
    run = recorded(lambda: {name: row_of(over(0, 64, 10))})
    for step in range(4):
        run.value(step, name, over(0, 64, 10))
    assert levels(run, name) == SOUND


def over_samples(n: int = 64, classes: int = 10) -> dict[str, Row]:
    """What a cross-entropy is given after a softmax over the batch."""
    row = row_of(np.exp(over(0, n, classes)))
    labels = row_of(np.arange(n) % classes)
    return {CLASSES: row, label_of(CLASSES): labels}


def test_a_cross_entropy_that_is_given_one_over_the_batch():
    (finding,) = judge(recorded(over_samples), Underfitting())
    assert (finding.tensor, finding.step) == (CLASSES, 2)
    assert "what a softmax over the 64 samples of a batch gives" in finding.message
    assert "those of a sample to 0.156 on average" in finding.message
    assert (finding.value, finding.threshold) == (pytest.approx(10 / 64), 1.0)
    assert "leave the softmax out" in finding.advice


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
def test_the_limits_over_the_batch(changed: dict[str, float], expected: Levels):
    def rows() -> dict[str, Row]:
        found = over_samples()
        return {**found, CLASSES: found[CLASSES] | changed}

    assert levels(recorded(rows), CLASSES) == expected
