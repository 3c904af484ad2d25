"""Keras: facts of the first steps, on each backend; healthy trainings are silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tdbg
from keras_programs import run_program
from tdbg.run.findings import Finding, Severity

RULES = ("RunningStatistics", "OptimizerMisuse", "LossMisuse")
HEALTHY = (
    "ordinary",
    "two_phases",
    "frozen_before_the_first_fit",
    "frozen_normalization_that_follows",
    "toggled",
    "judged_by_a_frozen_model",
    "several_outputs",
    "subclassed",
    "by_xla",
    "sigmoid_of_one",
    "regression_of_one",
    "decays_all",
    "decays_kernels",
)


class Ran:
    """A program that has run on one backend."""

    def __init__(self, out: Path, backend: str) -> None:
        self.backend = backend
        self.report = run_program("first_steps", out, backend)
        self._out = out

    def findings(self, training: str) -> list[Finding]:
        rules = [getattr(tdbg.rules, name)() for name in RULES]
        run = self._out / training
        return list(tdbg.rules.check(run, rules, record=False).findings)


@pytest.fixture(scope="module", params=["tensorflow", "jax"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("first_steps"), request.param)


def test_a_training_stays_the_same_to_the_last_bit(ran: Ran) -> None:
    for training, found in ran.report.items():
        assert found == {"errors": 0, "equal": True}, training


def test_a_momentum_of_another_framework(ran: Ran) -> None:
    (finding,) = ran.findings("of_another_framework")
    assert (finding.rule, finding.tensor) == ("RunningStatistics", "bn")
    assert finding.severity is Severity.WARNING
    assert "momentum is 0.1, the weight of the past" in finding.message
    assert finding.advice.startswith("Use momentum=0.9. In Keras")


def test_layers_frozen_after_the_step_was_compiled(ran: Ran) -> None:
    if ran.backend == "jax":
        assert "frozen_without_compiling" not in ran.report  # It raises there.
        return
    (finding,) = ran.findings("frozen_without_compiling")
    assert (finding.rule, finding.tensor) == ("OptimizerMisuse", "d1/kernel")
    assert "4 frozen parameters still train" in finding.message
    assert "model.compile" in finding.advice


def test_a_softmax_of_a_single_output(ran: Ran) -> None:
    (finding,) = ran.findings("softmax_of_one")
    assert (finding.rule, finding.severity) == ("LossMisuse", Severity.WARNING)
    assert "The softmax has a single input" in finding.message
    assert "activation='sigmoid'" in finding.advice


def test_weight_decay_of_scales_where_biases_are_exempt(ran: Ran) -> None:
    (finding,) = ran.findings("decays_scales")
    assert (finding.rule, finding.tensor) == ("OptimizerMisuse", "bn/gamma")
    assert finding.severity is Severity.INFO  # Over the batch.
    assert "it exempts biases" in finding.message
    assert "exclude_from_weight_decay" in finding.advice


@pytest.mark.parametrize("training", HEALTHY)
def test_nothing_is_said_of_a_healthy_training(ran: Ran, training: str) -> None:
    if training in ran.report:
        assert ran.findings(training) == []
