"""Trees of LightGBM's text format, as tables.

The format is that of ``Booster.model_to_string``: of each tree lines such as
``split_feature=7 20 23``, numbers of its splits or of its leaves.  Reading it takes a
fifth of the time of ``dump_model``, whose nested JSON says the same (gains with six
digits here).

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.hooks.trees.tables import NO_NODE, TreeTable, level_order

__all__ = ["table_of_text"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Bits of ``decision_type``.
_IS_CATEGORICAL, _GOES_LEFT = 1, 2
# Categories in each of the numbers of ``cat_threshold``.
_WORD = 32


def table_of_text(text: str, first: int, names: Sequence[str]) -> TreeTable:
    """Return the table of the trees of a model; nodes are numbered level by level.

    Args:
        text: The model.
        first: Number of its first tree in the whole model.
        names: Names of the features.

    REQUIRES: there is a tree.
    """
    trees = [_lines(part) for part in text.split("\nTree=")[1:]]
    n_leaves = np.array([int(tree["num_leaves"]) for tree in trees])
    n_splits = n_leaves - 1
    # Nodes of all trees: first all splits, then all leaves.
    first_split = np.cumsum(n_splits) - n_splits
    first_leaf = n_splits.sum() + np.cumsum(n_leaves) - n_leaves
    at_leaves = np.zeros(n_leaves.sum(), dtype=np.int64)
    left, right = (
        np.concatenate(
            [
                _children(
                    _numbers(trees, name, np.int64), n_splits, first_split, first_leaf
                ),
                at_leaves + NO_NODE,
            ]
        )
        for name in ("left_child", "right_child")
    )
    roots = np.where(n_splits > 0, first_split, first_leaf)
    order = level_order(roots, left, right)
    sizes = n_splits + n_leaves
    number = np.empty_like(order)
    number[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    decision = _numbers(trees, "decision_type", np.int64)
    by_set = (decision & _IS_CATEGORICAL) > 0
    threshold = _numbers(trees, "threshold", np.float64)

    def column(of_splits: NDArray[Any], of_leaves: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([of_splits, of_leaves])[order]

    def floats(of_splits: str, of_leaves: str) -> Floats:
        return column(
            _numbers(trees, of_splits, np.float64),
            _numbers(trees, of_leaves, np.float64),
        )

    return TreeTable.of_nodes(
        first,
        sizes,
        names,
        left=np.where(left < 0, NO_NODE, number[left])[order],
        right=number[right][order],
        feature=column(_numbers(trees, "split_feature", np.int64), at_leaves),
        split=column(threshold, at_leaves),
        category=_categories(trees, by_set, threshold, n_splits, order),
        by_category=column(by_set, at_leaves > 0),
        yes_is_right=False,
        missing_is_right=column((decision & _GOES_LEFT) == 0, at_leaves > 0),
        # A leaf has a value where a split has a gain, and a count of its own.
        gain=floats("split_gain", "leaf_value"),
        cover=floats("internal_count", "leaf_count"),
    )


def _lines(tree: str) -> Mapping[str, str]:
    """Return the lines of a tree by their names; they end with an empty one."""
    lines = tree[: tree.find("\n\n")].split("\n")
    found = dict(line.split("=", 1) for line in lines[1:] if "=" in line)
    # A tree of one leaf need not count its samples.
    found.setdefault("leaf_count", " ".join(["0"] * int(found["num_leaves"])))
    return found


def _numbers(
    trees: Sequence[Mapping[str, str]], name: str, dtype: type
) -> NDArray[Any]:
    """Return the numbers of a line of all trees, one tree after the other."""
    # NumPy reads a number from nothing but spaces: trees of one leaf have no splits.
    text = " ".join(tree[name] for tree in trees if tree.get(name))
    return np.fromstring(text, dtype=dtype, sep=" ")


def _children(given: Ints, n_splits: Ints, first_split: Ints, first_leaf: Ints) -> Ints:
    """Return the children of splits as numbers among the nodes of all trees.

    Args:
        given: Numbers of splits in their tree, or the complements of those of leaves.
        n_splits: How many splits each tree has.
        first_split: The first split of each tree, among all nodes.
        first_leaf: The first leaf of each tree.
    """
    split, leaf = np.repeat(first_split, n_splits), np.repeat(first_leaf, n_splits)
    return np.where(given >= 0, split + given, leaf + ~given)


def _categories(
    trees: Sequence[Mapping[str, str]],
    by_set: NDArray[np.bool_],
    threshold: Floats,
    n_splits: Ints,
    order: Ints,
) -> NDArray[np.str_]:
    """Return the categories of each node, joined by commas.

    A split by categories has the number of its set as its threshold: 32 bits in each of
    the numbers between two boundaries.
    """
    texts = [""] * len(order)
    if by_set.any():
        tree_of_split = np.repeat(np.arange(len(trees)), n_splits)
        for i in np.flatnonzero(by_set).tolist():
            tree = trees[tree_of_split[i]]
            ends = tree["cat_boundaries"].split()
            number = int(threshold[i])
            words = tree["cat_threshold"].split()[
                int(ends[number]) : int(ends[number + 1])
            ]
            texts[i] = ",".join(
                str(j * _WORD + bit)
                for j, word in enumerate(words)
                for bit in range(_WORD)
                if int(word) >> bit & 1
            )
        texts = [texts[i] for i in order.tolist()]
    return np.array(texts, dtype=np.str_)
