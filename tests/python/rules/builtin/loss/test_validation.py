"""Overfit, Overtraining and Underfitting: training beside validation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.modes import ModeKeys
from tdbg.rules import LossMisuse, Overfit, Overtraining, Underfitting
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo
from tdbg.run.observations import Fault, Observation
from tdbg.run.tree_facts import TreeFacts

LOSS = "CrossEntropyLoss_output_0"
EPOCH, PASS = 20, 5


def trained(
    training: Sequence[float],
    validation: Sequence[float],
    noise: float = 0.05,
    seed: int = 0,
    start: float | None = None,
) -> FakeRun:
    """An epoch of training and a pass of evaluation for each pair of losses."""
    random = np.random.default_rng(seed)
    run, step = FakeRun(), 0
    before = training[0] if start is None else start
    for train, held in zip(training, validation, strict=True):
        for at in np.linspace(before, train, EPOCH):
            loss = float(at * (1 + noise * random.standard_normal()))
            run.step(step, {LOSS: [loss]})
            step += 1
        for _ in range(PASS):
            loss = float(held * (1 + noise * random.standard_normal()))
            run.step(step, {LOSS: [loss]}, mode=ModeKeys.EVAL)
            step += 1
        before = train
    return run


N = 20
EPOCHS = np.arange(N)
GOOD = 0.05 + 2.2 * np.exp(-EPOCHS / 4)
GOOD_HELD = 0.2 + 2.1 * np.exp(-EPOCHS / 4)


def test_a_validation_loss_that_rises_while_training_falls_is_overfitting():
    held = GOOD_HELD.copy()
    held[8:] += 0.08 * np.arange(N - 8)
    note, finding = judge(trained(GOOD, held, start=2.3), Overfit())
    assert note.severity is Severity.INFO
    assert finding.severity is Severity.WARNING
    assert finding.mode is ModeKeys.EVAL
    assert finding.tensor == LOSS
    assert "risen" in finding.message
    # The pass in which it holds for the second time, and its last step.
    assert (note.step + 1) % (EPOCH + PASS) == 0
    assert 9 <= note.step // (EPOCH + PASS) <= 13
    # Until then, the model has not lost a quarter of what it had learned.
    assert 16 <= finding.step // (EPOCH + PASS) <= 19


def test_what_is_worse_than_a_model_that_has_learned_nothing_is_a_warning():
    """A distance alone is a note: data may be harder, and few."""
    for level, severity in ((2.1, Severity.INFO), (2.8, Severity.WARNING)):
        held = np.concatenate(([2.3], np.full(N - 1, level)))
        (finding,) = judge(trained(GOOD, held, noise=0.01, start=2.3), Overfit())
        assert finding.severity is severity


def test_what_is_learned_by_heart_from_the_start_is_overfitting():
    (finding,) = judge(trained(GOOD, np.full(N, 2.1), start=2.3), Overfit())
    assert "Validation shows only" in finding.message


@pytest.mark.parametrize("seed", range(2))
def test_a_small_gap_at_the_end_of_a_good_training_is_silent(seed: int):
    run = trained(GOOD, GOOD_HELD, noise=0.2, seed=seed, start=2.3)
    assert judge(run, Overfit()) == []


def test_a_gap_while_validation_still_improves_is_silent():
    slowly = 2.2 - 0.02 * EPOCHS
    assert judge(trained(GOOD + 0.15, slowly, noise=0.0, start=2.3), Overfit()) == []
    # It is found once validation improves no more.
    stops = np.maximum(slowly, slowly[9])
    (finding,) = judge(trained(GOOD + 0.15, stops, noise=0.0, start=2.3), Overfit())
    assert finding.severity is Severity.INFO
    assert "Validation shows only" in finding.message


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_jumps_from_pass_to_pass_has_not_risen(seed: int):
    """Validation on a few samples, or a schedule that begins anew."""
    jumps = 0.5 + 0.15 * np.random.default_rng(seed).standard_normal(N)
    run = trained(GOOD, np.maximum(jumps, 0.2), noise=0.001, start=2.3)
    worst = [found.severity for found in judge(run, Overfit(), Overtraining())]
    assert max(worst, default=Severity.INFO) is Severity.INFO


def test_a_rise_in_one_batch_of_many_is_not_sure():
    """A single sample of which the model is too sure makes the mean of all."""
    run, random = trained(GOOD, GOOD_HELD, noise=0.0, start=2.3), FakeRun()
    for step, (mode, *_) in run.steps.items():
        loss = run.tensors[LOSS].rows[step]["mean"]
        epoch, place = divmod(step, EPOCH + PASS)
        if mode is ModeKeys.EVAL and place == EPOCH and epoch > 8:
            loss += 0.15 * (epoch - 8)
        random.step(step, {LOSS: [float(loss)]}, mode=mode)
    worst = [found.severity for found in judge(random, Overfit(), Overtraining())]
    assert max(worst, default=Severity.INFO) is Severity.INFO


RISING = np.concatenate((GOOD_HELD[:6], GOOD_HELD[5] + 0.06 * np.arange(N - 6)))


def recognizing(recall: Sequence[float]) -> FakeRun:
    """Validation losses that rise, and the share that is recognized in each pass."""
    slowly = np.maximum(GOOD_HELD, 0.4) + 0.03 * np.maximum(EPOCHS - 9, 0)
    run = trained(GOOD, slowly, noise=0.001, start=2.3)
    for step, (mode, *_) in list(run.steps.items()):
        if mode is not ModeKeys.EVAL:
            continue
        share = recall[step // (EPOCH + PASS)]
        labels = np.arange(100) % 4
        said = np.where(np.arange(100) < 100 * share, labels, (labels + 1) % 4)
        given = {
            "CrossEntropyLoss_input_0": np.eye(4, dtype=np.float32)[said],
            "CrossEntropyLoss_input_1": labels,
        }
        loss = [float(run.tensors[LOSS].rows[step]["mean"])]
        run.step(step, {LOSS: loss, **given}, mode=mode)
        for name, values in given.items():
            run.value(step, name, values)
    return run


def test_a_model_that_is_too_sure_and_right_more_often_is_not_accused():
    """Guo 2017: the loss grows by calibration while the accuracy still rises."""
    levels = {}
    for name, recall in (
        ("rises", [0.4 + 0.02 * k for k in range(N)]),
        ("stays", [0.6] * N),
        ("falls", [0.8 - 0.02 * k for k in range(N)]),
    ):
        found = judge(recognizing(recall), Overfit(), Overtraining())
        levels[name] = {each.rule: each.severity for each in found}
    both = {"Overfit", "Overtraining"}
    assert levels["rises"] == {}
    assert levels["stays"] == dict.fromkeys(both, Severity.INFO)
    assert levels["falls"] == dict.fromkeys(both, Severity.WARNING)
    worst = judge(recognizing([0.8 - 0.02 * k for k in range(N)]), Overtraining())[-1]
    assert worst.message.endswith("Accuracy was 63% around that best, and is 47% now.")


def test_an_accuracy_that_falls_by_less_than_its_error_is_a_note():
    """One sample of a hundred is no difference."""
    slightly = [0.6 - 0.001 * max(0, k - 9) for k in range(N)]
    found = judge(recognizing(slightly), Overfit(), Overtraining())
    assert {each.severity for each in found} == {Severity.INFO}


def test_early_stopping_by_validation_keeps_the_best_round():
    for stops, level in ((True, Severity.INFO), (False, Severity.WARNING)):
        run = trained(GOOD, RISING, noise=0.001, start=2.3)
        trees = TreeFacts(stops_by_validation=stops)
        run.known_facts = [ModelInfo(step=0, trees=trees)]
        found = judge(run, Overfit(), Overtraining())
        assert {each.rule for each in found} == {"Overfit", "Overtraining"}
        assert max(each.severity for each in found) is level


def test_a_program_that_keeps_its_best_weights_is_not_accused():
    """It reads them after an evaluation, and not after the next ones."""
    ends = [k * (EPOCH + PASS) + EPOCH + PASS - 1 for k in range(N)]
    for read, level in (
        ([], Severity.WARNING),
        (range(6), Severity.INFO),
        ((2, 4, 6), Severity.INFO),
        ((1, 2), Severity.WARNING),  # Long before the best.
        ((5, 15), Severity.WARNING),  # The last ones are no good.
        (range(N), Severity.WARNING),  # All of them: nobody says which one is best.
    ):
        run = trained(GOOD, RISING, noise=0.001, start=2.3)
        run.observed = [
            Observation(Fault.WEIGHTS_READ, ends[k], (str(ends[k]),)) for k in read
        ]
        found = judge(run, Overfit(), Overtraining())
        assert max(each.severity for each in found) is level, read
    run.observed = [Observation(Fault.BEST_KEPT, 0, ("ModelCheckpoint",))]
    found = judge(run, Overfit(), Overtraining())
    assert max(each.severity for each in found) is Severity.INFO


@pytest.mark.parametrize(("n", "accuses"), [(171, False), (17_100, True)])
def test_a_share_of_mistakes_has_the_error_of_its_samples(n: int, accuses: bool):
    """8 of 171 samples, then 10: nobody knows whether the trees became worse."""
    run = FakeRun()
    run.known_facts = [ModelInfo(step=0, trees=TreeFacts())]
    for step in range(40):
        mistakes = (9.0 if step < 3 else 8.0 if step < 8 else 10.0) * (n // 171)
        mistakes += step % 2 if n > 171 else 0
        for mode, value in (
            (ModeKeys.TRAIN, 0.02 * 0.9**step),
            (ModeKeys.EVAL, mistakes / n),
        ):
            number = 2 * step + (mode is ModeKeys.EVAL)
            run.step(number, {"loss_of_valid-error": [value]}, mode=mode)
    found = judge(run, Overfit())
    assert bool(found) is accuses


def test_what_has_converged_may_become_a_little_worse():
    """0.010 and 0.013 are the same to who began at 2.3."""
    low = np.maximum(2.1 * np.exp(-EPOCHS), 0.01) + 0.0005 * EPOCHS
    (finding,) = judge(trained(GOOD, low, noise=0.0, start=2.3), Overtraining())
    assert finding.severity is Severity.INFO


def test_a_training_that_diverges_is_not_overfitting():
    rising = 0.5 + 0.2 * EPOCHS
    assert judge(trained(rising, rising * 1.2), Overfit()) == []


def test_validation_alone_or_training_alone_says_nothing():
    run = trained(GOOD, np.full(N, 2.1), start=2.3)
    for mode in (ModeKeys.EVAL, ModeKeys.TRAIN):
        only = FakeRun()
        for step, state in run.steps.items():
            if state[0] is mode:
                only.step(step, {LOSS: run.tensors[LOSS].rows[step]}, mode=mode)
        assert judge(only, Overfit(), Overtraining()) == []


def test_nothing_is_said_before_the_start_step():
    run = trained(GOOD, np.full(N, 2.1), start=2.3)
    (finding,) = judge(run, Overfit(start_step=400))
    assert finding.step >= 400


def test_a_plateau_of_validation_is_an_information():
    held = np.maximum(GOOD_HELD, GOOD_HELD[5])
    (finding,) = judge(trained(GOOD, held, noise=0.001, start=2.3), Overtraining())
    assert finding.severity is Severity.INFO
    assert 15 <= finding.step // (EPOCH + PASS) <= 17


def test_validation_that_becomes_worse_for_long_is_a_warning():
    held = np.concatenate((GOOD_HELD[:6], GOOD_HELD[5] + 0.06 * np.arange(N - 6)))
    findings = judge(trained(GOOD, held, noise=0.001, start=2.3), Overtraining())
    assert max(finding.severity for finding in findings) is Severity.WARNING


def test_validation_that_still_improves_is_silent():
    assert judge(trained(GOOD, GOOD_HELD, start=2.3), Overtraining()) == []


def test_patience_may_ask_for_training_too():
    held = np.maximum(GOOD_HELD, GOOD_HELD[5])
    run = trained(GOOD, held, noise=0.001, start=2.3)
    assert judge(run, Overtraining(passes_train=8)) == []


def test_losses_that_stay_high_and_flat_are_underfitting():
    high = np.concatenate(([2.2], np.full(N - 1, 2.0)))
    (finding,) = judge(trained(high, high, start=2.3), Underfitting())
    assert finding.severity is Severity.WARNING
    assert finding.mode is ModeKeys.TRAIN
    assert "in validation" in finding.message


def test_a_term_that_rises_in_training_too_gives_way_to_the_others():
    """The commitment of a VQ-VAE, which grows as its codes spread."""
    grows = 0.01 + 0.001 * EPOCHS
    run = trained(grows, grows)
    # Training has become worse, too, so it was not too much of it.
    (finding,) = judge(run, Overtraining())
    assert finding.severity is Severity.INFO
    for step, (mode, *_) in run.steps.items():
        if mode is ModeKeys.TRAIN:
            run.step(step, {"loss_output_0": [1.0 / (1 + step)]})
    assert judge(run, Overtraining()) == []
    # One that falls in training, and rises in validation, does not.
    run = trained(GOOD, grows)
    for step, (mode, *_) in run.steps.items():
        if mode is ModeKeys.TRAIN:
            run.step(step, {"loss_output_0": [1.0 / (1 + step)]})
    assert judge(run, Overtraining()) != []


@pytest.mark.parametrize("seed", range(2))
def test_a_loss_that_fell_or_falls_is_not_underfitting(seed: int):
    assert judge(trained(GOOD, GOOD_HELD, seed=seed, start=2.3), Underfitting()) == []
    slow = 2.3 * 0.97**EPOCHS
    assert judge(trained(slow, slow, seed=seed, start=2.3), Underfitting()) == []


def test_what_was_learned_in_the_first_steps_counts():
    """It began at 2.3, not at what it had come to after a stretch."""
    run = FakeRun()
    for step in range(300):
        run.step(step, {LOSS: [2.3 if step < 12 else 1.5]})
    assert judge(run, Underfitting()) == []
    (finding,) = judge(run, Underfitting(learned_percent=40.0))
    assert "flat at 1.5, only 35% below its start of 2.3" in finding.message


@pytest.mark.parametrize(
    ("shapes", "scale", "is_denoiser"),
    [
        ({"Model_input_0": (40, 2), "Model_input_1": (40,)}, 1.0, True),
        ({"Model_input_0": (40, 2), "Model_input_1": (40, 1)}, 1.0, True),
        ({"Model_input_0": (40, 2), "Model_input_1": (40,)}, 0.5, False),
        ({"Model_input_0": (40, 2)}, 1.0, False),
        ({"Model_input_0": (40, 3), "Model_input_1": (40,)}, 1.0, False),
    ],
)
def test_a_denoiser_cannot_tell_all_noise(
    shapes: dict[str, tuple[int, ...]], scale: float, is_denoiser: bool
):
    random = np.random.default_rng(0)
    run = FakeRun()
    for step in range(300):
        rows = {"MSELoss_output_0": [0.9]}
        if step % 10 == 0:
            rows["MSELoss_input_1"] = scale * random.standard_normal((40, 2))
            for name, shape in shapes.items():
                rows[name] = random.standard_normal(shape)
        run.step(step, rows)
    assert bool(judge(run, Underfitting())) is not is_denoiser


@pytest.mark.parametrize(
    ("loss", "flat", "severity"),
    [
        ("MSELoss", 3.9, Severity.WARNING),  # The targets vary by 4.
        ("MSELoss", 3.1, Severity.INFO),
        ("MSELoss", 40 * 3.9, Severity.INFO),  # A sum over the batch.
        ("L1Loss", 3.9, Severity.INFO),
        ("loss", 3.9, Severity.INFO),  # Computed by hand: its floor is unknown.
    ],
)
def test_a_flat_regression_underfits_where_a_constant_would_do(
    loss: str, flat: float, severity: Severity
):
    random = np.random.default_rng(0)
    run = FakeRun()
    for step in range(300):
        rows = {f"{loss}_output_0": [flat * (1.05 if step < 12 else 1.0)]}
        if loss != "loss":
            rows[f"{loss}_input_1"] = 3 + 2 * random.standard_normal((400, 2))
        run.step(step, rows)
    (finding,) = judge(run, Underfitting())
    assert finding.severity is severity
    assert finding.message.startswith("The model underfits") is (severity > 1)
    told = "to answer with the mean of the targets would give" in finding.message
    assert told is (loss == "MSELoss")
    assert ("as low as this loss can get" in finding.advice) is (severity == 1)
    assert judge_in_parts(run, range(0, 300, 7), Underfitting()) == [finding]


def test_a_loss_above_its_start_is_not_said_to_be_below_it():
    run = FakeRun()
    for step in range(300):
        run.step(step, {LOSS: [1.0 if step < 12 else 1.5]})
    (finding,) = judge(run, Underfitting())
    assert "flat at 1.5, not below its start of 1" in finding.message


def test_a_training_loss_that_is_high_by_dropout_is_not_underfitting():
    high = np.full(N, 2.0)
    assert judge(trained(high, GOOD_HELD, start=2.3), Underfitting()) == []


def test_without_evaluation_training_alone_is_judged():
    run = FakeRun()
    for step in range(300):
        run.step(step, {LOSS: [2.3]})
    (finding,) = judge(run, Underfitting())
    assert finding.step == 199


def classified(level: float, share: float = 0.6) -> FakeRun:
    """A loss of two classes that starts at chance and is flat at a level."""
    random = np.random.default_rng(0)
    run = FakeRun()
    for step in range(260):
        loss = max(level, 0.693 - 0.01 * step) + 0.03 * random.standard_normal()
        labels = (random.random(64) < share).astype(np.int64)
        run.step(step, {LOSS: [loss], f"{LOSS[:-8]}input_1": labels})
        run.value(step, f"{LOSS[:-8]}input_1", labels)
    return run


def test_a_classifier_that_beats_the_shares_of_its_classes_has_learned_something():
    """Labels that chance decides leave the loss high, and nobody knows how high."""
    (note,) = judge(classified(0.61), Underfitting())
    assert note.severity is Severity.INFO
    assert "the shares of the classes would give about 0.6" in note.message
    (finding,) = judge(classified(0.67), Underfitting())
    assert finding.severity is Severity.WARNING


def test_a_loss_that_starts_below_its_reference_is_not_compared_with_it():
    """Weights of classes made it another mean."""
    run = classified(0.3, share=0.5)
    for step in range(260):
        run.step(step, {LOSS: [0.35 if step < 20 else 0.3]})
    (finding,) = judge(run, Underfitting())
    assert finding.severity is Severity.WARNING
    assert "shares" not in finding.message


@pytest.mark.parametrize("rule", [Overfit(), Overtraining(), Underfitting()])
@pytest.mark.parametrize("seed", range(3))
def test_the_cut_into_windows_changes_nothing(rule: Overfit, seed: int):
    random = np.random.default_rng(seed)
    held = np.where(EPOCHS < 6, GOOD_HELD, 2.0)
    run = trained(np.maximum(GOOD, 1.9 * (seed == 0)), held, seed=seed, start=2.3)
    for step in list(run.steps):
        mode, complete, _, skipped, wall = run.steps[step]
        lossless = bool(random.random() > 0.01)
        run.steps[step] = (mode, complete, lossless, skipped, wall)
        if random.random() < 0.01:
            run.step(step, {LOSS: [np.nan]}, mode=mode)
    whole = judge(run, rule)
    assert judge_in_parts(run, range(500), rule) == whole
    assert judge_in_parts(run, range(0, 500, 7), rule) == whole


@pytest.mark.parametrize("n", [60, 100])
def test_a_long_run_is_judged_alike_however_it_is_cut(
    n: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tdbg.rules.builtin.loss.passes.LOOKBACK", n)
    held = np.where(EPOCHS % 7 < 4, GOOD_HELD, 2.2)
    run = trained(GOOD, held, start=2.3)
    rules = (Overfit(), Overtraining(passes_validation=3))
    assert judge_in_parts(run, range(500), *rules) == judge(run, *rules)


def given(scores: np.ndarray, loss: str = "CrossEntropyLoss") -> FakeRun:
    """A loss that is given the same scores of eight samples at every step."""
    run = FakeRun()
    for step in range(20):
        labels = np.arange(8) % 2
        run.step(step, {f"{loss}_input_0": scores, f"{loss}_input_1": labels})
    return run


SCORES = np.random.default_rng(0).normal(size=(8, 10))
SOFTMAX = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)


def test_probabilities_in_the_place_of_scores_are_found():
    (finding,) = judge(given(SOFTMAX), LossMisuse())
    assert (finding.tensor, finding.step) == ("CrossEntropyLoss_input_0", 9)
    assert finding.severity is Severity.WARNING
    assert "softmax over 10 classes" in finding.message
    assert finding.value == pytest.approx(1.461, abs=1e-3)
    bits = 1 / (1 + np.exp(-SCORES[:, :4]))
    (finding,) = judge(given(bits, "BCEWithLogitsLoss"), LossMisuse())
    assert "sigmoid" in finding.message
    assert finding.value == pytest.approx(0.313, abs=1e-3)


@pytest.mark.parametrize(
    ("scores", "loss"),
    [
        (SCORES, "CrossEntropyLoss"),
        # Within 0 and 1, and no probabilities of classes.
        (np.abs(SCORES) / 10, "CrossEntropyLoss"),
        (np.log(SOFTMAX), "CrossEntropyLoss"),
        (np.maximum(SCORES, 0) / 10, "BCEWithLogitsLoss"),
        (np.zeros((8, 4)), "BCEWithLogitsLoss"),
        # It wants probabilities.
        (SOFTMAX, "BCELoss"),
    ],
)
def test_scores_are_no_probabilities(scores: np.ndarray, loss: str):
    assert judge(given(scores, loss), LossMisuse()) == []
