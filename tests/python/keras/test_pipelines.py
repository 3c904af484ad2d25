"""Keras on TensorFlow: what datasets say of the operations that made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tdbg
from keras_programs import run_program
from tdbg.run.findings import Finding, Severity

FAULTY = {
    "augmented_once": ("augmented once: augment draws random", "cache().map(augment)"),
    "ordered_once": ("All 2 epochs have the same order", "Cache first, then shuffle"),
    "overlap": ("40 of the 40 elements", "data.skip(n)"),
    "overlap_of_parts": ("40 of the 80 elements", "data.take(n)"),
    "dropped_before": ("data.shuffle(...) in line", "data = data.shuffle"),
    "dropped": ("data.shuffle(...) in line", "data = data.shuffle"),
}
HEALTHY = (
    "doubled_once",
    "augmented",
    "one_epoch",
    "ordered_again",
    "ordered",
    "apart",
    "batches_apart",
    "all_of_it",
    "even_and_odd",
)


class Ran:
    """The program, which has run."""

    def __init__(self, out: Path) -> None:
        self.report = run_program("pipelines", out)
        self._out = out

    def findings(self, training: str) -> list[Finding]:
        run = self._out / training
        rules = [tdbg.rules.LoaderMisuse()]
        return list(tdbg.rules.check(run, rules, record=False).findings)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: Any) -> Ran:
    return Ran(tmp_path_factory.mktemp("pipelines"))


def test_nothing_fails(ran: Ran) -> None:
    assert set(ran.report.values()) == {0}


@pytest.mark.parametrize("training", FAULTY)
def test_a_pipeline_that_cannot_be_meant_is_named(ran: Ran, training: str) -> None:
    message, advice = FAULTY[training]
    (finding,) = ran.findings(training)
    assert finding.severity is Severity.WARNING
    assert message in finding.message
    assert advice in finding.advice


def test_samples_that_are_made_up_once_are_noted(ran: Ran) -> None:
    (finding,) = ran.findings("made_up_once")
    assert finding.severity is Severity.INFO
    assert "if your dataset makes its samples up once" in finding.message


@pytest.mark.parametrize("training", HEALTHY)
def test_nothing_is_said_of_what_is_right(ran: Ran, training: str) -> None:
    assert ran.findings(training) == []
