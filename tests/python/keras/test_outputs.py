"""Keras: ends of models, callbacks and schedules that do not fit the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tdbg
from keras_programs import run_program
from tdbg.run.findings import Finding, Severity
from tdbg.run.observations import Fault, Observation

RULES = ("RunningStatistics", "LossMisuse", "ScheduleMisuse")
FAULTY = {
    "scores": ("LossMisuse", "takes probabilities, but", "from_logits=True"),
    "scores_of_bits": ("LossMisuse", "takes probabilities, but", "a sigmoid"),
    "metric": ("LossMisuse", "The metric accuracy is wrong", "threshold=0.0"),
    "below_relu": ("LossMisuse", "relu, gives no number below 0", "Scale the targets"),
    "beyond_sigmoid": ("LossMisuse", "a sigmoid gives numbers", "Scale the targets"),
    "in_inference_mode": ("RunningStatistics", "called in inference", "training=True"),
    "never_adapted": ("RunningStatistics", "it was never adapted", "layer.adapt"),
    "stops_wrong_way": ("ScheduleMisuse", "waits for val_loss to rise", 'mode="min"'),
    "lowers_wrong_way": ("ScheduleMisuse", "val_accuracy to fall", 'mode="max"'),
    "stops_by_nothing": ("ScheduleMisuse", "watches val_loss, which is no", "fit"),
    "subclass_stops_by_nothing": ("ScheduleMisuse", "Stops does nothing", "fit"),
    "in_epochs": ("ScheduleMisuse", "counts epochs", "batches in an epoch, 40"),
}
HEALTHY = (
    "probabilities",
    "logits",
    "lambda",
    "several_bits",
    "two_of_one",
    "metric_at_zero",
    "metric_of_sigmoid",
    "metric_of_classes",
    "above_relu",
    "within_tanh",
    "linear",
    "in_training_mode",
    "frozen",
    "adapted",
    "given",
    "stops",
    "stops_and_restores",
    "restores_by_training",
    "stops_by_accuracy",
    "stops_by_its_own",
    "stops_by_its_own_number",
    "validates_later",
    "in_steps",
    "longer",
    "constant",
)


class Ran:
    """A program that has run on one backend."""

    def __init__(self, out: Path, backend: str) -> None:
        self.report = run_program("outputs", out, backend)
        self._out = out

    def findings(self, training: str) -> list[Finding]:
        rules = [getattr(tdbg.rules, name)() for name in RULES]
        run = self._out / training
        return list(tdbg.rules.check(run, rules, record=False).findings)

    def observations(self, training: str) -> tuple[Observation, ...]:
        return tdbg.create_trial(self._out / training).observations()


# Models and callbacks are the same with each backend: JAX is asked at night.
@pytest.fixture(
    scope="module",
    params=["tensorflow", pytest.param("jax", marks=pytest.mark.nightly)],
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("outputs"), request.param)


def test_nothing_fails(ran: Ran) -> None:
    assert set(ran.report.values()) == {0}


@pytest.mark.parametrize("training", FAULTY)
def test_what_does_not_fit_is_named(ran: Ran, training: str) -> None:
    rule, message, advice = FAULTY[training]
    (finding,) = ran.findings(training)
    assert (finding.rule, finding.severity) == (rule, Severity.WARNING)
    assert message in finding.message
    assert advice in finding.advice


def test_a_binary_loss_of_a_softmax_is_a_note(ran: Ran) -> None:
    """It learns all the same."""
    (finding,) = ran.findings("softmax_for_bits")
    assert (finding.rule, finding.severity) == ("LossMisuse", Severity.INFO)
    assert "judges each of the 3 outputs" in finding.message


@pytest.mark.parametrize("training", HEALTHY)
def test_nothing_is_said_of_what_fits(ran: Ran, training: str) -> None:
    assert ran.findings(training) == []


@pytest.mark.parametrize(
    ("training", "kept"),
    [
        ("stops_and_restores", ["EarlyStopping"]),
        ("restores_by_training", []),
        ("stops", []),
    ],
)
def test_callbacks_that_keep_the_best_of_validation_are_known(
    ran: Ran, training: str, kept: list[str]
) -> None:
    seen = ran.observations(training)
    found = [each for each in seen if each.fault is Fault.BEST_KEPT]
    assert [name for each in found for name in each.names] == kept
