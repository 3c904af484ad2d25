"""Trees as tables: a row for each node, as arrays by the names of their columns.

Thread safety: values and pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["COLUMNS", "LEAF", "NO_NODE", "TreeTable", "join_tables"]

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

    @property
    def is_split(self) -> NDArray[np.bool_]:
        """Whether each node splits."""
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


def join_tables(tables: Sequence[TreeTable]) -> TreeTable:
    """Join the tables of single trees of a model into one.

    REQUIRES: there is a tree.
    """
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in _ARRAYS
    }
    return dataclasses.replace(tables[0], **columns)
