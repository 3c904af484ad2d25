"""Trees of LightGBM's ``Booster.dump_model``, which are nested, as tables.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdbg.hooks.trees.tables import NO_NODE, TreeTable, join_tables

__all__ = ["table_of_trees"]

_CATEGORICAL = "=="


def table_of_trees(
    trees: Sequence[Mapping[str, Any]], first: int, names: Sequence[str]
) -> TreeTable:
    """Return the table of some trees, whose nodes are numbered level by level.

    Args:
        trees: ``tree_info`` of the dump.
        first: Number of the first one in the model.
        names: Names of the features.

    REQUIRES: there is a tree.
    """
    tables = [
        _table(tree["tree_structure"], first + i, names) for i, tree in enumerate(trees)
    ]
    return join_tables(tables)


def _table(root: Mapping[str, Any], number: int, names: Sequence[str]) -> TreeTable:
    nodes = [root]
    # The list grows while it is read: children come after all nodes above them.
    children: list[tuple[int, int]] = []
    for node in nodes:
        if "split_feature" in node:
            children.append((len(nodes), len(nodes) + 1))
            nodes += [node["left_child"], node["right_child"]]
        else:
            children.append((NO_NODE, NO_NODE))
    splits = ["split_feature" in node for node in nodes]
    by_category = [node.get("decision_type") == _CATEGORICAL for node in nodes]
    yes = np.array([left for left, _ in children], dtype=np.int64)
    no = np.array([right for _, right in children], dtype=np.int64)
    goes_left = np.array([node.get("default_left", False) for node in nodes])
    return TreeTable(
        tree=np.full(len(nodes), number, dtype=np.int64),
        node=np.arange(len(nodes), dtype=np.int64),
        feature=np.array([node.get("split_feature", -1) for node in nodes], np.int64),
        split=np.array(
            [
                node["threshold"] if is_split and not is_set else np.nan
                for node, is_split, is_set in zip(
                    nodes, splits, by_category, strict=True
                )
            ],
            dtype=np.float64,
        ),
        yes=yes,
        no=no,
        missing=np.where(goes_left, yes, no),
        gain=np.array(
            [node.get("split_gain", node.get("leaf_value", 0.0)) for node in nodes],
            dtype=np.float64,
        ),
        cover=np.array(
            [node.get("internal_count", node.get("leaf_count", 0)) for node in nodes],
            dtype=np.float64,
        ),
        category=np.array(
            [
                str(node["threshold"]).replace("||", ",") if is_set else ""
                for node, is_set in zip(nodes, by_category, strict=True)
            ],
            dtype=np.str_,
        ),
        names=names,
    )
