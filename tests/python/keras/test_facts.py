"""Keras: arguments of fit that do not fit its labels, and evaluations that draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tdbg
from keras_programs import run_program
from tdbg.run.findings import Finding, Severity

RULES = ("InputSkew", "LossTermMisuse", "NondeterministicEvaluation")
FAULTY = {
    "texts_as_keys": ("LossTermMisuse", "no label has ('0', '1', '2'), and", "0: 1.0"),
    "keys_from_zero": ("LossTermMisuse", "(0), and none for some labels (3)", "begin"),
    "upside_down": ("LossTermMisuse", "upside down: class 1, with", "Divide by"),
    "sorted_classes": ("InputSkew", "training never sees (class 2)", "stratify=y"),
    "sorted_one_hot": ("InputSkew", "belong to class 2, which only", "stratify=y"),
    "sorted_bits": ("InputSkew", "all 64 validation samples belong", "Shuffle inputs"),
    "augments_always": (
        "NondeterministicEvaluation",
        "turn is active (RandomRotation)",
        "Leave the argument training out",
    ),
}
# Monte Carlo dropout, and programs that augment in a step of their own.
NOTED = {
    "drops_always": "drop is active (Dropout)",
    "a_part_in_training_mode": "drop is active (Dropout)",
    "noise_always": "noise is active (GaussianNoise)",
    "evaluates_on_purpose": "turn is active (RandomRotation)",
}
HEALTHY = (
    "overruled_by_keras",
    "balanced",
    "some_classes",
    "one_key_more",
    "numbers_as_keys",
    "all_alike",
    "shuffled_classes",
    "shuffled_one_hot",
    "shuffled_bits",
    "sorted_numbers",
    "classes_come_later",
    "rare_bits",
    "augments",
    "augments_in_a_part",
    "drops",
    "a_part",
    "noise",
)


class Ran:
    """A program that has run on one backend."""

    def __init__(self, out: Path, backend: str) -> None:
        self.report = run_program("facts", out, backend)
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
    return Ran(tmp_path_factory.mktemp("facts"), request.param)


def test_nothing_fails(ran: Ran) -> None:
    assert set(ran.report.values()) == {0}


@pytest.mark.parametrize("training", FAULTY)
def test_what_cannot_be_meant_is_named(ran: Ran, training: str) -> None:
    rule, message, advice = FAULTY[training]
    (finding,) = ran.findings(training)
    assert (finding.rule, finding.severity) == (rule, Severity.WARNING)
    assert message in finding.message
    assert advice in finding.advice


@pytest.mark.parametrize("training", NOTED)
def test_what_may_be_meant_is_noted(ran: Ran, training: str) -> None:
    (finding,) = ran.findings(training)
    assert finding.rule == "NondeterministicEvaluation"
    assert finding.severity is Severity.INFO
    assert NOTED[training] in finding.message


@pytest.mark.parametrize("training", HEALTHY)
def test_nothing_is_said_of_what_is_right(ran: Ran, training: str) -> None:
    assert ran.findings(training) == []
