"""Findings as documents: what a run, a hook of the shell and `--json` hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tdbg
from run_builder import RunBuilder
from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding, Severity
from tdbg.run.schema import EventKind

SLOW = Finding(
    rule="DataLoaderBound",
    severity=Severity.WARNING,
    step=3,
    mode=ModeKeys.TRAIN,
    tensor="training",
    message="it waits",
    first_step=3,
    last_step=3,
    gain=0.38,
)


def test_a_run_gives_the_gain_back(run_dir: Path) -> None:
    with RunBuilder(run_dir) as run:
        run.event(EventKind.FINDING, SLOW.to_json(), 3)
        run.end_step(3)
    (found,) = tdbg.create_trial(run_dir).findings()
    assert found.gain == SLOW.gain


def test_a_finding_of_an_older_run_has_no_gain() -> None:
    document = SLOW.to_json()
    del document["gain"]
    assert Finding.from_json(document).gain is None


def test_a_gain_that_is_no_number_becomes_null() -> None:
    told = json.dumps(replace(SLOW, gain=float("nan")).to_json(), allow_nan=False)
    assert Finding.from_json(json.loads(told)).gain is None


@pytest.mark.parametrize("gain", ["0.38", True, [0.38]])
def test_a_gain_of_another_type_is_no_finding(gain: object) -> None:
    with pytest.raises(ValueError, match="not a finding: gain is"):
        Finding.from_json({**SLOW.to_json(), "gain": gain})
