"""Trees as tables: a row for each node, as arrays by the names of their columns.

Thread safety: values and pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["COLUMNS", "LEAF", "NO_NODE", "TreeTable", "level_order"]

#: The columns, which are tensors ``trees/<column>``.
COLUMNS = (
    "Tree",
    "Node",
    "ID",
    "Feature",
    "Split",
    "Yes",
    "No",
    "Missing",
    "Gain",
    "Cover",
    "Category",
)
#: What ``Feature`` says of a leaf.
LEAF = "Leaf"
#: What ``Yes``, ``No`` and ``Missing`` are at a leaf.
NO_NODE = -1


@dataclass(frozen=True, slots=True)
class TreeTable:
    """The nodes of some trees.

    Attributes:
        tree: Number of the tree in the model (int64).
        node: Number of the node in its tree (int64).
        feature: Index of the feature that a node splits by; -1 at a leaf (int64).
        split: Threshold of the split; NaN at leaves and at splits by category
            (float64).
        yes: The node for values below the threshold, or in a category of the split;
            -1 at a leaf (int64).
        no: The other node; -1 at a leaf (int64).
        missing: The node for missing values; -1 at a leaf (int64).
        gain: Gain of a split; the value of a leaf (float64).
        cover: Sum of the hessians, or number of samples, in the node (float64).
        category: The categories of a split by category, joined by commas; else "".
        names: Names of the features by index.
    """

    tree: NDArray[np.int64]
    node: NDArray[np.int64]
    feature: NDArray[np.int64]
    split: NDArray[np.float64]
    yes: NDArray[np.int64]
    no: NDArray[np.int64]
    missing: NDArray[np.int64]
    gain: NDArray[np.float64]
    cover: NDArray[np.float64]
    category: NDArray[np.str_]
    names: Sequence[str]

    @classmethod
    def of_nodes(
        cls,
        first: int,
        sizes: ArrayLike,
        names: Sequence[str],
        *,
        left: NDArray[np.int64],
        right: NDArray[np.int64],
        feature: NDArray[np.int64],
        split: NDArray[Any],
        category: NDArray[np.str_],
        by_category: NDArray[np.bool_],
        yes_is_right: NDArray[np.bool_] | bool,
        missing_is_right: NDArray[np.bool_],
        gain: NDArray[Any],
        cover: NDArray[Any],
    ) -> TreeTable:
        """Return the table of trees that have left and right children.

        Each array has one element a node, tree by tree.  Elements that only describe
        splits may be anything at a leaf.

        Args:
            first: Number of the first tree in the model.
            sizes: The number of nodes in each tree.
            names: Names of the features.
            left: Left child as a number in its tree; -1 at a leaf.
            right: Right child.
            feature: Index of the feature that a node splits by.
            split: Threshold of the split.
            category: As the attribute.
            by_category: Whether a node splits by category.
            yes_is_right: Whether the right child is the one for "yes".
            missing_is_right: Whether missing values go right.
            gain: As the attribute.
            cover: As the attribute.
        """
        counts = np.asarray(sizes, np.int64)
        is_split = left >= 0
        return cls(
            tree=np.repeat(np.arange(first, first + len(counts)), counts),
            node=np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts),
            feature=np.where(is_split, feature, -1),
            split=np.where(is_split & ~by_category, split, np.nan).astype(np.float64),
            yes=np.where(is_split, np.where(yes_is_right, right, left), NO_NODE),
            no=np.where(is_split, np.where(yes_is_right, left, right), NO_NODE),
            missing=np.where(
                is_split, np.where(missing_is_right, right, left), NO_NODE
            ),
            gain=gain.astype(np.float64),
            cover=cover.astype(np.float64),
            category=category,
            names=names,
        )

    @property
    def is_split(self) -> NDArray[np.bool_]:
        """Whether each node splits, as an array."""
        return np.asarray(self.feature >= 0)

    def of_trees(self, first: int) -> TreeTable:
        """Return the part of the trees from number *first* on."""
        return self.of_rows(self.tree >= first)

    def of_rows(self, rows: NDArray[np.bool_]) -> TreeTable:
        """Return the part of some nodes."""
        parts = {name: getattr(self, name)[rows] for name in _ARRAYS}
        return dataclasses.replace(self, **parts)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the tensors ``trees/<column>``, by name of the column."""
        names = np.array([*self.names, LEAF])
        ids = [f"{t}-{n}" for t, n in zip(self.tree, self.node, strict=True)]
        return {
            "Tree": self.tree,
            "Node": self.node,
            "ID": np.array(ids, dtype=np.str_),
            "Feature": names[self.feature],
            "Split": self.split,
            "Yes": self.yes,
            "No": self.no,
            "Missing": self.missing,
            "Gain": self.gain,
            "Cover": self.cover,
            "Category": self.category,
        }


_ARRAYS = (
    "tree",
    "node",
    "feature",
    "split",
    "yes",
    "no",
    "missing",
    "gain",
    "cover",
    "category",
)


def level_order(
    roots: NDArray[np.int64], left: NDArray[np.int64], right: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the nodes that are reached from roots, tree by tree and level by level.

    Args:
        roots: The root of each tree, as a number among the nodes of all trees.
        left: The left child of each node, likewise; negative at a leaf.
        right: The right child.
    """
    level, tree = roots, np.arange(len(roots))
    levels, trees = [], []
    while len(level):
        levels.append(level)
        trees.append(tree)
        splits = left[level] >= 0
        parents = level[splits]
        level = np.stack([left[parents], right[parents]], axis=1).reshape(-1)
        tree = np.repeat(tree[splits], 2)
    order = np.argsort(np.concatenate(trees), kind="stable")
    return np.concatenate(levels)[order]
