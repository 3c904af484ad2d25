"""Trees of CatBoost's JSON format, as tables.

The format is that of ``CatBoost.save_model(format="json")``: symmetric trees
(``oblivious_trees``), all nodes of a level of which split alike, or nested ones
(``trees``).  The nodes of a table are numbered level by level.

CatBoost keeps no gain of its splits.  The table has the squared error that a split
takes off the tree: with the weights w and the mean values m of what lies on its two
sides, w1 w2 / (w1 + w2) (m1 - m2)^2.  Over a tree these add up to the variance of its
values times their weight (the analysis of variance; of several outputs, their sum).

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tdbg.hooks.trees.tables import NO_NODE, TreeTable

__all__ = ["Features", "table_of_trees", "trees_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Values that are missing go where those above all borders go.
_MISSING_IS_ABOVE = "AsTrue"


def trees_of(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the trees of a model, one a round.

    Raises:
        KeyError: If the model has none.
    """
    trees: Sequence[Mapping[str, Any]] = (
        document["oblivious_trees"]
        if "oblivious_trees" in document
        else document["trees"]
    )
    return trees


class _Split(NamedTuple):
    """A split, or a leaf.

    Attributes:
        feature: Index of the feature, or of the statistic of categories; -1: a leaf.
        border: Values above it go right; NaN: the categories do.
        category: The hash of the category that goes right; else "".
        missing_right: Whether missing values go right.
    """

    feature: int
    border: float
    category: str
    missing_right: bool


_LEAF = _Split(-1, np.nan, "", missing_right=False)


class Features:
    """What the trees of a model split by.

    Args:
        document: The model in the JSON format.
        names: Names of the features.

    Attributes:
        names: Names of the features, and then of the statistics that CatBoost makes of
            categorical features, such as ``Borders(city, sex)``.
        members: Of each name, the features that it is made of, by index.
    """

    def __init__(self, document: Mapping[str, Any], names: Sequence[str]) -> None:
        info = document["features_info"]
        self._floats = info.get("float_features", ())
        self._flat_of_float = [each["flat_feature_index"] for each in self._floats]
        categorical = info.get("categorical_features", ())
        self._flat_of_category = [each["flat_feature_index"] for each in categorical]
        self.names = list(names)
        self.members: list[list[int]] = [[i] for i in range(len(names))]
        # Splits are numbered: those by numbers, by a category, and by statistics.
        following = sum(len(each["borders"]) for each in self._floats)
        following += sum(len(each.get("values", ())) for each in categorical)
        self._statistics: dict[int, int] = {}
        for ctr in info.get("ctrs", ()):
            members = list(dict.fromkeys(map(self._member, ctr["elements"])))
            for number in range(following, following + len(ctr["borders"])):
                self._statistics[number] = len(self.names)
            following += len(ctr["borders"])
            inner = ", ".join(self.names[i] for i in members)
            self.names.append(f"{ctr['ctr_type']}({inner})")
            self.members.append(members)

    def split_of(self, split: Mapping[str, Any]) -> _Split:
        """Read a split.

        Raises:
            ValueError: If it is of a kind that is not known, as those by text.
        """
        kind = split["split_type"]
        if kind == "FloatFeature":
            i = split["float_feature_index"]
            treatment = self._floats[i]["nan_value_treatment"]
            return _Split(
                self._flat_of_float[i],
                float(split["border"]),
                "",
                treatment == _MISSING_IS_ABOVE,
            )
        if kind == "OneHotFeature":
            flat = self._flat_of_category[split["cat_feature_index"]]
            return _Split(flat, np.nan, str(split["value"]), missing_right=False)
        if kind == "OnlineCtr" and split["split_index"] in self._statistics:
            feature = self._statistics[split["split_index"]]
            return _Split(feature, float(split["border"]), "", missing_right=False)
        msg = f"trees with splits of the kind {kind!r} are not read"
        raise ValueError(msg)

    def _member(self, element: Mapping[str, Any]) -> int:
        if "cat_feature_index" in element:
            return int(self._flat_of_category[element["cat_feature_index"]])
        return int(self._flat_of_float[element["float_feature_index"]])


class _Nodes(NamedTuple):
    """The nodes of a tree, level by level.

    Attributes:
        splits: The split of each node.
        left: The left child, or -1 at a leaf.
        weight: Weight of the samples in each node.
        value: The value of each leaf, of a leaf that is a vector its size; of a split
            what it gains.
    """

    splits: Sequence[_Split]
    left: Ints
    weight: Floats
    value: Floats


def table_of_trees(
    trees: Sequence[Mapping[str, Any]], first: int, features: Features
) -> TreeTable:
    """Return the table of some trees.

    Args:
        trees: As ``trees_of`` gives them.
        first: Number of the first one in the model.
        features: What they split by.

    Raises:
        ValueError: If a split is of a kind that is not known.

    REQUIRES: there is a tree.
    """
    read = [
        _symmetric(tree, features) if "leaf_values" in tree else _nested(tree, features)
        for tree in trees
    ]
    splits = [split for nodes in read for split in nodes.splits]
    left = np.concatenate([nodes.left for nodes in read])
    category = np.array([each.category for each in splits], np.str_)
    # Values above a border go right; so does the category of a split.
    by_category = category != ""
    return TreeTable.of_nodes(
        first,
        [len(nodes.left) for nodes in read],
        features.names,
        left=left,
        right=left + 1,
        feature=np.array([each.feature for each in splits], np.int64),
        split=np.array([each.border for each in splits]),
        category=category,
        by_category=by_category,
        yes_is_right=by_category,
        missing_is_right=np.array([each.missing_right for each in splits], np.bool_),
        gain=np.concatenate([nodes.value for nodes in read]),
        cover=np.concatenate([nodes.weight for nodes in read]),
    )


def _symmetric(tree: Mapping[str, Any], features: Features) -> _Nodes:
    """Read a tree, whose first split, which CatBoost chose first, is the root's."""
    by_level = [features.split_of(each) for each in tree.get("splits") or ()]
    n_levels = len(by_level)
    n_leaves = 1 << n_levels
    # Bit i of a leaf's number says where split i sends it: the last bit is the root's.
    bits = [*reversed(range(n_levels)), n_levels]
    values = np.asarray(tree["leaf_values"], dtype=np.float64)
    cube = values.reshape(*[2] * n_levels, -1).transpose(bits)
    sums = cube.reshape(n_leaves, -1)
    weights = tree.get("leaf_weights") or np.zeros(n_leaves)
    weight = np.asarray(weights, dtype=np.float64)
    weight = weight.reshape(*[2] * n_levels, 1).transpose(bits).reshape(n_leaves)
    levels = [(weight, _sizes(sums))]
    sums = sums * weight[:, None]
    for _ in by_level:
        gain = _gains(weight[::2], sums[::2], weight[1::2], sums[1::2])
        weight, sums = weight[::2] + weight[1::2], sums[::2] + sums[1::2]
        levels.append((weight, gain))
    levels.reverse()
    splits: list[_Split] = []
    for level, split in enumerate(by_level):
        splits += [split] * (1 << level)
    n_splits = len(splits)
    numbers = np.arange(n_splits + n_leaves)
    return _Nodes(
        splits + [_LEAF] * n_leaves,
        np.where(numbers < n_splits, 2 * numbers + 1, NO_NODE),
        np.concatenate([weight for weight, _ in levels]),
        np.concatenate([value for _, value in levels]),
    )


def _nested(tree: Mapping[str, Any], features: Features) -> _Nodes:
    """Read a tree of nodes that hold those below them."""
    nodes = [tree]
    left = []
    # The list grows while it is read: children come after all nodes above them.
    for node in nodes:
        left.append(len(nodes) if "split" in node else NO_NODE)
        if "split" in node:
            nodes += (node["left"], node["right"])
    n_nodes = len(nodes)
    n_outputs = max(np.size(node["value"]) for node in nodes if "split" not in node)
    weight, value = np.zeros(n_nodes), np.zeros(n_nodes)
    sums = np.zeros((n_nodes, n_outputs))
    for i in reversed(range(n_nodes)):
        node, j = nodes[i], left[i]
        if j < 0:
            weight[i] = node.get("weight", 0.0)
            leaf = np.atleast_1d(np.asarray(node["value"], dtype=np.float64))
            value[i], sums[i] = _sizes(leaf[None])[0], leaf * weight[i]
            continue
        weight[i], sums[i] = weight[j] + weight[j + 1], sums[j] + sums[j + 1]
        sides = (weight[j : j + 1], sums[j : j + 1])
        others = (weight[j + 1 : j + 2], sums[j + 1 : j + 2])
        value[i] = _gains(*sides, *others)[0]
    splits = [features.split_of(n["split"]) if "split" in n else _LEAF for n in nodes]
    return _Nodes(splits, np.array(left, dtype=np.int64), weight, value)


def _sizes(values: Floats) -> Floats:
    """Leaves' values as numbers: of vectors (leaves x outputs), their lengths."""
    if values.shape[1] == 1:
        return values[:, 0]
    return np.asarray(np.linalg.norm(values, axis=1))


def _gains(w1: Floats, s1: Floats, w2: Floats, s2: Floats) -> Floats:
    """Return the squared error that splits remove, by weights and weighted sums."""
    some = (w1 > 0) & (w2 > 0)
    one, two = np.where(some, w1, 1.0), np.where(some, w2, 1.0)
    apart = s1 / one[:, None] - s2 / two[:, None]
    gain = one * two / (one + two) * (apart**2).sum(axis=1)
    return np.where(some, gain, 0.0)
