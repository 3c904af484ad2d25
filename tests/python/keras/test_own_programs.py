"""Keras on TensorFlow: what the first trace of a step shows to be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tdbg
from keras_programs import run_program
from tdbg.run.findings import Finding, Severity

RULES = (
    *("LabelMisuse", "LossMisuse", "LossTermMisuse", "OptimizerMisuse"),
    "RunningStatistics",
)
FAULTY = {
    "without_mode": ("RunningStatistics", "without training=True", "training=True"),
    "weights_left_out": ("LabelMisuse", "All samples count alike", "sample_weight"),
    "losses_left_out": ("OptimizerMisuse", "losses of 1 layer: ", "self.losses"),
    "not_scaled": ("OptimizerMisuse", "does not call optimizer.scale_", "scale_loss"),
    "all_pairs": ("LossMisuse", "outputs of shape (32, 1) and", "same shape"),
    "all_pairs_reversed": ("LossMisuse", "broadcast to (32, 32)", "same shape"),
    "loss_of_pairs": ("LossMisuse", "In a difference (-), outputs", "same shape"),
    "softmax_twice": ("LossMisuse", "applies a softmax once more", "scores from"),
    "sigmoid_twice": ("LossMisuse", "applies a sigmoid once more", "scores from"),
    "coder_wrong": ("LossTermMisuse", "multiplies noise by a variance", "0.5"),
}
HEALTHY = (
    "plain",
    "with_mode",
    "mode_is_meant",
    "nothing_to_drop",
    "weights",
    "losses",
    "scaled",
    "aligned",
    "by_keras",
    "pairs_on_purpose",
    "ranks",
    "softmax_once",
    "sigmoid_once",
    "loss_of_columns",
    "coder_variance",
    "coder_deviation",
)


class Ran:
    """The program, which has run."""

    def __init__(self, out: Path) -> None:
        self.report = run_program("own_programs", out)
        self._out = out

    def findings(self, training: str) -> list[Finding]:
        rules = [getattr(tdbg.rules, name)() for name in RULES]
        run = self._out / training
        return list(tdbg.rules.check(run, rules, record=False).findings)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("own_programs"))


def test_nothing_fails(ran: Ran) -> None:
    assert set(ran.report.values()) == {0}


@pytest.mark.parametrize("training", FAULTY)
def test_what_a_step_leaves_out_is_named(ran: Ran, training: str) -> None:
    rule, message, advice = FAULTY[training]
    (finding,) = ran.findings(training)
    assert (finding.rule, finding.severity) == (rule, Severity.WARNING)
    assert message in finding.message
    assert advice in finding.advice


@pytest.mark.parametrize("training", HEALTHY)
def test_nothing_is_said_of_a_step_that_is_right(ran: Ran, training: str) -> None:
    assert ran.findings(training) == []
