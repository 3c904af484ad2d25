"""Trees of XGBoost's JSON format, as tables.

The format is that of ``Booster.save_raw("json")``: doc/model.schema of XGBoost.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.hooks.trees.tables import NO_NODE, TreeTable, join_tables

__all__ = ["gbtree_of", "table_of_trees"]

_CATEGORICAL = 1


def gbtree_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the trees of a model: those of ``dart`` lie one level deeper."""
    booster = document["learner"]["gradient_booster"]
    model: Mapping[str, Any] = booster.get("gbtree", booster)["model"]
    return model


def table_of_trees(
    trees: Sequence[Mapping[str, Any]], first: int, names: Sequence[str]
) -> TreeTable:
    """Return the table of some trees.

    Args:
        trees: As the JSON format has them.
        first: Number of the first one in the model.
        names: Names of the features.

    REQUIRES: there is a tree.
    """
    tables = [_table(tree, first + i, names) for i, tree in enumerate(trees)]
    return join_tables(tables)


def _table(tree: Mapping[str, Any], number: int, names: Sequence[str]) -> TreeTable:
    left = np.array(tree["left_children"], dtype=np.int64)
    right = np.array(tree["right_children"], dtype=np.int64)
    n_nodes = len(left)
    split = left >= 0
    conditions = np.array(tree["split_conditions"], dtype=np.float32)
    leaves = _leaf_values(tree, conditions, n_nodes)
    goes_left = np.array(tree["default_left"], dtype=bool)
    categories = _categories(tree, n_nodes)
    by_category = np.array(tree["split_type"][:n_nodes]) == _CATEGORICAL
    # The right child is for the categories of a split: it is the one for "yes".
    flip = split & by_category
    nodes = np.arange(n_nodes, dtype=np.int64)
    found = TreeTable(
        tree=np.full(n_nodes, number, dtype=np.int64),
        node=nodes,
        feature=np.where(split, np.array(tree["split_indices"], np.int64), -1),
        split=np.where(split & ~by_category, conditions, np.nan).astype(np.float64),
        yes=np.where(split, np.where(flip, right, left), NO_NODE),
        no=np.where(split, np.where(flip, left, right), NO_NODE),
        missing=np.where(split, np.where(goes_left, left, right), NO_NODE),
        gain=np.where(split, np.array(tree["loss_changes"], np.float32), leaves).astype(
            np.float64
        ),
        cover=np.array(tree["sum_hessian"], np.float32).astype(np.float64),
        category=categories,
        names=names,
    )
    return _reachable(found)


def _leaf_values(
    tree: Mapping[str, Any], conditions: NDArray[np.float32], n_nodes: int
) -> NDArray[np.float32]:
    """Return the values of leaves; of leaves that are vectors, their sizes."""
    n_outputs = int(tree["tree_param"]["size_leaf_vector"])
    if n_outputs <= 1 or "leaf_weights" not in tree:
        return conditions
    # A leaf's right child says where its vector lies.
    vectors = np.array(tree["leaf_weights"], np.float32).reshape(-1, n_outputs)
    sizes = np.linalg.norm(vectors, axis=1)
    place = np.array(tree["right_children"], dtype=np.int64)
    place = np.clip(place, 0, len(sizes) - 1)
    return np.asarray(sizes[place][:n_nodes], dtype=np.float32)


def _categories(tree: Mapping[str, Any], n_nodes: int) -> NDArray[np.str_]:
    texts = [""] * n_nodes
    places = zip(
        tree["categories_nodes"],
        tree["categories_segments"],
        tree["categories_sizes"],
        strict=True,
    )
    for node, begin, size in places:
        chosen = tree["categories"][begin : begin + size]
        texts[node] = ",".join(map(str, chosen))
    return np.array(texts, dtype=np.str_)


def _reachable(table: TreeTable) -> TreeTable:
    """Return a tree without the nodes that pruning has cut off."""
    n_nodes = len(table.node)
    if n_nodes == 2 * np.count_nonzero(table.is_split) + 1:
        return table
    seen = np.zeros(n_nodes, dtype=bool)
    level = np.zeros(1, dtype=np.int64)
    while len(level):
        seen[level] = True
        splits = level[table.is_split[level]]
        level = np.concatenate([table.yes[splits], table.no[splits]])
        level = level[~seen[level]]
    return table.of_rows(seen)
