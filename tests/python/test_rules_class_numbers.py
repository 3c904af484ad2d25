"""Confusion and ClassImbalance: classes with other numbers, and mistakes that last."""

from __future__ import annotations

import numpy as np
import pytest

from rules_classes import BALANCED, LABELS, SCORES, record, run_of
from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.rules import ClassImbalance, Confusion


def with_other_numbers(
    moved: dict[int, int], mode: ModeKeys = ModeKeys.EVAL, right: float = 0.95
) -> FakeRun:
    """Ten classes that are told apart; some have other numbers among the labels."""
    run = FakeRun()
    part = run_of(BALANCED, [right] * 10, n_steps=80, mode=mode)
    for step in range(80):
        labels, scores = (part.tensors[n].values[step] for n in (LABELS, SCORES))
        record(
            run, step, np.array([moved.get(i, i) for i in labels]), scores, mode=mode
        )
    return run


ONE_LESS = {i: i - 1 for i in range(3, 10)} | {2: 9}
SWAPPED = {4: 7, 7: 4}


@pytest.mark.parametrize("moved", [ONE_LESS, SWAPPED], ids=["moved", "swapped"])
def test_labels_of_evaluation_with_other_numbers_are_told(moved: dict[int, int]):
    """Sabotaged: that most classes are right is not asked, only that they are told
    apart, under whatever number.
    """
    run = with_other_numbers(moved)
    finding = judge(run, Confusion())[0]
    assert "under other numbers than their labels have here" in finding.message
    number, label = next(iter(moved.items()))
    assert f"{label} is taken for {number} (9" in finding.message
    assert "class_to_idx" in finding.advice
    assert finding.severity is Severity.WARNING
    assert finding.value > 0.9 > finding.threshold
    assert judge_in_parts(run, range(0, 80, 7), Confusion()) == judge(run, Confusion())


def test_what_training_is_taught_has_no_other_numbers():
    run = with_other_numbers(ONE_LESS, mode=ModeKeys.TRAIN)
    assert judge(run, Confusion()) == []


def test_classes_that_are_told_apart_badly_have_no_other_numbers():
    assert judge(with_other_numbers(ONE_LESS, right=0.7), Confusion()) == []


def test_a_number_that_another_class_gets_too_is_no_other_number():
    """Sabotaged: fours are sevens and threes eights, which are themselves as well."""
    recall = [0.97] * 10
    recall[4] = recall[3] = 0.0
    run = run_of(BALANCED, recall, {4: 7, 3: 8}, n_steps=80, mode=ModeKeys.EVAL)
    for found in judge(run, Confusion()):
        assert "other numbers" not in found.message


def test_one_class_with_the_number_of_another_is_mixed_up():
    recall = [0.97] * 9 + [0.0]
    run = run_of([1.0] * 8 + [0.0, 1.0], recall, {9: 8}, 80, mode=ModeKeys.EVAL)
    assert "mixed up" in judge(run, Confusion())[0].message


@pytest.mark.parametrize("rule", [ClassImbalance(), Confusion()])
def test_mistakes_must_last_for_thirty_steps(rule: ClassImbalance | Confusion):
    """Batches of 500 are enough each: at step 59 the half of the steps is 30 back."""
    assert judge(of_large_batches({9: 4}), rule)[0].step == 59


def test_other_numbers_must_last_for_thirty_steps():
    run = of_large_batches({9: 8, 8: 7, 7: 9}, ModeKeys.EVAL)
    assert judge(run, Confusion())[0].step == 59


@pytest.mark.parametrize(("max_steps", "is_found"), [(39, False), (40, True)])
def test_thirty_steps_are_counted_from_the_last_of_the_batches_before(
    max_steps: int, is_found: bool
):
    """Ten batches are enough.  Of 40 the first ten end 30 before the last one."""
    labels = np.repeat(np.arange(10), 5)
    scores = np.eye(10, dtype=np.float32)[np.where(labels == 9, 4, labels)]
    run = FakeRun()
    for step in range(140):
        record(run, step, labels, scores)
    assert bool(judge(run, ClassImbalance(max_steps=max_steps))) == is_found


def of_large_batches(
    taken_for: dict[int, int], mode: ModeKeys = ModeKeys.TRAIN
) -> FakeRun:
    random = np.random.default_rng(0)
    run = FakeRun()
    said = np.array([taken_for.get(label, label) for label in range(10)])
    for step in range(70):
        labels = random.choice(10, 500)
        record(run, step, labels, np.eye(10, dtype=np.float32)[said[labels]], mode=mode)
    return run


def test_a_class_is_not_alone_while_a_quarter_of_the_others_is_mistaken():
    """Classes are learned one after the other."""
    recall = [0.76] * 9 + [0.0]
    assert judge(run_of(BALANCED, recall, n_steps=90), ClassImbalance()) == []
    early = ClassImbalance(learned=0.7)
    assert judge(run_of(BALANCED, recall, n_steps=90), early) != []


def test_other_numbers_must_have_been_theirs_before():
    """Half of the time all were right: sabotaged, it would be told at once."""
    run = with_other_numbers({})
    for step in range(80):
        labels = run.tensors[LABELS].values[step]
        given = np.array([SWAPPED.get(i, i) for i in labels.tolist()])
        if step >= 50:
            record(
                run, step, given, run.tensors[SCORES].values[step], mode=ModeKeys.EVAL
            )
    assert judge(run, Confusion()) == []
    (later,) = judge(with_other_numbers(SWAPPED), Confusion())
    assert later.step < 65


def test_all_of_two_classes_swapped_may_be_a_score_that_means_the_opposite():
    both = {0: 1, 1: 0}
    run = run_of([1.0] * 2, [0.03] * 2, both, n_steps=80, mode=ModeKeys.EVAL)
    assert judge(run, Confusion()) == []
    run = run_of([1.0] * 3, [0.03, 0.03, 1.0], both, n_steps=80, mode=ModeKeys.EVAL)
    assert "other numbers" in judge(run, Confusion())[0].message


@pytest.mark.parametrize(("each", "is_said"), [(9, False), (10, True)])
def test_of_few_samples_it_is_not_said_which_number_they_have(each: int, is_said: bool):
    run = FakeRun()
    labels = np.repeat(np.arange(4), [40, 40, each, each])
    scores = np.eye(4, dtype=np.float32)[np.array([0, 1, 3, 2])[labels]]
    for step in range(64):
        record(run, step, labels, scores, mode=ModeKeys.EVAL)
    rule = Confusion(samples=10, samples_per_class=5)
    assert bool(judge(run, rule)) == is_said


def test_few_classes_that_are_told_apart_say_nothing_of_numbers():
    """Sabotaged: 4 and 7 are swapped, and of all others half are right."""
    recall = [0.5] * 10
    recall[4] = recall[7] = 0.97
    run, part = FakeRun(), run_of(BALANCED, recall, n_steps=80, mode=ModeKeys.EVAL)
    for step in range(80):
        labels, scores = (part.tensors[n].values[step] for n in (LABELS, SCORES))
        given = np.array([SWAPPED.get(i, i) for i in labels.tolist()])
        record(run, step, given, scores, mode=ModeKeys.EVAL)
    assert judge(run, Confusion()) == []
