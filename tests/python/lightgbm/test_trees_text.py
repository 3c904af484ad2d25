"""Trees in LightGBM's text format become tables that predict what the model does."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pytest

from tdbg.hooks.lightgbm.booster import table_of_text
from tdbg.hooks.trees.tables import TreeTable

QUIET = {"verbosity": -1, "num_threads": 1, "num_leaves": 8}


def samples(n_rows: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Two features of 70 categories, and numbers with missing values."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 70, (n_rows, 3)).astype(np.float64)
    x[rng.random(n_rows) < 0.2, 1] = np.nan
    y = np.isin(x[:, 0], [3, 31, 32, 40, 69]) + 0.01 * np.nan_to_num(x[:, 1])
    return x, y


def boosters() -> dict[str, lightgbm.Booster]:
    x, y = samples()
    by_set = {"min_data_per_group": 5, "cat_smooth": 1, "max_cat_to_onehot": 2}

    def train(given: dict[str, Any], **options: Any) -> lightgbm.Booster:
        data = lightgbm.Dataset(x, y, **options)
        return lightgbm.train({**QUIET, **given}, data, 5)

    return {
        "numbers": train({}),
        "categories": train(by_set, categorical_feature=[0, 2]),
        "trees of one leaf": train({"min_data_in_leaf": 600}),
    }


def leaf_of(table: TreeTable, row: np.ndarray) -> float:
    """Go down a tree by what the columns of its table say."""
    node = 0
    while table.feature[node] >= 0:
        value = row[table.feature[node]]
        if table.category[node]:
            chosen = set(map(int, table.category[node].split(",")))
            goes_left = not np.isnan(value) and int(value) in chosen
            children = table.yes if goes_left else table.no
        elif np.isnan(value):
            children = table.missing
        else:
            children = table.yes if value <= table.split[node] else table.no
        node = int(children[node])
    return float(table.gain[node])


@pytest.mark.parametrize("case", ["numbers", "categories", "trees of one leaf"])
def test_the_tables_of_all_trees_predict_what_the_model_does(case: str) -> None:
    booster, (x, _) = boosters()[case], samples()
    n_trees = booster.num_trees()
    whole = table_of_text(booster.model_to_string(), 7, booster.feature_name())
    tables = [whole.of_rows(whole.tree == 7 + i) for i in range(n_trees)]
    found = [sum(leaf_of(table, row) for table in tables) for row in x[:60]]
    np.testing.assert_allclose(found, booster.predict(x[:60], raw_score=True))


@pytest.mark.parametrize("case", ["numbers", "categories", "trees of one leaf"])
def test_nodes_are_numbered_level_by_level_with_what_lightgbm_dumps(case: str) -> None:
    booster = boosters()[case]
    text = booster.model_to_string(start_iteration=0, num_iteration=3)
    table = table_of_text(text, 0, booster.feature_name())
    for tree in booster.dump_model(num_iteration=3)["tree_info"]:
        part = table.of_rows(table.tree == tree["tree_index"])
        nodes = [tree["tree_structure"]]
        for node in nodes:
            nodes += [
                node[side] for side in ("left_child", "right_child") if side in node
            ]
        assert part.node.tolist() == list(range(len(nodes)))
        assert part.feature.tolist() == [n.get("split_feature", -1) for n in nodes]
        gains = [n.get("split_gain", n.get("leaf_value")) for n in nodes]
        np.testing.assert_allclose(part.gain, gains, rtol=1e-5)
        counts = [n.get("internal_count", n.get("leaf_count")) for n in nodes]
        assert part.cover.tolist() == counts
        is_set = [n.get("decision_type") == "==" for n in nodes]
        chosen = [
            node["threshold"].replace("||", ",") if by_set else ""
            for node, by_set in zip(nodes, is_set, strict=True)
        ]
        assert part.category.tolist() == chosen
