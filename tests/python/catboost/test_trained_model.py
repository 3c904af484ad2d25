"""A trained model of CatBoost is read as it was after each of its rounds."""

from __future__ import annotations

from typing import Any

import catboost
import numpy as np
import pandas as pd
import pytest

from tdbg.hooks.catboost.model import Features, TrainedModel, table_of_trees
from tdbg.hooks.trees.rounds import DataSet
from tdbg.hooks.trees.tables import TreeTable
from tree_runs import diabetes, digits

QUIET: dict[str, Any] = {
    "thread_count": 1,
    "random_seed": 1,
    "allow_writing_files": False,
    "verbose": False,
}


def with_missing_values() -> tuple[np.ndarray, np.ndarray]:
    data = diabetes()
    x = data.x.copy()
    x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
    return x, data.y


def with_categories() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": rng.choice(list("abcdef"), 300),
            "sex": rng.choice(["f", "m"], 300),
            "age": rng.normal(size=300),
        }
    )
    label = ((frame.city == "a") ^ (frame.sex == "f")) | (frame.age > 1.5)
    return frame, label.to_numpy().astype(np.int64)


def tables_of(model: Any) -> list[TreeTable]:
    trained, found = TrainedModel(model), []
    for n_rounds in range(1, trained.n_all + 1):
        trained.n_rounds = n_rounds
        found.append(trained.trees())
    return found


def leaf_of(table: TreeTable, row: np.ndarray) -> float:
    """Go down a tree by what the columns of its table say."""
    node = 0
    while table.feature[node] >= 0:
        value = row[table.feature[node]]
        children = table.yes if value <= table.split[node] else table.no
        node = int((table.missing if np.isnan(value) else children)[node])
    return float(table.gain[node])


@pytest.mark.parametrize("policy", ["SymmetricTree", "Lossguide", "Depthwise"])
@pytest.mark.parametrize("nan_mode", ["Min", "Max"])
def test_the_tables_of_all_trees_predict_what_the_model_does(
    policy: str, nan_mode: str
) -> None:
    x, y = with_missing_values()
    model = catboost.CatBoostRegressor(
        iterations=6, depth=3, grow_policy=policy, nan_mode=nan_mode, **QUIET
    ).fit(x, y)
    tables = tables_of(model)
    assert [table.tree.tolist()[0] for table in tables] == list(range(6))
    _, bias = model.get_scale_and_bias()
    found = [
        bias + sum(leaf_of(table, row.astype(np.float32)) for table in tables)
        for row in x[:40]
    ]
    np.testing.assert_allclose(found, model.predict(x[:40]), rtol=1e-6)


@pytest.mark.parametrize("policy", ["SymmetricTree", "Lossguide"])
def test_the_gains_of_a_tree_add_up_to_the_variance_of_its_values(policy: str) -> None:
    data = diabetes()
    model = catboost.CatBoostRegressor(
        iterations=3, depth=3, grow_policy=policy, **QUIET
    ).fit(data.x, data.y)
    for table in tables_of(model):
        leaves = ~table.is_split
        weight, value = table.cover[leaves], table.gain[leaves]
        assert weight.sum() == table.cover[0] == len(data.x)
        mean = np.average(value, weights=weight)
        variance = (weight * (value - mean) ** 2).sum()
        assert table.gain[table.is_split].sum() == pytest.approx(variance)


def test_leaves_that_are_vectors_have_their_lengths() -> None:
    data = digits()
    model = catboost.CatBoostClassifier(iterations=2, depth=2, **QUIET)
    model.fit(data.x, data.y)
    values = np.asarray(model.get_leaf_values()).reshape(2, 4, 10)
    for table, of_tree in zip(tables_of(model), values, strict=True):
        # The first split is the root's, and the lowest bit of a leaf's number.
        lengths = np.linalg.norm(of_tree, axis=1)[[0, 2, 1, 3]]
        np.testing.assert_allclose(table.gain[~table.is_split], lengths)


def test_statistics_of_categories_count_for_the_features_they_are_made_of() -> None:
    frame, label = with_categories()
    model = catboost.CatBoostClassifier(
        iterations=12,
        depth=4,
        cat_features=["city", "sex"],
        one_hot_max_size=1,
        model_size_reg=0,
        max_ctr_complexity=4,
        **QUIET,
    ).fit(frame, label)
    trained = TrainedModel(model)
    names = trained.trees().names
    assert list(names[:3]) == ["city", "sex", "age"]
    assert any("(city, sex)" in name for name in names[3:])
    table = tables_of(model)
    categories = {text for each in table for text in each.category.tolist()} - {""}
    assert all(text.lstrip("-").isdigit() for text in categories)
    importance = trained.importance()
    n_splits = sum(int(each.is_split.sum()) for each in table)
    assert importance["weight"].shape == (3,)
    assert importance["weight"].sum() == pytest.approx(n_splits)
    whole = model.get_feature_importance()
    np.testing.assert_allclose(importance["prediction_values_change"], whole)


def test_an_importance_grows_with_the_rounds_and_catboosts_own_is_of_all() -> None:
    data = diabetes()
    model = catboost.CatBoostRegressor(iterations=5, depth=2, **QUIET)
    trained = TrainedModel(model.fit(data.x, data.y))
    totals = []
    for n_rounds in (1, 3, 5):
        trained.n_rounds = n_rounds
        importance = trained.importance()
        totals.append(importance["total_gain"].sum())
        assert importance["weight"].sum() == 3 * n_rounds
        assert ("prediction_values_change" in importance) == (n_rounds == 5)
    assert totals == sorted(totals)


@pytest.mark.parametrize("loss", ["Logloss", "MultiClass", "RMSE", "Poisson"])
def test_predictions_and_contributions_of_a_stage_are_those_of_its_rounds(
    loss: str,
) -> None:
    data = digits()
    label = data.y if loss != "Logloss" else data.y % 2
    model = catboost.CatBoost(
        {"loss_function": loss, "iterations": 6, "depth": 2, **QUIET}
    )
    pool = catboost.Pool(data.x, label)
    trained, data_set = TrainedModel(model.fit(pool)), DataSet(pool, is_training=True)
    kind = {"RMSE": "RawFormulaVal", "Poisson": "Exponent"}.get(loss, "Probability")
    for n_rounds in (1, 4, 6):
        trained.n_rounds = n_rounds
        part = model.copy()
        part.shrink(n_rounds)
        expected = part.predict(pool, prediction_type=kind)
        if loss == "Logloss":
            expected = expected[:, 1]
        np.testing.assert_allclose(trained.predictions(data_set), expected, rtol=1e-9)
        found = trained.contributions(data_set, len(data.x))
        whole = part.get_feature_importance(pool, type="ShapValues")
        np.testing.assert_allclose(found, whole, atol=1e-8)


def test_labels_are_numbers_of_classes_where_there_are_classes() -> None:
    data = digits()
    words = np.array([f"digit {i}" for i in range(10)])[data.y]
    classifier = catboost.CatBoostClassifier(iterations=1, depth=1, **QUIET)
    pool = catboost.Pool(data.x, words)
    labels = TrainedModel(classifier.fit(pool)).labels(DataSet(pool, is_training=True))
    np.testing.assert_array_equal(labels, data.y)
    regressor = catboost.CatBoostRegressor(iterations=1, depth=1, **QUIET)
    pool = catboost.Pool(data.x, data.y)
    labels = TrainedModel(regressor.fit(pool)).labels(DataSet(pool, is_training=True))
    assert labels.dtype == np.float64


def test_a_split_of_an_unknown_kind_is_an_error_that_names_it() -> None:
    features = Features({"features_info": {}}, ["text"])
    tree = {
        "leaf_values": [1.0, 2.0],
        "splits": [{"split_type": "EstimatedFeature", "split_index": 0}],
    }
    with pytest.raises(ValueError, match="EstimatedFeature"):
        table_of_trees([tree], 0, features)
