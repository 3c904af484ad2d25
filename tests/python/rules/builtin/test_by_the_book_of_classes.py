"""Rules about classifiers say what the formulas of their pages say.

As test_rules_by_the_book has it for those of tensors.
"""

from __future__ import annotations

import numpy as np
import pytest

from rules_by_the_book import spied
from rules_by_the_book_of_classes import BOOKS_OF_CLASSES, LABELS, SCORES
from rules_fake import FakeRun, judge
from tdbg.modes import ModeKeys
from tdbg.rules import ClassImbalance, Confusion, Rule
from tdbg.rules.builtin.data.classifier_batches import batch_of
from tdbg.run.model_info import ModelInfo, ParameterFacts

SEEDS = range(4)


def random_run(seed: int) -> FakeRun:
    """Four classes, of which one is rare for a while, and one mistaken for a while.

    In the second half of evaluation all have the number of the next.
    """
    random = np.random.default_rng(seed)
    run = FakeRun()
    for index in range(150):
        rare = index // 40 % 2
        labels = random.choice(4, 16, p=[0.3, 0.3, 0.38, 0.02] if rare else [0.25] * 4)
        known = [0.97, 0.9, 0.85, 0.8][index // 20 % 4]
        learned = [known, known, [known, 0.1, 0.3, 0.5][index // 25 % 4], known]
        scores = 0.1 * random.random((16, 4))
        for row, label in enumerate(labels.tolist()):
            right = random.random() < learned[label]
            other = (label + 1 + int(random.random() < 0.2)) % 4
            scores[row, label if right else other] += 1.0
        if index % 5 == 4 and index > 60:
            labels = (labels + 1) % 4
        labels[random.random(16) < 0.05] = -100
        run.step(
            index,
            {LABELS: labels, SCORES: scores} if index % 7 else {SCORES: scores},
            mode=ModeKeys.EVAL if index % 5 == 4 else ModeKeys.TRAIN,
            complete=bool(random.random() > 0.03),
            lossless=bool(random.random() > 0.03),
        )
        if random.random() < 0.9:
            run.value(index, LABELS, labels)
            run.value(index, SCORES, scores)
    return run


CASES: list[Rule] = [
    ClassImbalance(samples=60, samples_per_class=10),
    ClassImbalance(samples=300, threshold_imbalance=2.5, max_steps=60),
    ClassImbalance(samples=20, samples_per_class=6, threshold_imbalance=30.0,
                   threshold_misprediction=0.6, learned=0.85, max_steps=40),
    Confusion(samples=60, samples_per_class=10),
    Confusion(samples=30, samples_per_class=20, learned=0.85, min_diag=0.4,
              max_off_diag=0.5, max_steps=45),
    Confusion(samples=80, samples_per_class=10, learned=0.6),
]  # fmt: skip


@pytest.mark.parametrize("rule", CASES, ids=lambda rule: rule.name)
def test_verdicts_are_those_of_the_page(rule: Rule) -> None:
    met = set()
    for seed in SEEDS:
        run = random_run(seed)
        expected = BOOKS_OF_CLASSES[type(rule)](rule, run)
        # Every other run is judged at once.
        found = spied(run, rule, max_window=None if seed % 2 else 5)
        assert found == expected, f"seed {seed}"
        met |= set(expected.values())
    # Nothing is proven by runs in which nothing happens.
    assert {0} < met


@pytest.mark.parametrize(
    ("labels", "scores", "expected"),
    [
        ([2, 0], [[0.1, 0.2, 0.7], [0.1, 0.8, 0.1]], ([2, 0], [2, 1], 3)),
        ([2, 0], None, ([2, 0], None, 3)),
        ([[2], [0]], [[0.1, 0.2, 0.7], [0.1, 0.8, 0.1]], ([2, 0], [2, 1], 3)),
        ([[0, 0, 1], [1, 0, 0]], None, ([2, 0], None, 3)),
        ([[0.0, 1.0], [1.0, 0.0]], [[3.0, 1.0], [9.0, 1.0]], ([1, 0], [0, 0], 2)),
        ([0.0, 1.0, 1.0], [-0.1, 0.1, 2.0], ([0, 1, 1], [0, 1, 1], 2)),
        ([0.0, 1.0, 1.0], [0.0, 0.5, 0.51], ([0, 1, 1], [0, 0, 1], 2)),
        ([0.0, 1.0, 1.0], [0.0, 0.5, 1.01], ([0, 1, 1], [0, 1, 1], 2)),
        ([1.0, 0.0], [[0.9], [0.4]], ([1, 0], [1, 0], 2)),
        ([3, 1], [3, 2], ([3, 1], [3, 2], 4)),
        ([0, 1], [3, 2], ([0, 1], [3, 2], 4)),
        ([0, -100, 1], [[5.0, 1.0], [5.0, 1.0], [5.0, 1.0]], ([0, 1], [0, 0], 2)),
        ([0, -1], [[5.0, 1.0], [5.0, 1.0]], None),
        ([0.0, 0.5], [0.1, 0.2], None),
        ([[1, 1], [1, 0]], [[0.1, 0.2], [0.1, 0.2]], None),
        ([[0, 0], [1, 0]], [[0.1, 0.2], [0.1, 0.2]], None),
        ([0, 1], [[0.1, 0.2]], None),
        ([0, 1, 1], [0.1, 0.2], None),
        ([[[0, 1]]], [[[0.1, 0.2]]], None),
    ],
)
def test_a_batch_is_read_by_its_shape_and_kind(
    labels: list[object],
    scores: list[object] | None,
    expected: tuple[list[int], list[int] | None, int] | None,
) -> None:
    found = batch_of(np.array(labels), None if scores is None else np.array(scores))
    if found is None or expected is None:
        assert found is expected
        return
    predicted = None if found.predicted is None else found.predicted.tolist()
    assert (found.labels.tolist(), predicted, found.n_classes) == expected


def with_rows(n_rows: int, module: str) -> ModelInfo:
    weight = ParameterFacts(
        shape=(n_rows, 8), dtype="float32", requires_grad=True, module=module
    )
    shapeless = ParameterFacts(
        shape=(), dtype="float32", requires_grad=True, module="Embedding"
    )
    parameters = {"scale": shapeless, "of.weight": weight}
    return ModelInfo(step=0, modules={"of": module}, parameters=parameters)


@pytest.mark.parametrize(
    ("model_info", "is_judged"),
    [
        (with_rows(4, "Embedding"), False),
        (with_rows(4, "EmbeddingBag"), False),
        (with_rows(5, "Embedding"), True),
        (with_rows(4, "Linear"), True),
    ],
)
def test_classes_that_are_rows_of_an_embedding_are_not_judged(
    model_info: ModelInfo, is_judged: bool
) -> None:
    run = random_run(0)
    run.known_facts = [model_info]
    assert bool(spied(run, CASES[0])) == is_judged


@pytest.mark.parametrize(("max_classes", "is_judged"), [(3, False), (4, True)])
def test_with_more_classes_nothing_is_said(max_classes: int, is_judged: bool) -> None:
    rule = ClassImbalance(samples=20, samples_per_class=5, max_classes=max_classes)
    assert bool(spied(random_run(0), rule)) == is_judged


def steady(n_classes: int, *cells: tuple[int, int, int]) -> FakeRun:
    """Batches with so many samples of a class that are taken for one, all alike."""
    labels = np.concatenate([np.full(n, label) for label, _, n in cells])
    said = np.concatenate([np.full(n, taken) for _, taken, n in cells])
    run = FakeRun()
    for step in range(128):
        for name, values in ((LABELS, labels), (SCORES, np.eye(n_classes)[said])):
            run.step(step, {name: values})
            run.value(step, name, values)
    return run


def right(*counts: int) -> list[tuple[int, int, int]]:
    return [(label, label, n) for label, n in enumerate(counts)]


SMALL = {"samples": 10, "samples_per_class": 5}
SPREAD = [(5, taken, 1 if taken in (0, 5) else 2) for taken in range(6)]


@pytest.mark.parametrize(
    ("run", "rule", "value", "parts"),
    [
        (steady(4, *right(22, 10, 7), (3, 0, 1)),
         ClassImbalance(threshold_imbalance=5.0, **SMALL), 11.5,
         ["last 40 samples, 22 belong to class 0, 12 times as many as to class 3 (1)",
          "100% of the 75 later samples of class 3", "Rare classes: 3. "]),
        (steady(8, (0, 0, 65), (1, 0, 1), *((c, 0, 2) for c in range(2, 8))),
         ClassImbalance(**SMALL), 33.0,
         ["65 belong to class 0, 33 times as many as to class 1 (1)",
          "100% of the 75 later samples of class 1",
          "Rare classes: 1, 2, 3, 4, 5 and 2 more. "]),
        (steady(4, *right(10, 10, 2, 10), (2, 3, 5), (2, 1, 3)),
         ClassImbalance(**SMALL), 0.8,
         ["80% of the 10 samples of class 2, mostly as class 3,",
          "does not learn: 2. "]),
        (steady(8, *right(10, 4, 10, 1, 10, 10, 10, 10), (1, 2, 6), (3, 0, 9)),
         Confusion(**SMALL), 0.9,
         ["class 3 for 0 (90% of 10 samples), class 1 for 2 (60% of 10 samples)."]),
        (steady(8, *right(10, 10, 10, 10, 10), *SPREAD, *right(*[0] * 6, 10, 10)[6:]),
         Confusion(**SMALL), 0.1,
         ["only 10% of the 10 samples of class 5,", "mostly for class 1"]),
    ],
    ids=["rare", "many rare", "not learned", "pairs", "missed"],
)  # fmt: skip
def test_how_many_samples_are_of_what_is_told(
    run: FakeRun, rule: Rule, value: float, parts: list[str]
) -> None:
    finding = judge(run, rule)[-1]
    assert finding.value == pytest.approx(value)
    told = f"{finding.message}\n{finding.advice}"
    for part in parts:
        assert part in told
