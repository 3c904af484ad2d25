"""What the hooks of boosted trees share computes what its formulas say."""

from __future__ import annotations

import numpy as np
import pytest

from tdbg.hooks.trees.importance import Importance
from tdbg.hooks.trees.margins import RunningSum, derivatives_of, prediction_of
from tdbg.hooks.trees.rounds import Score, is_maximized, loss_of
from tdbg.hooks.trees.shap import average, columns, sample_rows
from tdbg.hooks.trees.tables import TreeTable, level_order

TERMS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
BASE = 100.0


def test_a_running_sum_asks_for_each_round_once_when_it_knows_the_base() -> None:
    asked: list[tuple[int, int]] = []

    def of_rounds(first: int, last: int) -> np.ndarray:
        asked.append((first, last))
        return BASE + TERMS[first:last].sum(keepdims=True)

    running = RunningSum(of_rounds, lambda: BASE)
    assert running.up_to(1) == 101.0
    assert running.up_to(3) == 107.0
    assert running.up_to(3) == 107.0
    assert running.up_to(5) == 131.0
    assert asked == [(0, 1), (1, 3), (3, 5)]
    assert running.up_to(2) == 103.0  # A model that was cut begins anew.


def test_a_running_sum_reads_all_while_the_base_is_unknown() -> None:
    bases = iter([None, BASE])
    running = RunningSum(
        lambda first, last: BASE + TERMS[first:last].sum(keepdims=True),
        lambda: next(bases),
    )
    assert [float(running.up_to(n)[0]) for n in (1, 2, 4)] == [101.0, 103.0, 115.0]


@pytest.mark.parametrize("size", [1.0, 800.0])
def test_derivatives_are_those_of_the_loss(size: float) -> None:
    random = np.random.default_rng(0)
    margin = random.normal(size=20) * size
    label = random.integers(0, 2, 20).astype(float)

    def logloss(m: np.ndarray) -> np.ndarray:
        return np.logaddexp(0.0, m) - label * m

    found = derivatives_of("binary:logistic", margin, label)
    assert found is not None
    h = 1e-4
    slope = (logloss(margin + h) - logloss(margin - h)) / (2 * h)
    np.testing.assert_allclose(found[0], slope, atol=1e-6)
    assert np.isfinite(found[1]).all()


def test_weights_multiply_derivatives_of_all_classes() -> None:
    margin = np.random.default_rng(0).normal(size=(5, 3))
    label, weight = np.array([0.0, 1, 2, 1, 0]), np.arange(5.0)
    plain = derivatives_of("multi:softprob", margin, label)
    weighted = derivatives_of("multi:softprob", margin, label, weight)
    assert plain is not None
    assert weighted is not None
    np.testing.assert_allclose(weighted[0], plain[0] * weight[:, None])
    np.testing.assert_allclose(plain[0].sum(axis=1), 0.0, atol=1e-12)


def test_derivatives_of_other_objectives_are_not_made_up() -> None:
    assert derivatives_of("rank:ndcg", np.zeros(3), np.zeros(3)) is None
    assert derivatives_of("reg:squarederror", np.zeros((3, 2)), np.zeros(3)) is None


def test_predictions_follow_from_margins() -> None:
    margin = np.array([[-1e3, 0.0], [0.0, 0.0]])
    softmax = prediction_of("multi:softprob", margin)
    np.testing.assert_allclose(softmax, [[0, 1], [0.5, 0.5]])
    logistic = prediction_of("binary:logistic", np.array([-1e3, 0.0, 1e3]))
    np.testing.assert_allclose(logistic, [0, 0.5, 1])
    assert prediction_of("reg:squarederror", margin) is margin


def test_a_sample_is_spread_and_does_not_depend_on_anything_but_the_number() -> None:
    assert sample_rows(10, 10) is None
    rows = sample_rows(100_000, 1000)
    assert rows is not None
    assert len(np.unique(rows)) == 1000
    assert (np.diff(rows) > 0).all()
    counts, _ = np.histogram(rows, 10, (0, 100_000))
    assert counts.min() > 60
    assert (sample_rows(100_000, 1000) == rows).all()


def test_contributions_of_both_signs_do_not_cancel() -> None:
    given = np.array([[[1.0, 5.0], [-1.0, 5.0]]])
    assert average(given).tolist() == [1.0, 5.0]
    assert [name for name, _ in columns(given, ["a"])] == ["a", "bias"]


def test_importance_adds_up_over_trees_and_has_no_division_by_zero() -> None:
    def tree(number: int, features: list[int]) -> TreeTable:
        n = len(features)
        nodes, zeros = np.arange(n), np.zeros(n)
        feature = np.array(features)
        return TreeTable(
            np.full(n, number), nodes, feature, zeros, nodes, nodes, nodes,
            np.full(n, 2.0 + number), np.full(n, 10.0), np.full(n, ""), ("a", "b"),
        )  # fmt: skip

    importance = Importance(2)
    assert importance.of_kind("gain").tolist() == [0.0, 0.0]
    importance.add(tree(0, [1, -1, -1]))
    importance.add(tree(1, [1, 0, -1]))
    assert importance.of_kind("weight").tolist() == [1.0, 2.0]
    assert importance.of_kind("total_gain").tolist() == [3.0, 5.0]
    assert importance.of_kind("gain").tolist() == [3.0, 2.5]
    assert importance.of_kind("cover").tolist() == [10.0, 10.0]


def test_a_table_says_where_values_categories_and_missing_values_go() -> None:
    # Tree 7 splits by a threshold, tree 8 by category.
    left = np.array([1, -1, -1, 1, -1, -1])
    at_category = np.array([False] * 3 + [True] + [False] * 2)
    table = TreeTable.of_nodes(
        7,
        [3, 3],
        ["x", "city"],
        left=left,
        right=np.where(left >= 0, left + 1, 9),
        feature=np.array([0, 5, 5, 1, 5, 5]),
        split=np.array([0.5, 9, 9, 9, 9, 9]),
        category=np.array(["", "", "", "3,4", "", ""]),
        by_category=at_category,
        yes_is_right=at_category,
        missing_is_right=~at_category,
        gain=np.arange(6),
        cover=np.ones(6),
    )
    assert table.tree.tolist() == [7, 7, 7, 8, 8, 8]
    assert table.node.tolist() == [0, 1, 2, 0, 1, 2]
    assert table.feature.tolist() == [0, -1, -1, 1, -1, -1]
    assert table.yes.tolist() == [1, -1, -1, 2, -1, -1]
    assert table.no.tolist() == [2, -1, -1, 1, -1, -1]
    assert table.missing.tolist() == [2, -1, -1, 1, -1, -1]
    np.testing.assert_array_equal(table.split, [0.5] + [np.nan] * 5)


def test_nodes_are_ordered_tree_by_tree_and_level_by_level() -> None:
    # Roots 0 and 1; node 0 splits into 5 and 2, node 5 into 3 and 4; 6 is cut off.
    left = np.array([5, -1, -1, -1, -1, 3, -1])
    right = np.array([2, -1, -1, -1, -1, 4, -1])
    order = level_order(np.array([0, 1]), left, right)
    assert order.tolist() == [0, 5, 2, 3, 4, 1]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("logloss", False),
        ("rmse", False),
        ("error@0.7", False),
        ("merror", False),
        ("mape", False),
        ("mphe", False),
        ("pinball", False),
        ("auc", True),
        ("aucpr", True),
        ("pre@5", True),
        ("map@3-", True),
        ("ndcg@10", True),
        ("ndcg-", True),
        ("accuracy", True),
        ("val_accuracy", True),
        ("acc_top5", True),
        ("f1", True),
        ("r2", True),
        ("prescription_error", False),
    ],
)
def test_metrics_that_are_maximized_are_told_by_their_names(
    metric: str, expected: bool
) -> None:
    assert is_maximized(metric) is expected


def test_a_loss_of_evaluation_is_paired_with_that_of_training() -> None:
    scores = [
        Score("train", "rmse", 1.0, is_training=True, is_loss=True),
        Score("valid", "rmse", 2.0, is_training=False, is_loss=True),
        Score("valid", "auc", 2.0, is_training=False, is_loss=False),
        Score("valid", "mae", 2.0, is_training=False, is_loss=True),
    ]
    assert [loss_of(score, scores) for score in scores] == [
        None,
        "train-rmse",
        None,
        None,
    ]
