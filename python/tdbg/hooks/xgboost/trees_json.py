"""Trees of XGBoost's JSON format, as tables.

The format is that of ``Booster.save_raw("json")``: doc/model.schema of XGBoost.

Thread safety: pure functions.
"""

from __future__ import annotations

import itertools
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
    sizes = [len(tree["left_children"]) for tree in trees]
    first_rows = np.cumsum([0, *sizes[:-1]])

    def column(name: str, dtype: type) -> NDArray[Any]:
        parts = (tree[name][:n] for tree, n in zip(trees, sizes, strict=True))
        return np.array(list(itertools.chain.from_iterable(parts)), dtype=dtype)

    left = column("left_children", np.int64)
    right = column("right_children", np.int64)
    split = left >= 0
    conditions = column("split_conditions", np.float32)
    by_category = column("split_type", np.int64) == _CATEGORICAL
    # The right child is for the categories of a split: it is the one for "yes".
    flip = split & by_category
    goes_left = column("default_left", np.bool_)
    leaves = np.where(split, 0.0, _leaf_values(trees, sizes, conditions))
    gain = np.where(split, column("loss_changes", np.float32), leaves)
    table = TreeTable(
        tree=np.repeat(np.arange(first, first + len(trees)), sizes),
        node=np.arange(len(left)) - np.repeat(first_rows, sizes),
        feature=np.where(split, column("split_indices", np.int64), -1),
        split=np.where(split & ~by_category, conditions, np.nan).astype(np.float64),
        yes=np.where(split, np.where(flip, right, left), NO_NODE),
        no=np.where(split, np.where(flip, left, right), NO_NODE),
        missing=np.where(split, np.where(goes_left, left, right), NO_NODE),
        gain=gain.astype(np.float64),
        cover=column("sum_hessian", np.float32).astype(np.float64),
        category=_categories(trees, sizes),
        names=names,
    )
    n_splits = np.add.reduceat(split, first_rows, dtype=np.int64)
    if (2 * n_splits + 1 == sizes).all():
        return table
    return join_tables(
        [_reachable(table.of_rows(table.tree == first + i)) for i in range(len(trees))]
    )


def _leaf_values(
    trees: Sequence[Mapping[str, Any]],
    sizes: Sequence[int],
    conditions: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the values of leaves; of leaves that are vectors, their sizes."""
    values, row = conditions, 0
    for tree, n_nodes in zip(trees, sizes, strict=True):
        n_outputs = int(tree["tree_param"]["size_leaf_vector"])
        if n_outputs > 1 and "leaf_weights" in tree:
            # A leaf's right child says where its vector lies.
            vectors = np.array(tree["leaf_weights"], np.float32).reshape(-1, n_outputs)
            lengths = np.linalg.norm(vectors, axis=1)
            place = np.array(tree["right_children"], dtype=np.int64)
            values = values.copy() if values is conditions else values
            values[row : row + n_nodes] = lengths[np.clip(place, 0, len(lengths) - 1)]
        row += n_nodes
    return values


def _categories(
    trees: Sequence[Mapping[str, Any]], sizes: Sequence[int]
) -> NDArray[np.str_]:
    texts = [""] * sum(sizes)
    row = 0
    for tree, n_nodes in zip(trees, sizes, strict=True):
        places = zip(
            tree["categories_nodes"],
            tree["categories_segments"],
            tree["categories_sizes"],
            strict=True,
        )
        for node, begin, size in places:
            chosen = tree["categories"][begin : begin + size]
            texts[row + node] = ",".join(map(str, chosen))
        row += n_nodes
    return np.array(texts, dtype=np.str_)


def _reachable(table: TreeTable) -> TreeTable:
    """Return a tree without the nodes that pruning has cut off."""
    n_nodes = len(table.node)
    seen = np.zeros(n_nodes, dtype=bool)
    level = np.zeros(1, dtype=np.int64)
    while len(level):
        seen[level] = True
        splits = level[table.is_split[level]]
        level = np.concatenate([table.yes[splits], table.no[splits]])
        level = level[~seen[level]]
    return table.of_rows(seen)
