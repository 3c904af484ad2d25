"""What can be read of a booster of LightGBM after a round, at a constant cost.

The booster itself keeps the scores of the data that it evaluates, so predictions are
those that it gives to a metric; trees and contributions are read of new rounds only.

Trees come as ``Booster.model_to_string`` writes them: lines for each tree such as
``split_feature=7 20 23``, numbers of its splits or of its leaves.  Reading this text
takes a fifth of the time of ``dump_model``, whose nested JSON says the same (gains with
six digits here).

Thread safety: the training's thread.

Errors: LightGBM's, for what a kind of model does not support.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import lightgbm
import numpy as np
from numpy.typing import NDArray

from tdbg.hooks.trees.importance import KINDS, Importance
from tdbg.hooks.trees.margins import RunningSum, spread_of
from tdbg.hooks.trees.rounds import DataSet, are_telling
from tdbg.hooks.trees.rows import LEAST_ROWS, fault_of_classes, fault_of_label_range
from tdbg.hooks.trees.settings import (
    class_without_weight,
    fault_of_balance,
    fault_of_queries,
    fault_of_reversal,
    unknown_settings,
)
from tdbg.hooks.trees.shap import sample_rows
from tdbg.hooks.trees.tables import NO_NODE, TreeTable, level_order
from tdbg.run.tree_facts import TreeFact, TreeFacts, TreeFault

__all__ = ["LightGBMModel", "table_of_text"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# What draws a part of the samples for each tree, if asked how often; names of the part.
_BAGGED = frozenset({"dart", "gbdt", "gbrt"})
_BAGGING = ("bagging_fraction", "sub_row", "subsample", "bagging")
# The kinds of boosting in which old trees stay as they are and predictions are sums.
_SUMS = frozenset({"gbdt", "gbrt", "goss"})
# Objectives of numbers whose first prediction is their mean, and those of which no
# sample weighs more than one in a leaf.
_OF_NUMBERS = frozenset({"regression", "regression_l2", "l2", "mse", "rmse"})
# How LightGBM says that the program has set no objective.
_DEFAULT = frozenset({"", "None"})
_OF_ONE = _OF_NUMBERS | {"binary", "multiclass", "softmax", "cross_entropy"}


class LightGBMModel:
    """A booster that is being trained: a ``TreeModel``.

    Args:
        booster: The booster.
        parameters: Those of the training.
        explained: What ``Booster.predict`` takes, whose predictions are explained;
            None: the data set's own, if LightGBM has kept them.
    """

    name = "Booster"

    def __init__(
        self, booster: lightgbm.Booster, parameters: Mapping[str, Any], explained: Any
    ) -> None:
        self._booster = booster
        self._parameters = parameters
        self._explained = explained
        self._n_rounds = 0
        self._n_trees = 0
        self._trees: TreeTable | None = None
        self._names = list(booster.feature_name())
        self._importance = Importance(len(self._names))
        self._contributions: dict[int, RunningSum] = {}
        self._objective = str(parameters.get("objective", ""))
        boosting = parameters.get("boosting", parameters.get("boosting_type", "gbdt"))
        self._boosting = str(boosting)
        self._is_sum = boosting in _SUMS

    @property
    def n_rounds(self) -> int:
        """Number of rounds of the booster."""
        return int(self._booster.current_iteration())

    def feature_names(self) -> Sequence[str]:
        """Return the names that the data have, or Column_0 and so on."""
        return self._names

    def hyperparameters(self) -> Mapping[str, float | str]:
        """Return the parameters that the training was given, as they are now."""
        given = {**self._parameters, **self._booster.params}
        return {
            name: value
            for name, value in given.items()
            if isinstance(value, int | float | str)
        }

    def facts(self, n_rounds: int) -> TreeFacts:
        """Return what is set for a training of so many rounds."""
        if not self._is_sum:
            return TreeFacts()
        data = self._booster.train_set
        kind = self._objective or "regression"
        first: float | None = None
        labels: tuple[float, ...] = ()
        from_average = str(self._given("boost_from_average", default=True)).lower()
        if kind in _OF_NUMBERS and from_average == "false" and not _has_start(data):
            first, labels = 0.0, spread_of(np.asarray(data.get_label(), np.float64))
        return TreeFacts(
            learning_rate=float(
                self._given("learning_rate", "eta", "shrinkage_rate", default=0.1)
            ),
            penalty=float(
                self._given("lambda_l2", "reg_lambda", "lambda", default=0.0)
            ),
            weight=float(data.num_data()) if kind in _OF_ONE else None,
            n_rounds=n_rounds,
            first_prediction=first,
            labels=labels,
        )

    def _given(self, *names: str, default: Any) -> Any:
        """Return the parameter that has one of some names, or its default."""
        found = (self._parameters[name] for name in names if name in self._parameters)
        return next(found, default)

    def faults_of_weights(self) -> Iterator[TreeFact]:
        """Yield what is wrong with the weights of samples."""
        data = self._booster.train_set
        weights, kind = data.get_weight(), self._objective
        if not kind.startswith(("binary", "multiclass", "softmax")):
            return
        labels = np.asarray(data.get_label(), dtype=np.float64)
        yield from self._fault_of_reversal(labels, weights)
        if weights is None:
            return
        weights = np.asarray(weights, dtype=np.float64)
        found = [class_without_weight(labels, weights)]
        if kind == "binary":
            is_even = self._given(
                "is_unbalance", "unbalance", "unbalanced_sets", default=0
            )
            if str(is_even).lower() in {"true", "1"}:
                found.append(fault_of_balance(labels, weights, None, "is_unbalance"))
            factor = float(self._given("scale_pos_weight", default=1.0))
            found.append(fault_of_balance(labels, weights, factor, "scale_pos_weight"))
        yield from (each for each in found if each is not None)

    def _fault_of_reversal(self, labels: Floats, weights: Any) -> Iterator[TreeFact]:
        is_even = self._given("is_unbalance", "unbalance", "unbalanced_sets", default=0)
        if str(is_even).lower() in {"true", "1"}:
            return
        given = np.ones_like(labels) if weights is None else np.asarray(weights)
        factor = float(self._given("scale_pos_weight", default=1.0))
        found = fault_of_reversal(labels, given, factor, "scale_pos_weight")
        if found is not None:
            yield found

    def faults_of_settings(self) -> Iterator[TreeFact]:
        """Yield settings that LightGBM does not know, or that do nothing."""
        aliases = getattr(lightgbm.basic, "_ConfigAliases", None)
        if aliases is not None:
            known = aliases._get_all_param_aliases()
            yield from unknown_settings(self._parameters, known)
        name = next((each for each in _BAGGING if each in self._parameters), None)
        frequency = self._given("bagging_freq", "subsample_freq", default=0)
        is_drawn = self._boosting in _BAGGED and not int(frequency)
        strategy = self._given("data_sample_strategy", default="bagging")
        if name is not None and is_drawn and strategy == "bagging":
            share = float(self._parameters[name])
            if share < 1.0:
                words = ("bagging_freq", "subsample_freq")
                yield TreeFact(TreeFault.SETTING_IGNORED, name, (share,), words)
        if self._objective in {"lambdarank", "rank_xendcg"}:
            data = self._booster.train_set
            sizes = data.get_group()
            if sizes is not None:
                fault = fault_of_queries(np.asarray(sizes), data.num_data())
                yield from () if fault is None else (fault,)

    def faults_of_data(self, train: DataSet, other: DataSet | None) -> list[TreeFact]:
        """Return what labels and the first tree show.

        LightGBM does not keep the samples.  But it knows how many values a feature
        has: one of two values whose only split divides two classes is the label.
        """
        found: list[TreeFact] = []
        labels = np.asarray(train.data.get_label(), np.float64)
        if other is not None and self._objective in _OF_NUMBERS | _DEFAULT:
            given = np.asarray(other.data.get_label(), np.float64)
            fault = fault_of_label_range(labels, given, "valid_sets")
            found += [] if fault is None else [fault]
        if not self._objective.startswith(("binary", "multiclass", "softmax")):
            return found
        if other is not None:
            given = np.asarray(other.data.get_label(), np.float64)
            fault = fault_of_classes(labels, given, "valid_sets")
            found += [] if fault is None else [fault]
        splits = np.asarray(self._booster.feature_importance("split"))
        ones = labels == 1.0
        n_ones = int(ones.sum())
        if self._objective != "binary" or splits.sum() != 1 or self.n_rounds != 1:
            return found
        if len(labels) < LEAST_ROWS or min(n_ones, len(labels) - n_ones) < 1:
            return found
        feature = int(splits.argmax())
        answers = np.asarray(self.predictions(train))
        is_sorted = np.ptp(answers[ones]) == 0.0 == np.ptp(answers[~ones])
        if is_sorted and train.data.feature_num_bin(feature) == 2:
            numbers = (float(len(labels)), 2.0, 0.0)
            name = self._names[feature]
            found.append(TreeFact(TreeFault.LABEL_IS_FEATURE, name, numbers))
        return found

    def are_same(self, one: DataSet, other: DataSet) -> bool:
        """Return whether two data sets have the same labels and predictions.

        False where the order of the labels is too regular to tell.
        """
        labels = self.labels(one)
        if not np.array_equal(labels, self.labels(other)) or not are_telling(labels):
            return False
        return np.array_equal(self.predictions(one), self.predictions(other))

    # ---- trees -----------------------------------------------------------------

    def trees(self) -> TreeTable:
        """Return the trees of the latest round."""
        self._read_new_trees()
        return cast(TreeTable, self._trees)

    def importance(self) -> Mapping[str, Floats]:
        """Return all five kinds; ``cover`` counts samples."""
        self._read_new_trees()
        return {kind: self._importance.of_kind(kind) for kind in KINDS}

    def _read_new_trees(self) -> None:
        n_rounds, first = self.n_rounds, self._n_rounds
        if n_rounds <= first:
            return
        text = self._booster.model_to_string(
            start_iteration=first, num_iteration=n_rounds - first
        )
        table = table_of_text(text, self._n_trees, self._names)
        self._importance.add(table)
        a_round = self._booster.num_model_per_iteration()
        self._n_rounds, self._n_trees = n_rounds, int(table.tree[-1]) + 1
        self._trees = table.of_trees(self._n_trees - a_round)

    # ---- predictions -----------------------------------------------------------

    def labels(self, data_set: DataSet) -> NDArray[Any]:
        """Return the labels; class numbers as integers."""
        labels = np.asarray(data_set.data.get_label())
        whole = labels.astype(np.int64)
        is_class = self._objective.startswith(("binary", "multiclass", "softmax"))
        return whole if is_class and (whole == labels).all() else labels

    def predictions(self, data_set: DataSet) -> Floats:
        """Return what the booster predicts, as it gives it to metrics."""
        found: list[Floats] = []

        def metric(prediction: Any, data: Any) -> list[tuple[str, float, bool]]:
            if data is data_set.data:
                found.append(np.array(prediction, dtype=np.float64))
            return []

        if data_set.is_training:
            self._booster.eval_train(metric)
        else:
            self._booster.eval_valid(metric)
        return found[0]

    def derivatives(self, data_set: DataSet) -> None:
        """Return None: LightGBM gives no margin of its own data."""
        del data_set

    # ---- contributions ---------------------------------------------------------

    def contributions(self, data_set: DataSet, n_rows: int) -> Floats:
        """Return samples x columns, or samples x classes x columns; the bias last."""
        key = id(data_set.data)
        found = self._contributions.get(key)
        if found is None:
            data = self._explained
            if data is None:
                data = data_set.data.get_data()
            rows = sample_rows(len(data), n_rows)
            if rows is not None:
                data = data.iloc[rows] if hasattr(data, "iloc") else data[rows]
            found = self._contributions[key] = RunningSum(
                lambda first, last: self._explain(data, first, last), lambda: 0.0
            )
        if not self._is_sum:
            return self._explain_whole(found)
        return found.up_to(self.n_rounds)

    def _explain_whole(self, contributions: RunningSum) -> Floats:
        contributions.forget()
        return contributions.up_to(self.n_rounds)

    def _explain(self, data: Any, first: int, last: int) -> Floats:
        # A copy of these rounds: a booster that is being trained does not know how
        # deep its trees are, and ends the process when it is asked for contributions.
        part = lightgbm.Booster(
            model_str=self._booster.model_to_string(
                start_iteration=first, num_iteration=last - first
            ),
        )
        flat = np.asarray(part.predict(data, pred_contrib=True), dtype=np.float64)
        n_columns = self._booster.num_feature() + 1
        if flat.shape[1] == n_columns:
            return flat
        return flat.reshape(len(flat), -1, n_columns)


# Bits of ``decision_type``.
_IS_CATEGORICAL, _GOES_LEFT = 1, 2
# Categories in each of the numbers of ``cat_threshold``.
_WORD = 32


def _has_start(data: Any) -> bool:
    """Return whether each sample has a first prediction of its own."""
    return data.get_init_score() is not None


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
