"""Overfit and Overtraining say what the formulas of their pages say.

As test_rules_by_the_book has it for rules about tensors.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rules_by_the_book import Verdicts, entries, median, not_finite, spied
from rules_fake import FakeRun, judge
from tdbg.modes import ModeKeys
from tdbg.rules import Overfit, Overtraining, Rule
from tdbg.rules.window import OK
from tdbg.run.findings import Finding, Severity

SEEDS = range(4)
LOSS = "CrossEntropyLoss_output_0"


@dataclass(frozen=True)
class Passes:
    """Losses of passes of evaluation, and of training before each of them."""

    step: int
    start: float
    validation: list[float]
    training: list[float]
    batches: list[list[float]]


def losses(run: FakeRun, mode: ModeKeys) -> list[tuple[int, float]]:
    """Steps with a row; NaN where it is not known, or no number."""
    found = []
    for entry in entries(run, mode):
        if LOSS in entry.rows:
            row = entry.rows[LOSS]
            known = entry.usable and not not_finite(row)
            found.append((entry.step, row["mean"] if known else math.nan))
    return found


def passes_of(run: FakeRun) -> list[Passes]:
    """Of every pass that is as long as the one before, what was known at its end."""
    usable = {entry.step: entry.usable for entry in entries(run, ModeKeys.TRAIN)}
    trained = losses(run, ModeKeys.TRAIN)
    grouped: list[list[tuple[int, float]]] = []
    for step, loss in losses(run, ModeKeys.EVAL):
        if not grouped or grouped[-1][-1][0] < step - 1:
            grouped.append([])
        grouped[-1].append((step, loss))
    result = []
    for k in range(1, len(grouped)):
        n = len(grouped[k - 1])
        if len(grouped[k]) < n:
            continue
        now = grouped[k][n - 1][0]
        of_passes = [*grouped[:k], grouped[k][:n]]
        validation, training, batches = [], [], []
        for one in of_passes:
            before = [
                loss for step, loss in trained if step < one[0][0] and usable[step]
            ]
            mean = sum(loss for _, loss in one) / len(one)
            came_to = median(before[-50:]) if len(before) >= 5 else math.nan
            if not math.isnan(mean) and not math.isnan(came_to):
                validation.append(mean)
                training.append(came_to)
                batches.append([loss for _, loss in one])
            elif one is of_passes[-1]:
                validation = []
        start = median([loss for step, loss in trained[:10] if step < now])
        if validation and not math.isnan(start):
            result.append(Passes(now, start, validation, training, batches))
    return result


def jitter_of(v: list[float]) -> float:
    if len(v) < 4:
        return 0.0
    bends = sorted(abs(a - 2 * b + c) for a, b, c in zip(v, v[1:], v[2:], strict=False))
    return 1.4826 * bends[(len(bends) - 1) // 2] / math.sqrt(6)


def improves_to_the_end(v: list[float]) -> bool:
    late = max(1, len(v) // 4)
    before = v[:-late]
    return not before or min(before) - min(v[-late:]) > 2 * jitter_of(v)


def has_surely_risen(of: Passes, k: int) -> bool:
    """Three standard errors above the best: of the jitter, and of the batches."""
    v = of.validation[: k + 1]
    best = v.index(min(v))
    error = jitter_of(v) * math.sqrt(2)
    before, now = of.batches[best], of.batches[k]
    if len(before) == len(now) >= 5:
        apart = [b - a for a, b in zip(before, now, strict=True)]
        error = max(error, statistics.stdev(apart) / math.sqrt(len(apart)))
    return v[k] - v[best] > 3 * error


def lost(of: Passes, now: float) -> float:
    """Share of what was learned until the best pass."""
    low, nothing = min(of.validation), max(of.start, of.validation[0])
    return (now - low) / (nothing - low) if nothing > low else math.inf


def overfit(rule: Overfit, run: FakeRun) -> Verdicts:
    def rises(of: Passes, k: int) -> bool:
        now, training = of.validation[k], of.training[k]
        low = min(of.validation[: k + 1])
        best = of.validation.index(low)
        return (
            now - low > rule.rise * low
            and now - low > rule.rise_of_start * of.start
            and has_surely_risen(of, k)
            and training < of.training[best]
            and now - training > rule.ratio_threshold * training
        )

    def stays_behind(of: Passes, k: int) -> bool:
        fell, held = of.start - of.training[k], of.start - of.validation[k]
        return fell >= rule.learned * of.start and held < rule.carried_over * fell

    def is_known_by_heart(of: Passes, k: int) -> bool:
        now, training = of.validation[k], of.training[k]
        return (
            k >= 1
            and training <= rule.by_heart * of.start
            and now >= rule.times * training
            and now >= rule.left * of.start
            and now >= (1 - rule.improvement) * of.validation[k - 1]
        )

    result: Verdicts = {}
    for of in passes_of(run):
        last = range(len(of.validation) - rule.passes, len(of.validation))
        level = OK
        if last.start >= 0 and of.step >= rule.start_step:
            has_risen = all(rises(of, k) for k in last)
            is_bad = has_risen or all(is_known_by_heart(of, k) for k in last)
            if all(stays_behind(of, k) for k in last):
                is_bad |= not improves_to_the_end(of.validation)
            level = int(Severity.INFO) if is_bad else OK
            now = lost(of, min(of.validation[k] for k in last))
            if is_bad and (now > 1 or (has_risen and now > rule.lost)):
                level = int(Severity.WARNING)
        result[ModeKeys.EVAL, LOSS, of.step] = level
    return result


def overtraining(rule: Overtraining, run: FakeRun) -> Verdicts:
    def since_best(series: list[float]) -> int:
        best, at = series[0], 0
        for k, value in enumerate(series):
            if value < best - rule.improvement * best:
                best, at = value, k
        return len(series) - 1 - at

    result: Verdicts = {}
    for of in passes_of(run):
        level = OK
        waited = since_best(of.validation) >= rule.passes_validation
        if waited and since_best(of.training) >= rule.passes_train:
            low = min(of.validation)
            recent = median(of.validation[-rule.passes_validation :])
            best = of.validation.index(low)
            worse = (
                recent - low > rule.worse * low
                and recent - low > rule.worse_of_start * of.start
                and of.training[-1] < of.training[best]
                and has_surely_risen(of, len(of.validation) - 1)
                and lost(of, recent) > rule.lost
            )
            level = int(Severity.WARNING if worse else Severity.INFO)
        result[ModeKeys.EVAL, LOSS, of.step] = level
    return result


BOOKS: dict[type[Rule], Callable[[Any, FakeRun], Verdicts]] = {
    Overfit: overfit,
    Overtraining: overtraining,
}


def random_run(seed: int) -> FakeRun:
    """Training that falls, and passes of some steps that fall, rise and stay."""
    random = np.random.default_rng(seed)
    run, step = FakeRun(), 0
    for index in range(40):
        phase = index % 20
        level = 0.5 + [1.5 * 0.7**phase, 0.01 * (phase - 6)][int(phase > 6)]
        training = 2.0 * 0.85**phase + (0.5 if phase in (11, 12) else 0.0)
        # At first there are too few steps to say what training has come to.
        n_trained = int(random.integers(1, 3 if index < 3 else 12))
        for mode, n, loss in (
            (ModeKeys.TRAIN, n_trained, training),
            (ModeKeys.EVAL, int(random.choice([2, 2, 2, 3, 1])), level),
        ):
            for _ in range(n):
                step += 1
                value = loss * (1 + 0.02 * random.standard_normal())
                if random.random() < 0.02:
                    value = np.nan
                run.step(
                    step,
                    {LOSS: [value]},
                    mode=mode,
                    complete=bool(random.random() > 0.01),
                    lossless=bool(random.random() > 0.01),
                )
    return run


CASES: list[Rule] = [
    Overfit(),
    Overfit(rise=0.3, rise_of_start=0.02, ratio_threshold=1.0, passes=1),
    Overfit(rise=0.02, rise_of_start=0.2, learned=0.2, carried_over=0.9, start_step=99),
    Overfit(rise=9.0, carried_over=0.0, by_heart=0.5, times=2.0, left=0.28),
    Overfit(rise=9.0, carried_over=0.0, by_heart=0.3, times=3.0, improvement=0.01),
    Overtraining(passes_validation=3),
    Overtraining(passes_validation=4, passes_train=3, improvement=0.05, worse=0.3),
]


@pytest.mark.parametrize("rule", CASES, ids=lambda rule: rule.name)
def test_verdicts_are_those_of_the_page(rule: Rule) -> None:
    met = set()
    for seed in SEEDS:
        run = random_run(seed)
        expected = BOOKS[type(rule)](rule, run)
        # Every other run is judged at once.
        found = spied(run, rule, max_window=None if seed % 2 else 5)
        assert found == expected, f"seed {seed}"
        met |= set(expected.values())
    # Nothing is proven by runs in which nothing happens.
    assert 0 in met
    assert met & {1, 2}


def told(rule: Rule, training: list[float], validation: list[float]) -> Finding:
    """The only finding, at the last step."""
    (finding,) = told_at_all(rule, training, validation)
    assert finding.step == 12 * len(training) - 1
    return finding


def told_at_all(
    rule: Rule, training: list[float], validation: list[float]
) -> list[Finding]:
    """What is found where ten steps of training are before each pass of two."""
    run, step = FakeRun(), 0
    for trained, held in zip(training, validation, strict=True):
        for mode, n, loss in (
            (ModeKeys.TRAIN, 10, trained),
            (ModeKeys.EVAL, 2, held),
        ):
            for _ in range(n):
                run.step(step, {LOSS: [loss]}, mode=mode)
                step += 1
    return judge(run, rule)


def test_what_parted_is_told() -> None:
    finding = told(Overfit(), [2.0, 1.0, 0.5, 0.4], [1.6, 1.2, 1.5, 1.8])
    assert (
        "from 1.2 to 1.8 in 2 passes, while the training loss fell from 1.5 to 0.75"
        in finding.message
    )
    assert (finding.value, finding.threshold) == (pytest.approx(0.5), 0.1)


def test_how_little_of_training_holds_in_validation_is_told() -> None:
    finding = told(Overfit(), [4.0, 0.2, 0.2, 0.2], [3.9, 3.5, 3.5, 3.5])
    assert (
        "from 4 to 0.2, but the validation loss is 3.5. Validation shows only 13%"
        in finding.message
    )
    assert (finding.value, finding.threshold) == (pytest.approx(0.5 / 3.8), 0.5)


def test_a_validation_above_where_training_began_holds_nothing() -> None:
    finding = told(Overfit(), [4.0, 0.2, 0.2, 0.2], [4.1, 4.1, 4.1, 4.1])
    assert "is 4.1. Validation shows only 0% of" in finding.message


def test_what_is_known_by_heart_is_told() -> None:
    """Six tenths of what was learned hold, and validation still improves a bit."""
    training = [2.0, 1.0, 0.02, 0.01, 0.01, 0.01]
    finding = told(Overfit(), training, [1.6, 1.2, 0.9, 0.85, 0.8, 0.78])
    assert (
        "training loss is 0.01, down from 2. The validation loss is" in finding.message
    )
    assert "0.78, 39% of that start, and hardly falls any more" in finding.message
    assert (finding.value, finding.threshold) == (pytest.approx(0.39), 0.35)


@pytest.mark.parametrize(
    ("trained", "validation", "moved"),
    [
        (0.02, [1.6, 1.2, 0.8, 0.5, 0.45, *[0.4] * 5], {"left": 0.2}),
        (0.12, [1.6, 1.4, *[1.3] * 8], {"by_heart": 0.06}),
        (0.08, [1.6, 1.2, *[0.75] * 8], {"times": 9.0}),
        (0.02, [1.9 * 0.85**k for k in range(10)], {"improvement": 0.2}),
    ],
    ids=["little is left", "more to learn", "not ten times", "it falls"],
)
def test_what_is_not_known_by_heart(
    trained: float, validation: list[float], moved: dict[str, float]
) -> None:
    """Each lacks one condition only, and is found when its limit is moved."""
    training = [2.0, 1.0] + [trained] * 8
    assert told_at_all(Overfit(carried_over=0.0), training, validation) == []
    assert told_at_all(Overfit(carried_over=0.0, **moved), training, validation)


def test_of_the_first_pass_it_is_not_known_whether_it_fell() -> None:
    run = FakeRun()
    passes = {80, 81, 90, 91, 100, 101}
    for step in range(102):
        if step in passes:
            run.step(step, {LOSS: [0.8]}, mode=ModeKeys.EVAL)
        else:
            run.step(step, {LOSS: [2.0 if step < 10 else 0.01]})
    (finding,) = judge(run, Overfit())
    assert finding.step == 101


def test_how_long_there_was_no_new_best_is_told() -> None:
    training = [2.0] + [1.0] * 10
    finding = told(Overtraining(), training, [1.0] + [1.2] * 10)
    assert (
        "for 10 passes: its best was 1 and it is 1.2 now. Meanwhile, the training loss"
        in finding.message
    )
    assert "went from 2 to 1." in finding.message
    assert (finding.value, finding.threshold) == (10.0, 10.0)


def test_losses_that_are_nearly_alike_are_told_apart() -> None:
    training = [1.0] + [0.99998] * 10
    finding = told(Overtraining(), training, [1.0] + [1.00002] * 10)
    assert "its best was 1 and it is 1.00002 now" in finding.message
    assert "went from 1 to 0.99998." in finding.message


def test_a_new_best_must_be_better_by_more_than_delta() -> None:
    rule = Overtraining(passes_validation=3, improvement=0.5)
    assert told(rule, [1.0] * 4, [1.0, 1.0, 0.5, 0.9]).value == 3.0
    with pytest.raises(ValueError, match="not enough values"):
        told(rule, [1.0] * 4, [1.0, 1.0, 0.49, 0.9])
