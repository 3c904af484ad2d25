"""LossNotDecreasing: robust against the noise of batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rules_fake import FakeRun, judge
from tdbg.modes import ModeKeys
from tdbg.rules import LossNotDecreasing, Underfitting
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo, ParameterFacts

SEEDS = range(3)
MANY_SEEDS = range(20)


def run_with(losses: Sequence[float], **flags: object) -> FakeRun:
    run = FakeRun()
    for step, loss in enumerate(losses):
        run.step(step, {"CrossEntropyLoss_output_0": [float(loss)]}, **flags)
    return run


def noisy(curve: np.ndarray, seed: int, noise: float) -> np.ndarray:
    """A loss whose batches scatter, with a heavy tail above."""
    random = np.random.default_rng(seed)
    factor = 1 + noise * random.standard_normal(len(curve))
    outliers = random.random(len(curve)) < 0.02
    return curve * np.maximum(factor, 0.05) * np.where(outliers, 3.0, 1.0)


def test_a_flat_loss_is_a_warning_after_two_short_windows():
    (finding,) = judge(run_with([2.3] * 120), LossNotDecreasing())
    assert finding.severity is Severity.WARNING
    assert finding.step == 49
    assert finding.value == 0
    assert "25 recorded steps stayed the same, from 2.3 to 2.3," in finding.message


def test_one_that_falls_before_two_long_windows_are_full_is_acquitted():
    losses = [0.4] * 50 + [1.4 * 0.9**k for k in range(40)]
    begin, end = judge(run_with(losses), LossNotDecreasing())
    assert (begin.step, begin.phase, end.phase) == (49, "begin", "end")


def test_where_the_loss_has_come_down_two_long_windows_are_asked_for():
    losses = [2.5] * 10 + [2.0] * 150
    (finding,) = judge(run_with(losses), LossNotDecreasing())
    assert finding.step == 99
    assert "over 50 recorded steps stayed the same, from 2 to 2," in finding.message


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_rises_from_the_beginning_is_found_at_once(seed: int):
    random = np.random.default_rng(seed)
    losses = 1.05 ** np.arange(60) * (1 + 0.05 * random.standard_normal(60))
    found = judge(run_with(losses), LossNotDecreasing())
    assert 19 <= found[0].step < 35
    assert "its last 10 values are all above its first 10" in found[0].message
    assert "lower the learning rate" in found[0].advice


def test_a_loss_that_rose_by_less_than_a_tenth_is_flat():
    losses = [2.0] * 10 + [2.19] * 100
    (finding,) = judge(run_with(losses), LossNotDecreasing())
    assert "stayed the same" in finding.message
    (finding,) = judge(run_with([2.0] * 10 + [2.21] * 40), LossNotDecreasing())
    assert finding.step == 19
    assert "from 2 to 2.21" in finding.message


def test_one_that_has_come_down_and_is_level_does_not_seem_to_rise():
    """Two standard errors would be exceeded in 17 of these, some time."""
    found = 0
    for seed in MANY_SEEDS:
        random = np.random.default_rng(seed)
        losses = 0.6 * (1 + 0.3 * random.standard_normal(500))
        run = run_with([1.0] * 10 + losses.tolist())
        found += bool(judge(run, LossNotDecreasing()))
    assert found <= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_training_that_starts_over_may_lose_what_it_learned(seed: int):
    """As in each fold of a cross-validation."""
    fold = 0.2 + 2.1 * np.exp(-np.arange(60) / 25)
    assert not judge(run_with(noisy(np.tile(fold, 5), seed, 0.05)), LossNotDecreasing())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_is_back_at_its_start_and_stays_is_found(seed: int):
    learned = 0.2 + 2.1 * np.exp(-np.arange(60) / 25)
    losses = noisy(np.concatenate([learned, np.full(80, 2.3)]), seed, 0.02)
    (finding,) = judge(run_with(losses), LossNotDecreasing())
    assert 80 <= finding.step < 115


def test_one_that_falls_by_less_than_it_scatters_is_not_where_it_began():
    """The loss of a diffusion model: most of it is noise that nobody can foretell."""
    found, level = 0, 0
    for seed in MANY_SEEDS:
        random = np.random.default_rng(seed)
        noise = 0.16 * random.standard_normal(900)
        falls = run_with((0.8 + 0.18 * np.exp(-np.arange(900) / 400) + noise).tolist())
        found += bool(judge(falls, LossNotDecreasing()))
        level += bool(judge(run_with((0.98 + noise).tolist()), LossNotDecreasing()))
    assert found <= 3, "two standard errors are exceeded in 8 of them"
    assert level >= 13, "two standard errors are exceeded in 15 of them"


def test_what_noise_can_do_is_not_called_a_direction():
    random = np.random.default_rng(1)
    run = run_with(2.3 + 0.02 * random.standard_normal(120))
    (finding,) = judge(run, LossNotDecreasing())
    assert "stayed about the same (" in finding.message
    assert "±" in finding.message


def test_in_a_game_of_several_optimizers_and_losses_none_need_fall():
    """The losses of generator and critic: what one wins the other loses."""

    def found(
        n_losses: int, *owners: int | None, total: list[float] | None = None
    ) -> list[Severity]:
        run = FakeRun()
        for step in range(240):
            losses = {f"Loss_{i}_output_0": [2.3] for i in range(n_losses)}
            run.step(step, {"loss_output_0": total} if total else losses)
        parameters = {
            f"{i}.weight": ParameterFacts(
                shape=(4, 4),
                dtype="float32",
                requires_grad=True,
                module="Linear",
                optimizer=owner,
            )
            for i, owner in enumerate(owners)
        }
        run.known_facts = [ModelInfo(step=0, parameters=parameters, complete=True)]
        told = [*judge(run, LossNotDecreasing()), *judge(run, Underfitting())]
        return [finding.severity for finding in told]

    assert found(2, 0, 1) == []
    # A loss of unknown kind that is flat is no more than an info.
    told = [Severity.INFO, Severity.INFO]
    assert found(1, 0, 1) == found(0, 0, 1, total=[2.3]) == told
    assert found(0, 0, 1, total=[0.3, 2.3]) == [], "one line begins both passes"
    assert found(0, 0, 0, total=[0.3, 2.3]) == told, "micro-batches"
    several = [each for each in told for _ in range(2)]
    assert found(2, 0, 0) == found(2, 0, None) == several


@pytest.mark.parametrize(("off", "is_found"), [(0.0, False), (0.5, True)])
def test_a_part_of_a_sum_that_is_recorded_need_not_fall(off: float, is_found: bool):
    """The divergence of a variational autoencoder rises as it begins to code."""
    run = FakeRun()
    for step in range(60):
        rest, part = 500.0 * 0.98**step, min(0.01 * 1.5**step, 20.0)
        total = rest + part + off * (step % 3)
        rows = {"total": total, "rest": rest, "part": part}
        run.step(step, {f"{name}Loss_output_0": [x] for name, x in rows.items()})
    told = judge(run, LossNotDecreasing())
    assert {each.tensor for each in told} == (
        {"partLoss_output_0"} if is_found else set()
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_noisy_flat_loss_is_found(seed: int):
    losses = noisy(np.full(400, 2.3), seed, noise=0.03)
    assert judge(run_with(losses), LossNotDecreasing())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("noise", [0.05, 0.2, 0.5])
def test_a_healthy_noisy_loss_is_silent(seed: int, noise: float):
    steps = np.arange(800)
    losses = noisy(0.05 + 2.3 * np.exp(-steps / 150), seed, noise)
    assert judge(run_with(losses), LossNotDecreasing()) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_but_steady_loss_is_silent(seed: int):
    losses = noisy(2.3 * 0.9995 ** np.arange(600), seed, noise=0.03)
    assert judge(run_with(losses), LossNotDecreasing()) == []


def test_a_loss_that_has_learned_may_be_flat():
    losses = np.concatenate((np.linspace(2.3, 0.4, 100), np.full(300, 0.4)))
    assert judge(run_with(losses), LossNotDecreasing()) == []
    assert judge(run_with(losses), LossNotDecreasing(learned_percent=100.0))


def test_a_loss_that_rises_again_is_found():
    losses = np.concatenate((np.linspace(2.3, 0.4, 100), np.linspace(0.4, 9, 200)))
    (finding,) = judge(run_with(losses), LossNotDecreasing())
    assert "rose" in finding.message


def test_it_ends_when_the_loss_falls():
    losses = np.concatenate((np.full(150, 2.3), np.linspace(2.3, 0.5, 200)))
    begin, end = judge(run_with(losses), LossNotDecreasing())
    assert (begin.phase, end.phase) == ("begin", "end")


def test_a_negative_loss_that_falls_is_silent():
    losses = -np.linspace(1.0, 9.0, 300)
    assert judge(run_with(losses), LossNotDecreasing()) == []


def test_a_loss_that_is_not_finite_is_unknown():
    losses = np.full(200, 2.3)
    losses[::40] = np.nan
    assert judge(run_with(losses), LossNotDecreasing()) == []


@pytest.mark.parametrize("flags", [{"complete": False}, {"lossless": False}])
def test_steps_that_are_not_whole_are_not_judged(flags: dict[str, bool]):
    assert judge(run_with([2.3] * 300, **flags), LossNotDecreasing()) == []


def test_the_mode_chooses():
    run = run_with([2.3] * 120, mode=ModeKeys.EVAL)
    assert judge(run, LossNotDecreasing()) == []
    assert len(judge(run, LossNotDecreasing(mode=ModeKeys.EVAL))) == 1
    assert len(judge(run, LossNotDecreasing(mode="eval"))) == 1


def test_each_loss_is_judged_by_itself():
    run = FakeRun()
    for step in range(120):
        falls = 2.3 * 0.97**step
        run.step(step, {"L1Loss_output_0": [2.3], "MSELoss_output_0": [falls]})
    (finding,) = judge(run, LossNotDecreasing())
    assert finding.tensor == "L1Loss_output_0"


@pytest.mark.parametrize(
    ("level", "severity"), [(0.67, Severity.WARNING), (0.6, Severity.INFO)]
)
def test_a_classifier_that_beats_a_constant_answer_may_be_flat(
    level: float, severity: Severity
):
    """Six of ten labels are of one class: always to say so gives 0.673."""
    random = np.random.default_rng(0)
    run = FakeRun()
    for step in range(160):
        loss = max(level, 0.693 - 0.01 * step) + 0.01 * random.standard_normal()
        labels = (random.random(64) < 0.6).astype(np.int64)
        rows = {"CrossEntropyLoss_output_0": [loss], "CrossEntropyLoss_input_1": labels}
        run.step(step, rows)
        run.value(step, "CrossEntropyLoss_input_1", labels)
    (finding,) = judge(run, LossNotDecreasing())
    assert finding.severity is severity
    assert ("as low as this loss can get" in finding.advice) is (severity == 1)
