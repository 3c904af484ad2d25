"""LossSpike: jumps that stay, and hard batches that do not."""

from __future__ import annotations

import numpy as np
import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.rules import LossSpike
from tdbg.run.findings import Severity

LOSS = "CrossEntropyLoss_output_0"


def run_of(losses: np.ndarray) -> FakeRun:
    run = FakeRun()
    for step, loss in enumerate(losses.tolist()):
        run.step(step, {LOSS: [loss]})
    return run


def curve(n: int = 300, noise: float = 0.1, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    steps = np.arange(n)
    falling = 0.05 + 2.3 * np.exp(-steps / 60)
    return falling * (1 + noise * np.abs(random.standard_normal(n)))


def test_a_loss_that_jumps_back_is_a_warning_when_it_stays():
    losses = curve()
    losses[200:220] = 2.0
    (begin, end) = judge(run_of(losses), LossSpike())
    assert begin.severity is Severity.WARNING
    assert begin.step == 201
    assert "jumped to 2" in begin.message
    assert end.is_over


@pytest.mark.parametrize("seed", range(10))
def test_single_hard_batches_are_silent(seed: int):
    losses = curve(600, noise=0.5, seed=seed)
    losses[300::37] = 2.0
    losses[100::11] *= 4
    assert judge(run_of(losses), LossSpike()) == []


def test_single_samples_of_which_some_are_hard_are_silent():
    """Batches of one: nearly all are easy by now, and two hard ones may follow."""
    losses = np.full(600, 0.02)
    losses[::8] = losses[41::40] = losses[:50] = 0.7
    assert judge(run_of(losses), LossSpike()) == []
    assert judge(run_of(losses), LossSpike(of_tails=0.0))
    # Far above the hard ones it is a jump again.
    losses[400:410] = 3.0
    assert judge(run_of(losses), LossSpike())[0].step == 401


def test_the_cut_into_windows_changes_no_spike():
    losses = curve()
    losses[[40, 90]] = np.nan
    losses[160:170] = losses[230:] = 3.0
    run, rule = run_of(losses), LossSpike(num_steps=20)
    whole = judge(run, rule)
    assert len(whole) >= 2
    assert judge_in_parts(run, range(300), rule) == whole
