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

from tdbg.hooks.trees.tables import TreeTable, level_order

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

    def column(name: str, dtype: type) -> NDArray[Any]:
        parts = (tree[name][:n] for tree, n in zip(trees, sizes, strict=True))
        return np.array(list(itertools.chain.from_iterable(parts)), dtype=dtype)

    left = column("left_children", np.int64)
    right = column("right_children", np.int64)
    conditions = column("split_conditions", np.float32)
    by_category = column("split_type", np.int64) == _CATEGORICAL
    leaves = _leaf_values(trees, sizes, conditions)
    table = TreeTable.of_nodes(
        first,
        sizes,
        names,
        left=left,
        right=right,
        feature=column("split_indices", np.int64),
        split=conditions,
        category=_categories(trees, sizes),
        by_category=by_category,
        yes_is_right=by_category,
        missing_is_right=~column("default_left", np.bool_),
        gain=np.where(left >= 0, column("loss_changes", np.float32), leaves),
        cover=column("sum_hessian", np.float32),
    )
    first_rows = np.cumsum([0, *sizes[:-1]])
    n_splits = np.add.reduceat(left >= 0, first_rows, dtype=np.int64)
    if (2 * n_splits + 1 == sizes).all():
        return table
    # Pruning has cut nodes off, which still stand in the format.
    above = np.repeat(first_rows, sizes)
    is_split = left >= 0
    reached = level_order(
        first_rows, np.where(is_split, left + above, -1), right + above
    )
    is_reached = np.zeros(len(left), dtype=bool)
    is_reached[reached] = True
    return table.of_rows(is_reached)


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
