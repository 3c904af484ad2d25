"""What rules say of the chart that shows a finding: its statistic, and the limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from run_builder import RunBuilder
from tdbg import rules
from tdbg.config import Role
from tdbg.modes import ModeKeys
from tdbg.run.findings import Evidence, Finding, Severity
from tdbg.trial import create_trial

Build = Callable[[RunBuilder], None]
N = 120


def _tensors(name: str, make: Callable[[int], np.ndarray]) -> Build:
    def build(run: RunBuilder) -> None:
        for step in range(N):
            tensors = {name: make(step).astype(np.float32)}
            if name.startswith("gradient/"):
                # One that does as it should, to be compared with.
                tensors["gradient/steady"] = np.full(16, 1e-3, np.float32)
            run.step(step, tensors, what="statistics")

    return build


def _losses(make: Callable[[int], float], held: Callable[[int], float] | None) -> Build:
    """A loss of training; after every tenth step also one of validation, if any."""

    def build(run: RunBuilder) -> None:
        number = 0
        for step in range(N):
            modes = [(ModeKeys.TRAIN, make(step))]
            if held is not None and step % 10 == 9:
                modes += [(ModeKeys.EVAL, held(step))]
            for mode, value in modes:
                loss = np.array(value, np.float32)
                run.save(number, "loss_output_0", loss, role=Role.LOSS)
                run.end_step(number, mode)
                number += 1

    return build


_random = np.random.default_rng(5)
_noise = _random.normal(size=(N, 16))

# A rule, the statistic that it judges, on which side of its limit what is accused lies
# (1: above), and a run that it accuses.
CASES: dict[str, tuple[str, int, Build]] = {
    "VanishingGradient": (
        "abs_mean",
        -1,
        _tensors("gradient/w", lambda s: _noise[s] * (1e-2 if s < 20 else 1e-12)),
    ),
    "ExplodingGradient": (
        "l2",
        1,
        _tensors("gradient/w", lambda s: _noise[s] * (1e-2 if s < 100 else 1e4)),
    ),
    "AllZero": (
        "zero_share",
        1,
        _tensors("a_output_0", lambda s: _noise[s] * (s < 20)),
    ),
    "TensorVariance": (
        "std",
        -1,
        _tensors("a_output_0", lambda s: 1 + _noise[s] * (1.0 if s < 20 else 1e-7)),
    ),
    "LossSpike": (
        "mean",
        1,
        _losses(lambda s: 50.0 if s > 100 else 1 + 0.01 * _noise[s, 0], None),
    ),
    "LossNotDecreasing": (
        "mean",
        1,
        _losses(lambda s: 1 + 0.001 * _noise[s, 0], None),
    ),
    "Overfit": (
        "mean",
        1,
        _losses(lambda s: 0.97**s, lambda s: 1.0 + s / 20),
    ),
}


def drawn(run: Path, finding: Finding, statistic: str) -> float:
    """The statistic of the tensor at the step of the finding, as charts have it."""
    step = finding.global_step
    assert step is not None
    found = create_trial(run).envelope(
        [finding.tensor], start=step, stop=step + 1, fields=(statistic,)
    )
    return float(found.mean[statistic][0, 0])


@pytest.mark.parametrize("name", CASES)
def test_what_is_accused_lies_beyond_the_limit_of_its_evidence(
    tmp_path: Path, name: str
) -> None:
    statistic, side, build = CASES[name]
    with RunBuilder(tmp_path / "run") as run:
        build(run)
    found = rules.check(tmp_path / "run", [name], record=False).findings
    assert [each.rule for each in found] == [name]
    (finding,) = found
    evidence = finding.evidence
    assert evidence is not None
    assert evidence.statistic == statistic
    assert evidence.limit is not None
    # The mean of |x| is at most the rms.
    field = "rms" if statistic == "abs_mean" else statistic
    value = drawn(tmp_path / "run", finding, field)
    assert side * (value - evidence.limit) >= 0
    if statistic in ("l2", "rms", "std"):
        first = create_trial(tmp_path / "run").envelope(
            [finding.tensor], start=1, stop=2, fields=(field,)
        )
        assert side * (float(first.mean[field][0, 0]) - evidence.limit) < 0


def test_a_finding_keeps_its_evidence_in_json() -> None:
    finding = Finding(
        rule="Some",
        severity=Severity.INFO,
        step=3,
        mode=ModeKeys.TRAIN,
        tensor="w",
        message="m",
        first_step=3,
        last_step=3,
        evidence=Evidence("l2", 4.0),
    )
    document = finding.to_json()
    assert document["evidence"] == {"statistic": "l2", "limit": 4.0}
    assert Finding.from_json(document) == finding
    # Neither old runs, nor those of a later tdbg, are unreadable for it.
    del document["evidence"]
    assert Finding.from_json(document).evidence is None
    later = {**document, "evidence": {"statistic": "kurtosis", "limit": None}}
    assert Finding.from_json(later).evidence is None
    endless = {"statistic": "l2", "limit": float("inf")}
    told = Finding.from_json({**document, "evidence": endless}).to_json()
    assert told["evidence"] == {"statistic": "l2", "limit": None}


@pytest.mark.parametrize(
    "told", [3, {"statistic": "l2", "limit": "4"}, {"limit": 4.0}, ["l2"]]
)
def test_evidence_that_is_none_is_no_finding(told: object) -> None:
    with pytest.raises(ValueError, match="not a finding"):
        Finding.from_json(
            {
                "rule": "Some",
                "severity": "info",
                "step": 3,
                "mode": "TRAIN",
                "tensor": "w",
                "message": "m",
                "first_step": 3,
                "last_step": 3,
                "evidence": told,
            }
        )
