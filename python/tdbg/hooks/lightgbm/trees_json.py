"""Trees of LightGBM's ``Booster.dump_model``, which are nested, as tables.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdbg.hooks.trees.tables import NO_NODE, TreeTable

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
    nodes: list[Mapping[str, Any]] = []
    sizes: list[int] = []
    yes: list[int] = []
    no: list[int] = []
    for tree in trees:
        own = [tree["tree_structure"]]
        # The list grows while it is read: children come after all nodes above them.
        for node in own:
            if "split_feature" in node:
                yes.append(len(own))
                no.append(len(own) + 1)
                own += (node["left_child"], node["right_child"])
            else:
                yes.append(NO_NODE)
                no.append(NO_NODE)
        nodes += own
        sizes.append(len(own))
    return _table(nodes, sizes, (yes, no), first, names)


def _table(
    nodes: Sequence[Mapping[str, Any]],
    sizes: Sequence[int],
    children: tuple[Sequence[int], Sequence[int]],
    first: int,
    names: Sequence[str],
) -> TreeTable:
    """Return the table of these nodes.

    Args:
        nodes: Of all trees, one tree after the other.
        sizes: How many each tree has.
        children: Of each node the left and the right one, by number in the tree.
        first: Number of the first tree.
        names: Names of the features.
    """
    feature = np.array([node.get("split_feature", -1) for node in nodes], np.int64)
    types = [node.get("decision_type") for node in nodes]
    is_set = [each == _CATEGORICAL for each in types]
    thresholds = [
        node["threshold"] if each is not None and not by_set else np.nan
        for node, each, by_set in zip(nodes, types, is_set, strict=True)
    ]
    texts = [""] * len(nodes)
    if any(is_set):
        for i in np.flatnonzero(is_set).tolist():
            texts[i] = str(nodes[i]["threshold"]).replace("||", ",")
    yes, no = (np.array(each, dtype=np.int64) for each in children)
    goes_left = np.array([node.get("default_left", False) for node in nodes])
    # A leaf has a value where a split has a gain, and a count of its own.
    gain = [
        node["leaf_value"] if "leaf_value" in node else node["split_gain"]
        for node in nodes
    ]
    cover = [
        node.get("internal_count", 0) if i >= 0 else node.get("leaf_count", 0)
        for node, i in zip(nodes, feature.tolist(), strict=True)
    ]
    first_rows = np.cumsum([0, *sizes[:-1]])
    return TreeTable(
        tree=np.repeat(np.arange(first, first + len(sizes)), sizes),
        node=np.arange(len(nodes)) - np.repeat(first_rows, sizes),
        feature=feature,
        split=np.array(thresholds, dtype=np.float64),
        yes=yes,
        no=no,
        missing=np.where(goes_left, yes, no),
        gain=np.array(gain, dtype=np.float64),
        cover=np.array(cover, dtype=np.float64),
        category=np.array(texts, dtype=np.str_),
        names=names,
    )
