"""ClassImbalance and Confusion: what the labels and predictions of a loss show."""

from __future__ import annotations

import numpy as np
import pytest

from rules_classes import BALANCED, BATCH, LABELS, SCORES, record, run_of
from rules_fake import FakeRun, judge, judge_in_parts
from tdbg.modes import ModeKeys
from tdbg.rules import ClassImbalance, Confusion
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo, ParameterFacts

RARE = [1.0] * 9 + [0.04]
# The rare class is not recognized.
MISSED = [1.0] * 9 + [0.0]


def test_a_rare_class_is_a_warning_that_names_it():
    finding = judge(run_of(RARE, MISSED, {9: 0}, n_steps=200), ClassImbalance())[-1]
    assert finding.severity is Severity.WARNING
    assert "misclassifies 100% of the" in finding.message
    assert finding.tensor == LABELS
    assert "class 9" in finding.message
    assert finding.value > 10 == finding.threshold
    assert "9" in finding.advice


@pytest.mark.parametrize(
    ("shares", "recall", "n_steps", "level"),
    [
        (RARE, [1.0] * 10, 200, None),
        (RARE, [1.0] * 9 + [0.5], 200, None),
        (RARE, MISSED, 40, Severity.INFO),
        ([1.0] * 9 + [0.01], MISSED, 100, Severity.INFO),
        (RARE, [0.3] * 9 + [0.0], 200, Severity.INFO),
        ([0.98, 0.02], [1.0, 0.0], 200, Severity.WARNING),
        ([0.98, 0.02], [0.98, 0.7], 200, None),
    ],
    ids=["learned", "half", "young", "few", "nothing is", "constant", "of two"],
)
def test_a_rare_class_is_a_fault_if_the_model_surely_misses_it(
    shares: list[float], recall: list[float], n_steps: int, level: Severity | None
):
    last = {len(shares) - 1: 0}
    found = judge(run_of(shares, recall, last, n_steps), ClassImbalance())
    at_end = [each.severity for each in found[-1:] if not each.is_over]
    assert at_end == ([] if level is None else [level])


def test_a_rare_class_that_is_learned_at_last_is_no_longer_reported():
    run = FakeRun()
    for first, share in ((0, 0.0), (150, 0.9)):
        part = run_of([0.97, 0.03], [1.0, share], {1: 0}, 600 if first else 150)
        for step in range(600 if first else 150):
            values = (part.tensors[name].values[step] for name in (LABELS, SCORES))
            record(run, first + step, *values)
    found = judge(run, ClassImbalance())
    assert max(each.severity for each in found) is Severity.WARNING
    assert found[-1].is_over


@pytest.mark.parametrize(
    ("usual", "shift", "level"),
    [
        (-20.0, 0.0, Severity.WARNING),
        (-20.0, 1.0, Severity.INFO),
        (-20.0, 5.0, Severity.WARNING),
        (-2.0, 0.0, Severity.INFO),
    ],
    ids=["constant", "clicks", "separated", "not yet learned how rare"],
)
def test_what_is_rare_is_ranked(usual: float, shift: float, level: Severity):
    """Clicks: none is more likely than not, and those that come are ranked higher."""
    run, random = FakeRun(), np.random.default_rng(0)
    for step in range(160):
        labels = (random.random(BATCH) < 0.03).astype(np.float32)
        scores = usual + random.standard_normal(BATCH) + shift * labels
        given = {
            "BCEWithLogitsLoss_input_0": scores.astype(np.float32),
            "BCEWithLogitsLoss_input_1": labels,
        }
        run.step(step, given)
        for name, values in given.items():
            run.value(step, name, values)
    found = judge(run, ClassImbalance())
    assert max(each.severity for each in found) is level


def test_a_class_that_a_curriculum_has_just_added_is_not_missed():
    run = FakeRun()
    for first, shares in ((0, [1.0, 1.0, 0.0]), (150, [1.0, 1.0, 0.07])):
        part = run_of(shares, [1.0, 1.0, 0.0], {2: 0}, n_steps=150)
        for step in range(150 if first == 0 else 90):
            values = (part.tensors[name].values[step] for name in (LABELS, SCORES))
            record(run, first + step, *values)
    found = judge(run, ClassImbalance())
    assert {each.severity for each in found} == {Severity.INFO}


def test_one_class_after_the_other_is_a_stream():
    run = FakeRun()
    for first in range(0, 240, 40):
        part = run_of([1.0, 0.0] if first % 80 else [0.0, 1.0], n_steps=40)
        for step in range(40):
            values = (part.tensors[name].values[step] for name in (LABELS, SCORES))
            record(run, first + step, *values)
    found = judge(run, ClassImbalance())
    assert {each.severity for each in found} <= {Severity.INFO}


@pytest.mark.parametrize(
    ("share", "level"), [(0.6, Severity.INFO), (0.2, Severity.WARNING)]
)
def test_classes_that_resemble_each_other_are_an_information(
    share: float, level: Severity
):
    recall = [0.95] * 8 + [share, 0.95]
    found = judge(run_of(BALANCED, recall, {8: 9}, n_steps=80), Confusion())
    assert max(each.severity for each in found) is level


def test_what_is_rare_for_a_while_is_not_rare():
    """A stream, a curriculum: the other class comes first."""
    run = FakeRun()
    for first, shares in ((0, [0.0, 1.0]), (60, [1.0, 0.0])):
        part = run_of(shares, n_steps=60)
        for step in range(60):
            values = (part.tensors[name].values[step] for name in (LABELS, SCORES))
            record(run, first + step, *values)
    mixed = [found for found in judge(run, ClassImbalance()) if found.step in (69, 75)]
    assert mixed == []


def test_samples_of_validation_count_once():
    """Two samples of a class, validated fifty times, are two samples."""
    run, labels = FakeRun(), np.r_[np.zeros(98, np.int64), 1, 1]
    for step in range(200):
        scores = np.tile([1.0, 0.0], (100, 1)).astype(np.float32)
        mode = ModeKeys.EVAL if step % 4 == 3 else ModeKeys.TRAIN
        shown = labels if mode is ModeKeys.EVAL else np.arange(100) % 2
        record(run, step, shown, scores, mode=mode)
    (finding,) = judge(run, ClassImbalance())
    assert (finding.mode, finding.severity) == (ModeKeys.EVAL, Severity.INFO)


def test_it_is_found_as_soon_as_there_are_500_labels():
    (finding,) = judge(run_of(RARE, MISSED, {9: 0}), ClassImbalance())
    assert finding.step == 500 // BATCH


def test_a_class_that_never_comes_is_known_from_the_scores():
    (finding,) = judge(run_of(MISSED), ClassImbalance())
    assert " none to class 9" in finding.message


def test_labels_of_one_class_are_a_fault_only_if_a_constant_answers_them():
    """InfoNCE: number 0 is the right one, by construction, and is to be found."""
    found = run_of([1.0] + [0.0] * 9, recall=[0.9] * 10)
    assert judge(found, ClassImbalance()) == []
    info, finding = judge(run_of([1.0] + [0.0] * 9, n_steps=120), ClassImbalance())
    assert (info.severity, finding.severity) == (Severity.INFO, Severity.WARNING)
    assert "labels are class 0, and so is nearly every prediction" in finding.message


def test_numbers_that_are_all_one_are_no_class_of_a_regression():
    """Sabotaged: targets that are all 1.0 are labels of class 1."""
    for loss, n_findings in (("MSELoss", 0), ("BCEWithLogitsLoss", 1)):
        run = FakeRun()
        for step in range(40):
            given = {
                f"{loss}_input_0": np.full((BATCH, 1), 1.5, np.float32),
                f"{loss}_input_1": np.ones((BATCH, 1), np.float32),
            }
            run.step(step, given)
            for name, values in given.items():
                run.value(step, name, values)
        assert len(judge(run, ClassImbalance())) == n_findings


@pytest.mark.parametrize(
    ("images", "regression", "n_findings"),
    [
        ((2, 3, 9, 9), "smooth_l1_loss", 0),
        ((2, 3, 9, 9), "huber_loss", 0),
        ((2, 3, 9, 9), "cross_entropy", 1),  # no places are learned
        ((BATCH, 3, 9, 9), "smooth_l1_loss", 1),  # one label for each sample
        ((2, BATCH // 2), "smooth_l1_loss", 0),  # or for each token
        (None, "smooth_l1_loss", 1),
    ],
)
def test_places_that_a_detector_proposes_are_mostly_empty(
    images: tuple[int, ...] | None, regression: str, n_findings: int
):
    run = run_of(RARE, MISSED, {9: 0})
    run.step(0, {f"{regression}_input_1": np.zeros((3, 4))})
    run.tensor_of(f"{regression}_input_1").role = "label"
    if images is not None:
        run.step(0, {"Model_input_0": np.zeros(images)})
    assert len(judge(run, ClassImbalance())) == n_findings


@pytest.mark.parametrize(
    ("shape", "n_findings"),
    [
        ((4, BATCH // 4), 0),  # tokens
        ((2, 3, 4, BATCH // 8), 0),  # pixels
        ((BATCH, 3, 9, 9), 1),
        ((BATCH, BATCH), 1),
        ((4, 3), 1),
    ],
)
def test_labels_of_tokens_and_pixels_are_as_frequent_as_these(
    shape: tuple[int, ...], n_findings: int
):
    run = run_of(RARE, MISSED, {9: 0})
    run.step(0, {"Model_input_0": np.zeros(shape)})
    assert len(judge(run, ClassImbalance())) == n_findings


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shares", [BALANCED, [1.0, 3.0], [3.0] * 5 + [1.0] * 5])
def test_mild_imbalance_is_silent(shares: list[float], seed: int):
    assert judge(run_of(shares, seed=seed), ClassImbalance()) == []


def test_a_class_that_alone_is_not_learned_is_found():
    recall = [0.95] * 9 + [0.1]
    finding = judge(run_of(BALANCED, recall, {9: 4}, n_steps=70), ClassImbalance())[0]
    assert "class 9" in finding.message
    assert "mostly as class 4" in finding.message


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
    run = run_of(RARE, MISSED, {9: 0})
    del run.tensors[SCORES]
    assert judge(run, ClassImbalance())
    assert judge(run, Confusion()) == []


def test_labels_and_predictions_may_be_named():
    named = ClassImbalance(labels_regex="Loss_input_1", predictions_regex="_input_0")
    run = run_of(RARE, MISSED, {9: 0})
    assert judge(run, named) == judge(run, ClassImbalance()) != []
    assert judge(run, ClassImbalance(labels_regex="nothing")) == []


def test_tokens_of_a_language_model_are_no_classes():
    run = run_of(RARE, MISSED, {9: 0})
    for module, n_findings in (("Embedding", 0), ("Linear", 1)):
        rows = ParameterFacts(
            shape=(10, 8), dtype="float32", requires_grad=True, module=module
        )
        run.known_facts = [ModelInfo(step=0, parameters={"emb.weight": rows})]
        assert len(judge(run, ClassImbalance())) == n_findings


@pytest.mark.parametrize("seed", range(2))
def test_a_pair_that_stays_mixed_up_is_found_and_named(seed: int):
    recall = [0.97] * 10
    recall[2] = 0.2
    run = run_of(BALANCED, recall, {2: 5}, n_steps=80, seed=seed)
    finding = judge(run, Confusion())[0]
    assert finding.severity is Severity.WARNING
    assert "class 2 for 5" in finding.message


@pytest.mark.parametrize("seed", range(2))
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
    run = run_of(RARE, MISSED, {9: 0}, mode=ModeKeys.EVAL)
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
    run = run_of(RARE, MISSED, {9: 0})
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


def calls(of_first: list[float], of_second: list[float]) -> FakeRun:
    """A binary loss that is called twice in a step."""
    run = FakeRun()
    for step in range(20):
        for call, labels in (("", of_first), ("@2", of_second)):
            names = [f"BCEWithLogitsLoss_input_{i}{call}" for i in (0, 1)]
            given = np.array(labels * BATCH, np.float32)
            # Of rare ones, none is recognized.
            scores = given if given.mean() > 0.2 else np.zeros_like(given)
            both = dict(zip(names, (scores, given), strict=True))
            run.step(step, both)
            for name, values in both.items():
                run.value(step, name, values)
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


# ---- other numbers, and mistakes that last ---------------------------------------


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
    assert "number the classes differently" in finding.message
    number, label = next(iter(moved.items()))
    assert f"class {label} for {number} (9" in finding.message
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
        assert "number the classes differently" not in found.message


def test_one_class_with_the_number_of_another_is_mixed_up():
    recall = [0.97] * 9 + [0.0]
    run = run_of([1.0] * 8 + [0.0, 1.0], recall, {9: 8}, 80, mode=ModeKeys.EVAL)
    assert "confuses classes" in judge(run, Confusion())[0].message


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
    assert "number the classes differently" in judge(run, Confusion())[0].message


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


@pytest.mark.parametrize(
    ("loss", "n_findings"), [("Angular", 0), ("CrossEntropyLoss", 1)]
)
def test_a_loss_of_unknown_kind_may_be_given_places_not_scores(
    loss: str, n_findings: int
):
    """Metric learning: 24 columns are no classes, of which 20 would have no samples."""
    random = np.random.default_rng(0)
    run = FakeRun()
    for step in range(20):
        for name, values in (
            (f"{loss}_input_0", random.standard_normal((64, 24))),
            (f"{loss}_input_1", random.integers(0, 4, 64)),
        ):
            run.value(step, name, values)
            run.step(step, {name: values})
    assert len(judge(run, ClassImbalance())) == n_findings
