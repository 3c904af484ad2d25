"""Keras: what fit is given, compared with itself and with earlier calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tdbg
from keras_programs import run_program
from tdbg.run.findings import Finding, Severity

RULES = ("DataLeakage", "InputSkew", "LabelMisuse", "LoaderMisuse", "OptimizerMisuse")
FAULTY = {
    "own_mean": ("InputSkew", "160 training samples and the 80", "fit_transform"),
    "own_range": ("InputSkew", "a smallest value of 0 and a largest of 1", "transform"),
    "not_divided": ("InputSkew", "times as large as in", "divide bytes by 255"),
    "windows_at_random": ("DataLeakage", "lie between two windows", "by time"),
    "label_in_inputs": ("LabelMisuse", "inputs[:, 8] and the targets", "Remove"),
    "folds_goes_on": ("LoaderMisuse", "call 2 of fit it holds back 80", "new model"),
    "rescaled_twice": ("InputSkew", "by 0.00392, and gets numbers from 0 to 1", "once"),
    "rescaled_inside": ("InputSkew", "The inputs are scaled twice", "EfficientNet"),
}
HEALTHY = (
    "training_mean",
    "training_range",
    "pixels",
    "scaled_together",
    "larger",
    "windows_by_time",
    "label_apart",
    "folds_new",
    "folds_set_back",
    "continual",
    "compiled_slower",
    "compiled_once",
    "rescaled_once",
    "to_two_sides",
)


class Ran:
    """A program that has run on one backend."""

    def __init__(self, out: Path, backend: str) -> None:
        self.report = run_program("given", out, backend)
        self._out = out

    def findings(self, training: str) -> list[Finding]:
        rules = [getattr(tdbg.rules, name)() for name in RULES]
        run = self._out / training
        return list(tdbg.rules.check(run, rules, record=False).findings)

    def warnings(self, training: str) -> list[Finding]:
        """All but notes: the trainings scale their data before they split them."""
        every = self.findings(training)
        return [
            each
            for each in every
            if (each.rule, each.severity) != ("DataLeakage", Severity.INFO)
        ]


# What fit is given does not depend on the backend: JAX is asked at night.
@pytest.fixture(
    scope="module",
    params=["tensorflow", pytest.param("jax", marks=pytest.mark.nightly)],
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("given"), request.param)


def test_nothing_fails(ran: Ran) -> None:
    assert set(ran.report.values()) == {0}


@pytest.mark.parametrize("training", FAULTY)
def test_data_that_cannot_be_meant_are_named(ran: Ran, training: str) -> None:
    rule, message, advice = FAULTY[training]
    (finding,) = ran.warnings(training)
    assert (finding.rule, finding.severity) == (rule, Severity.WARNING)
    assert message in finding.message
    assert advice in finding.advice


def test_optimizers_that_are_made_anew_are_noted(ran: Ran) -> None:
    (finding,) = ran.findings("compiled_same")
    assert (finding.rule, finding.severity) == ("OptimizerMisuse", Severity.INFO)
    assert "makes a new Adam again and again" in finding.message


@pytest.mark.parametrize("training", HEALTHY)
def test_nothing_is_said_of_what_is_right(ran: Ran, training: str) -> None:
    assert ran.warnings(training) == []
