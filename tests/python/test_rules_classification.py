"""ClassImbalance and Confusion: what the labels and predictions of a loss show."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rules_classes import BALANCED, BATCH, LABELS, SCORES, record, run_of
from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.errors import ConfigurationError
from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.rules import ClassImbalance, Confusion

RARE = [1.0] * 9 + [0.04]


def test_a_rare_class_is_a_warning_that_names_it():
    (finding,) = judge(run_of(RARE), ClassImbalance())
    assert finding.severity is Severity.WARNING
    assert finding.tensor == LABELS
    assert "class 9" in finding.message
    assert finding.value > 10 == finding.threshold
    assert "9" in finding.advice


def test_it_is_found_as_soon_as_there_are_500_labels():
    (finding,) = judge(run_of(RARE), ClassImbalance())
    assert finding.step == 500 // BATCH


def test_a_class_that_never_comes_is_known_from_the_scores():
    (finding,) = judge(run_of([1.0] * 9 + [0.0]), ClassImbalance())
    assert " 0 of class 9" in finding.message


def test_labels_of_one_class_are_a_fault_only_if_a_constant_answers_them():
    """InfoNCE: number 0 is the right one, by construction, and is to be found."""
    found = run_of([1.0] + [0.0] * 9, recall=[0.9] * 10)
    assert judge(found, ClassImbalance()) == []
    (finding,) = judge(run_of([1.0] + [0.0] * 9), ClassImbalance())
    assert finding.severity is Severity.WARNING
    assert "labels are of class 0, and so is what the model says" in finding.message


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("shares", [BALANCED, [1.0, 3.0], [3.0] * 5 + [1.0] * 5])
def test_mild_imbalance_is_silent(shares: list[float], seed: int):
    assert judge(run_of(shares, seed=seed), ClassImbalance()) == []


def test_a_class_that_alone_is_not_learned_is_found():
    recall = [0.95] * 9 + [0.1]
    finding = judge(run_of(BALANCED, recall, {9: 4}, n_steps=70), ClassImbalance())[0]
    assert "class 9" in finding.message
    assert "mostly for 4" in finding.message


def test_a_class_that_is_learned_late_is_no_fault():
    run, late = FakeRun(), 80
    for first, share in ((0, 0.05), (late, 0.95)):
        part = run_of(BALANCED, [0.95] * 9 + [share], {9: 4}, n_steps=late, seed=first)
        for step in range(late):
            values = (part.tensors[name].values[step] for name in (LABELS, SCORES))
            record(run, first + step, *values)
    for rule in (ClassImbalance(), Confusion()):
        begun = [found for found in judge(run, rule) if not found.is_over]
        assert all(found.step < late + 1 for found in begun)
    # While the model as a whole gets better nothing is said of mistakes at all.
    random, growing = np.random.default_rng(0), FakeRun()
    for step in range(120):
        recall = [min(0.95, 0.01 * step)] * 9 + [0.0]
        part = run_of(
            BALANCED, recall, {9: 4}, n_steps=1, seed=int(random.integers(99))
        )
        values = (part.tensors[name].values[0] for name in (LABELS, SCORES))
        record(growing, step, *values)
    assert all(found.step > 100 for found in judge(growing, Confusion()))


def test_before_anything_is_learned_nothing_is_said_of_mispredictions():
    assert judge(run_of(BALANCED, [0.1] * 10), ClassImbalance(), Confusion()) == []


def test_labels_alone_are_enough_for_counts():
    run = run_of(RARE)
    del run.tensors[SCORES]
    assert judge(run, ClassImbalance())
    assert judge(run, Confusion()) == []


def test_labels_and_predictions_may_be_named():
    named = ClassImbalance(labels_regex="Loss_input_1", predictions_regex="_input_0")
    assert judge(run_of(RARE), named) == judge(run_of(RARE), ClassImbalance())
    assert judge(run_of(RARE), ClassImbalance(labels_regex="nothing")) == []


def test_tokens_of_a_language_model_are_no_classes():
    run = run_of(RARE)
    rows = SimpleNamespace(module="Embedding", shape=(10, 8))
    run.known_facts = [SimpleNamespace(step=0, parameters={"emb.weight": rows})]
    assert judge(run, ClassImbalance()) == []
    rows.module = "Linear"
    assert judge(run, ClassImbalance())


@pytest.mark.parametrize("seed", range(5))
def test_a_pair_that_stays_mixed_up_is_found_and_named(seed: int):
    recall = [0.97] * 10
    recall[2] = 0.5
    run = run_of(BALANCED, recall, {2: 5}, n_steps=80, seed=seed)
    finding = judge(run, Confusion())[0]
    assert finding.severity is Severity.WARNING
    assert "2 is taken for 5" in finding.message


@pytest.mark.parametrize("seed", range(5))
def test_mistakes_that_are_spread_out_are_no_confusion(seed: int):
    run = run_of(BALANCED, [0.85] * 10, n_steps=80, seed=seed)
    assert judge(run, Confusion()) == []


def test_a_class_that_is_not_recognized_is_found():
    recall = [0.97] * 9 + [0.2]
    finding = judge(run_of(BALANCED, recall, n_steps=80), Confusion())[0]
    assert "class 9" in finding.message
    assert finding.threshold == 0.5


def test_with_two_classes_there_is_nothing_to_compare_with():
    assert judge(run_of([1.0, 1.0], [0.95, 0.2]), Confusion()) == []


def test_evaluation_is_judged_by_itself():
    run = run_of(RARE, mode=ModeKeys.EVAL)
    (finding,) = judge(run, ClassImbalance())
    assert finding.mode is ModeKeys.EVAL


@pytest.mark.parametrize("rule", [ClassImbalance(), Confusion()])
@pytest.mark.parametrize("step", [13, 14])
def test_the_cut_into_windows_changes_nothing(rule: ClassImbalance, step: int):
    recall = [0.97] * 9 + [0.3]
    run = run_of(RARE, recall, {9: 4}, n_steps=70)
    # A class more appears late, and some steps hold no values.
    for late in range(30, 70, 7):
        del run.tensors[LABELS].values[late]
    random = np.random.default_rng(1)
    for late in range(50, 70):
        labels, scores = random.integers(0, 11, BATCH), random.random((BATCH, 11))
        record(run, late, labels, scores)
    assert judge_in_parts(run, range(0, 70, step), rule) == judge(run, rule)
    assert judge_in_parts(run, range(70), rule) == judge(run, rule)


def test_steps_with_losses_are_not_counted():
    run = run_of(RARE)
    for step in run.steps:
        mode, complete, _, skipped, wall = run.steps[step]
        run.steps[step] = (mode, complete, False, skipped, wall)
    assert judge(run, ClassImbalance()) == []


@pytest.mark.parametrize(
    ("labels", "scores"),
    [
        (np.eye(10)[[0] * 60 + [1] * 4], np.zeros((64, 10))),  # One-hot.
        (np.array([[0.0]] * 62 + [[1.0]] * 2), np.full((64, 1), -1.0)),  # Binary.
        (np.array([0.0] * 62 + [1.0] * 2), np.full(64, 0.2)),
        (np.array([0] * 30 + [-100] * 32 + [1] * 2), np.zeros((64, 2))),
    ],
)
def test_labels_of_every_shape_are_understood(labels: np.ndarray, scores: np.ndarray):
    run = FakeRun()
    for step in range(30):
        record(run, step, labels, scores)
    assert judge(run, ClassImbalance())


@pytest.mark.parametrize(
    ("labels", "scores"),
    [
        (np.random.default_rng(0).normal(size=64), np.zeros(64)),  # A regression.
        (np.zeros((4, 8, 8), np.int64), np.zeros((4, 3, 8, 8))),  # A segmentation.
        (np.full(64, -1), np.zeros((64, 10))),
        (np.zeros(0, np.int64), np.zeros((0, 10))),
        (np.zeros(64, np.int64), np.zeros((32, 10))),
    ],
)
def test_what_is_no_classification_is_unknown(labels: np.ndarray, scores: np.ndarray):
    run = FakeRun()
    for step in range(30):
        record(run, step, labels, scores)
    assert judge(run, ClassImbalance(), Confusion()) == []


@pytest.mark.parametrize(
    ("rule", "parameters"),
    [
        (ClassImbalance, {"threshold_imbalance": 1.0}),
        (ClassImbalance, {"threshold_misprediction": 1.5}),
        (ClassImbalance, {"samples": 0}),
        (ClassImbalance, {"labels_regex": "("}),
        (Confusion, {"max_off_diag": 0.0}),
        (Confusion, {"min_diag": -1.0}),
        (Confusion, {"max_classes": 1}),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(
    rule: type, parameters: dict[str, object]
):
    (name,) = parameters
    with pytest.raises(ConfigurationError, match=f"{rule.__name__}.{name}"):
        rule(**parameters)


def calls(of_first: list[float], of_second: list[float]) -> FakeRun:
    """A binary loss that is called twice in a step."""
    run = FakeRun()
    for step in range(20):
        for call, labels in (("", of_first), ("@2", of_second)):
            names = [f"BCEWithLogitsLoss_input_{i}{call}" for i in (0, 1)]
            given = np.array(labels * BATCH, np.float32)
            run.step(step, dict.fromkeys(names, given))
            for name in names:
                run.value(step, name, given)
    return run


def test_calls_that_are_given_one_class_each_are_judged_together():
    """What is real and what is made are told apart by a loss that is given each by
    itself.  Sabotaged: each call has but one class.
    """
    assert judge(calls([1], [0]), ClassImbalance()) == []
    assert judge(calls([0.9], [0]), ClassImbalance()) == []
    assert judge(calls([1], [1]), ClassImbalance()) != []


def test_calls_with_labels_of_their_own_are_judged_by_themselves():
    rare = [1.0] + [0.0] * 19
    found = judge(calls([0, 1], rare), ClassImbalance())
    assert [each.tensor for each in found] == ["BCEWithLogitsLoss_input_1@2"]


def test_a_class_may_take_as_long_again_as_the_others():
    """Sabotaged: compared with the batches just before, it would be reported at 60."""
    random = np.random.default_rng(0)
    run = FakeRun()
    for step in range(120):
        labels = random.choice(10, BATCH)
        scores = random.random((BATCH, 10)).astype(np.float32)
        # The others are learned at step 40, and the last one never.
        right = (labels != 9) & (step >= 40)
        scores[np.arange(BATCH), np.where(right, labels, 0)] += 5.0
        record(run, step, labels, scores)
    for rule in (ClassImbalance(), Confusion()):
        found = judge(run, rule)
        assert 88 <= found[0].step <= 105
        assert judge_in_parts(run, range(0, 120, 7), rule) == found


@pytest.mark.parametrize("rule", [ClassImbalance(), Confusion()])
def test_of_two_classes_one_is_always_learned(rule: ClassImbalance | Confusion):
    """Sabotaged: a model that says the same of all samples has learned one of two."""
    always = run_of([1.0, 1.0], [1.0, 0.0], n_steps=80)
    assert judge(always, rule) == []
    three = run_of([1.0] * 3, [1.0, 0.0, 1.0], {1: 2}, n_steps=80)
    assert judge(three, rule) != []
