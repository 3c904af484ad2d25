"""LossSpike: jumps that stay, and hard batches that do not."""

from __future__ import annotations

import numpy as np
import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.config.kinds import Kind
from tdbg.rules import LossSpike
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo

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
    losses[200:220] = 4.0
    (begin, end) = judge(run_of(losses), LossSpike())
    assert begin.severity is Severity.WARNING
    assert begin.step == 201
    assert ", to 4" in begin.message
    assert end.is_over


def test_a_jump_that_stays_below_the_first_losses_is_an_info():
    losses = curve()
    losses[200:220] = 2.0
    (begin, _) = judge(run_of(losses), LossSpike())
    assert begin.severity is Severity.INFO
    assert "new stage" in begin.advice


@pytest.mark.parametrize(("new", "severity"), [(1, "WARNING"), (7, "INFO")])
def test_a_jump_with_classes_that_had_not_come_before_is_an_info(
    new: int, severity: str
):
    losses = curve()
    losses[200:220] = 4.0
    run = run_of(losses)
    labels = LOSS.replace("_output_0", "_input_1")
    for step in range(0, 300, 5):
        run.step(step, {labels: [0, 1, 2, new if step >= 200 else 1]})
    run.tensor_of(labels).dtype = "int64"
    (begin, _) = judge(run, LossSpike())
    assert begin.severity.name == severity
    assert judge_in_parts(run, range(300), LossSpike()) == judge(run, LossSpike())


@pytest.mark.parametrize("seed", range(2))
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


@pytest.mark.parametrize(
    ("losses", "kind", "step"),
    [
        ([2.3, 3.1, 4878.0, 5855.0, 3.0], Kind.CROSS_ENTROPY, 2),
        ([0.01, 0.02, 101.0, 102.0], Kind.BCE, 2),
        # Uncertain, a fine-tuned model, a sum over the batch, another scale.
        ([2.3, 3.1, 220.0, 300.0, 3.0], Kind.CROSS_ENTROPY, None),
        ([0.001, 0.001, 5.0, 4.0, 3.0], Kind.CROSS_ENTROPY, None),
        ([7000.0, 7200.0, 12000.0, 300.0], Kind.NLL, None),
        ([2.3, 3.1, 4878.0, 5855.0, 3.0], Kind.MSE, None),
        ([4878.0, 2.3, 3.1, 2.3], Kind.CROSS_ENTROPY, None),
    ],
)
def test_a_cross_entropy_that_explodes_at_the_beginning_is_found_by_its_row(
    losses: list[float], kind: Kind, step: int | None
):
    run = run_of(np.array(losses))
    run.known_facts = [ModelInfo(step=0, kinds={"CrossEntropyLoss": str(kind)})]
    found = [each.step for each in judge(run, LossSpike()) if not each.is_over]
    assert found == ([] if step is None else [step])
    assert judge_in_parts(run, range(len(losses)), LossSpike()) == judge(
        run, LossSpike()
    )


def test_the_cut_into_windows_changes_no_spike():
    losses = curve()
    losses[[40, 90]] = np.nan
    losses[160:170] = losses[230:] = 3.0
    run, rule = run_of(losses), LossSpike(num_steps=20)
    whole = judge(run, rule)
    assert len(whole) >= 2
    assert judge_in_parts(run, range(300), rule) == whole


@pytest.mark.parametrize("makes_targets", [False, True])
def test_a_loss_jumps_where_a_model_makes_its_targets(makes_targets: bool):
    losses = curve()
    losses[200:220] = 2.0
    run = run_of(losses)
    run.known_facts = [ModelInfo(step=10, makes_targets=makes_targets)]
    assert bool(judge(run, LossSpike())) is not makes_targets


def searched(rates: np.ndarray) -> FakeRun:
    """The loss falls, and then rises with the learning rate."""
    losses = 2.3 - 0.02 * np.minimum(np.arange(len(rates)), 60)
    losses[70:] = 20.0
    run = run_of(losses)
    for step, rate in enumerate(rates.tolist()):
        run.step(step, {"scalar/optimizer/group_0/lr": [rate]})
    return run


def test_the_end_of_a_search_for_the_learning_rate_is_information():
    run = searched(1e-7 * 1.2 ** np.arange(80.0))
    (finding,) = judge(run, LossSpike())
    assert finding.severity is Severity.INFO
    assert "from 1e-7 to 0.035" in finding.advice
    assert judge_in_parts(run, range(80), LossSpike()) == [finding]


@pytest.mark.parametrize(
    "rates",
    [
        np.linspace(1e-6, 1.0, 80),  # a warm-up
        np.full(80, 0.1),
        1e-7 * 1.2 ** np.arange(80.0)[::-1],
        np.where(np.arange(80) < 70, 1e-3, 1.0),  # one that was raised by a thousand
    ],
)
def test_a_rate_that_is_not_searched_for_excuses_no_spike(rates: np.ndarray):
    finding = judge(searched(rates), LossSpike())[0]
    assert finding.severity is Severity.WARNING
