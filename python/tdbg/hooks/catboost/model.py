"""What can be read of a model of CatBoost when it is trained, round by round.

CatBoost hands out no model while it trains.  Trees, predictions and contributions of a
trained model are sums over rounds, so that it can be asked what it was after each.

Trees are read in the format of ``CatBoost.save_model(format="json")``: symmetric trees
(``oblivious_trees``), where all nodes of a level split alike, or nested ones
(``trees``).  The nodes of a table are numbered level by level.

CatBoost keeps no gain of its splits.  The table has the squared error that a split
takes off the tree: with the weights w and the mean values m of what lies on its two
sides, w1 w2 / (w1 + w2) (m1 - m2)^2.  Over a tree these add up to the variance of its
values times their weight (the analysis of variance; of several outputs, their sum).

Thread safety: the training's thread.

Errors: CatBoost's, for what a kind of model does not support.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from catboost import CatBoost, Pool  # type: ignore[import-untyped]
from numpy.typing import NDArray

from tdbg.hooks.trees.importance import Importance
from tdbg.hooks.trees.margins import RunningSum, prediction_of
from tdbg.hooks.trees.rounds import DataSet
from tdbg.hooks.trees.shap import sample_rows
from tdbg.hooks.trees.tables import NO_NODE, TreeTable

__all__ = ["Features", "TrainedModel", "table_of_trees"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# CatBoost's own kind of importance, of a model with all its trees.
_OWN_KIND = "prediction_values_change"
# Link functions, by the names that XGBoost has for them.
_LINKS = {
    "Logloss": "binary:logistic",
    "CrossEntropy": "binary:logistic",
    "MultiClass": "multi:softprob",
    "MultiClassOneVsAll": "binary:logistic",
    "MultiLogloss": "binary:logistic",
    "MultiCrossEntropy": "binary:logistic",
    "Poisson": "count:poisson",
    "Tweedie": "reg:tweedie",
}


class TrainedModel:
    """A trained model as it was after ``n_rounds`` rounds: a ``TreeModel``.

    Args:
        model: The model.

    Attributes:
        name: Name of its class.
        n_rounds: After how many of its rounds it is asked; grows.
    """

    def __init__(self, model: CatBoost) -> None:
        self._model = model
        self.name = type(model).__name__
        self.n_rounds = self.n_all = int(model.tree_count_)
        self._n_read = 0
        self._trees: Sequence[Mapping[str, Any]] | None = None
        self._features: Features | None = None
        self._latest: TreeTable | None = None
        self._importance: Importance | None = None
        self._margins: dict[int, RunningSum] = {}
        self._contributions: dict[int, RunningSum] = {}
        self._parameters: Mapping[str, Any] = model.get_all_params()
        given = self._parameters.get("loss_function")
        self._loss = str(given).partition(":")[0]

    def feature_names(self) -> Sequence[str]:
        """Return the names that the data have, or 0, 1 and so on."""
        return [str(name) for name in self._model.feature_names_]

    def hyperparameters(self) -> Mapping[str, float | str]:
        """Return all parameters that were in effect; ``objective`` is the loss."""
        given = {**self._parameters, "objective": self._loss}
        return {
            name: value
            for name, value in given.items()
            if isinstance(value, int | float | str)
        }

    # ---- trees -----------------------------------------------------------------

    def trees(self) -> TreeTable:
        """Return the tree of the latest round."""
        self._read_new_trees()
        return cast(TreeTable, self._latest)

    def importance(self) -> Mapping[str, Floats]:
        """Return the kinds of XGBoost, and after the last round CatBoost's own.

        A statistic of several features counts in equal parts for each.
        """
        self._read_new_trees()
        features = cast(Features, self._features)
        importance = cast(Importance, self._importance)
        share = np.zeros((len(features.names), len(self._model.feature_names_)))
        for row, members in zip(share, features.members, strict=True):
            row[members] = 1.0 / len(members)
        weight = importance.of_kind("weight") @ share
        found = {"weight": weight}
        for kind in ("gain", "cover"):
            total = importance.of_kind(f"total_{kind}") @ share
            found[kind] = total / np.where(weight > 0, weight, 1.0)
            found[f"total_{kind}"] = total
        if self.n_rounds == self.n_all:
            own = self._model.get_feature_importance(type="PredictionValuesChange")
            found[_OWN_KIND] = np.asarray(own, dtype=np.float64)
        return found

    def _read_new_trees(self) -> None:
        if self._trees is None:
            document = _exported(self._model)
            self._trees = trees_of(document)
            self._features = Features(document, self.feature_names())
            self._importance = Importance(len(self._features.names))
        if self.n_rounds > self._n_read:
            part = self._trees[self._n_read : self.n_rounds]
            table = table_of_trees(part, self._n_read, cast(Features, self._features))
            cast(Importance, self._importance).add(table)
            self._latest = table.of_trees(self.n_rounds - 1)
            self._n_read = self.n_rounds

    # ---- predictions -----------------------------------------------------------

    def labels(self, data_set: DataSet) -> NDArray[Any]:
        """Return the labels; of a classification the numbers of the classes."""
        labels = np.asarray(data_set.data.get_label())
        classes = np.asarray(getattr(self._model, "classes_", ()))
        if labels.ndim == 1 and len(classes):
            order = np.argsort(classes)
            place = np.searchsorted(classes, labels, sorter=order)
            return order[np.minimum(place, len(classes) - 1)].astype(np.int64)
        # Whole numbers would be taken for classes.
        return labels.astype(np.float64)

    def predictions(self, data_set: DataSet) -> Floats:
        """Return probabilities, of two classes that of the second; or values."""
        found = self._margins.get(id(data_set))
        if found is None:
            found = self._margins[id(data_set)] = RunningSum(
                lambda first, last: self._raw(data_set.data, first, last),
                lambda: self._base(data_set.data),
            )
        return prediction_of(_LINKS.get(self._loss, ""), found.up_to(self.n_rounds))

    def derivatives(self, data_set: DataSet) -> None:
        """Return None, because CatBoost does not give them."""
        del data_set

    def _raw(self, data: Pool, first: int, last: int) -> Floats:
        # The method of the base: a ranker's own takes no kind of prediction.
        raw = CatBoost.predict(
            self._model,
            data,
            prediction_type="RawFormulaVal",
            ntree_start=first,
            ntree_end=last,
        )
        return np.asarray(raw, dtype=np.float64)

    def _base(self, data: Pool) -> Floats | None:
        """Return what all rounds are added to: the base of two, less that of both."""
        if self.n_rounds < 2:
            return None
        one, other, both = (self._raw(data, *r) for r in ((0, 1), (1, 2), (0, 2)))
        return one + other - both

    # ---- contributions ---------------------------------------------------------

    def contributions(self, data_set: DataSet, n_rows: int) -> Floats:
        """Return samples x columns, or samples x classes x columns; the bias last."""
        found = self._contributions.get(id(data_set))
        if found is None:
            data = data_set.data
            rows = sample_rows(data.num_row(), n_rows)
            sampled = data if rows is None else data.slice(rows.tolist())
            found = self._contributions[id(data_set)] = RunningSum(
                lambda first, last: self._explain(sampled, first, last),
                lambda: self._base_contribution(sampled),
            )
        return found.up_to(self.n_rounds)

    def _explain(self, data: Pool, first: int, last: int) -> Floats:
        part = self._model
        if (first, last) != (0, self.n_all):
            part = self._model.copy()
            part.shrink(last, first)
        contributions = part.get_feature_importance(data, type="ShapValues")
        return np.asarray(contributions, dtype=np.float64)

    def _base_contribution(self, data: Pool) -> Floats | None:
        """Return the base in the column of the bias, and 0 for the features."""
        base = self._base(data)
        if base is None:
            return None
        result = np.zeros((*base.shape, len(self._model.feature_names_) + 1))
        result[..., -1] = base
        return result


def _exported(model: CatBoost) -> Mapping[str, Any]:
    """Return a model in its JSON format, which CatBoost writes to files only."""
    with tempfile.TemporaryDirectory(prefix="tdbg-") as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        document: Mapping[str, Any] = json.loads(path.read_bytes())
        return document


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
        msg = f"tdbg cannot read trees with {kind!r} splits"
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
