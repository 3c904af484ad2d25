"""Keras: losses and metrics that do not fit what the model outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tdbg
from keras_programs import run_program
from tdbg.run.findings import Finding, Severity

RULES = ("LossMisuse", "MetricMisuse", "RunningStatistics")
FAULTY = {
    "relu_for_classes": ("LossMisuse", "ends without a softmax or sig", "from_logits"),
    "relu_for_scores": ("LossMisuse", "gets the result of a relu", "Remove the relu"),
    "softmax_of_samples": ("LossMisuse", "is over the samples of a batch", "classes"),
    "equality": ("MetricMisuse", "accuracy (Accuracy) does not", '["accuracy"]'),
    "bits": ("MetricMisuse", "says no to all classes is 67% right", "Categorical"),
    "one_label": ("MetricMisuse", "takes the argmax over each label", "Sparse"),
    "truncated": ("MetricMisuse", "cuts off their digits", "BinaryIoU"),
    "auc_of_scores": ("MetricMisuse", "auc (AUC) does not", "from_logits=True"),
    "recall_of_scores": ("LossMisuse", "The metric recall is wrong", "sigmoid"),
    "measures": ("MetricMisuse", "your targets are measures", '"mae"'),
    "statistics_move": ("RunningStatistics", "bn works as in training", "training"),
}
NOTED = {
    "sigmoid_for_classes": "each of its 3 outputs is a",
    "sigmoid_for_shares": "the last layer is a sigmoid",
}
HEALTHY = (
    "softmax",
    "scores",
    "several_labels",
    "shares",
    "iou_of_bits",
    "auc",
    "auc_that_knows",
    "recall",
    "recall_above_zero",
    "classes_as_numbers",
    "distance",
    "statistics_stay",
    "frozen_statistics",
)


class Ran:
    """A program that has run on one backend."""

    def __init__(self, out: Path, backend: str) -> None:
        self.report = run_program("misfits", out, backend)
        self._out = out

    def findings(self, training: str) -> list[Finding]:
        rules = [getattr(tdbg.rules, name)() for name in RULES]
        run = self._out / training
        return list(tdbg.rules.check(run, rules, record=False).findings)


# What fit is given does not depend on the backend: JAX is asked at night.
@pytest.fixture(
    scope="module",
    params=["tensorflow", pytest.param("jax", marks=pytest.mark.nightly)],
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("misfits"), request.param)


def test_nothing_fails(ran: Ran) -> None:
    assert set(ran.report.values()) == {0}


@pytest.mark.parametrize("training", FAULTY)
def test_what_does_not_fit_is_named(ran: Ran, training: str) -> None:
    rule, message, advice = FAULTY[training]
    (finding,) = ran.findings(training)
    assert (finding.rule, finding.severity) == (rule, Severity.WARNING)
    assert message in finding.message
    assert advice in finding.advice


@pytest.mark.parametrize("training", NOTED)
def test_what_learns_all_the_same_is_noted(ran: Ran, training: str) -> None:
    (finding,) = ran.findings(training)
    assert (finding.rule, finding.severity) == ("LossMisuse", Severity.INFO)
    assert NOTED[training] in finding.message


@pytest.mark.parametrize("training", HEALTHY)
def test_nothing_is_said_of_what_fits(ran: Ran, training: str) -> None:
    assert ran.findings(training) == []
