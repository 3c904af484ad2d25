"""Keras: validation on training data, and layers that are freed too late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tdbg
from keras_programs import run_program
from tdbg.run.findings import Finding, Severity

FAULTY = {
    "same": "The validation data are the training data",
    "equal": "The validation data are the training data",
    "shares": "40 of the 120 samples of the validation data",
    "repeated": "64 of the 64 samples of the validation data",
    "drawn_anew": "take and skip divide a dataset that is shuffled anew",
    "scaled_first": "your scaler was fitted on rows that you evaluate",
    "scaled_again": "the 80 validation samples each have mean 0 and deviation 1",
    "freed_too_late": "2 parameters that you unfroze stay frozen",
}
HEALTHY = (
    "scaled_once",
    "others",
    "divided",
    "codes",
    "all_of_it",
    "drawn_once",
    "shuffled_later",
    "freed",
)
OF_TENSORFLOW = (
    "drawn_anew",
    "drawn_once",
    "shuffled_later",
    "freed",
    "freed_too_late",
)


class Ran:
    """A program that has run on one backend."""

    def __init__(self, out: Path, backend: str) -> None:
        self.report = run_program("held_back", out, backend)
        self._out = out
        self._backend = backend

    def findings(self, training: str) -> list[Finding]:
        if training in OF_TENSORFLOW and self._backend != "tensorflow":
            pytest.skip("a program of TensorFlow's")
        rules = [
            tdbg.rules.LoaderMisuse(),
            tdbg.rules.OptimizerMisuse(),
            tdbg.rules.InputSkew(),
            tdbg.rules.DataLeakage(),
        ]
        run = self._out / training
        return list(tdbg.rules.check(run, rules, record=False).findings)


# What fit is given does not depend on the backend: JAX is asked at night.
@pytest.fixture(
    scope="module",
    params=["tensorflow", pytest.param("jax", marks=pytest.mark.nightly)],
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("held_back"), request.param)


def test_nothing_fails(ran: Ran) -> None:
    assert set(ran.report.values()) == {0}


@pytest.mark.parametrize("training", FAULTY)
def test_data_of_both_are_named(ran: Ran, training: str) -> None:
    (finding,) = ran.findings(training)
    is_small = training == "scaled_first"
    assert finding.severity is (Severity.INFO if is_small else Severity.WARNING)
    assert FAULTY[training] in finding.message


@pytest.mark.parametrize("training", HEALTHY)
def test_nothing_is_said_of_what_is_right(ran: Ran, training: str) -> None:
    assert ran.findings(training) == []
