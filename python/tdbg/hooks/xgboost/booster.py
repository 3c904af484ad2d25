"""What can be read of a booster of XGBoost after a round, at a constant cost.

A slice of the new rounds is read, and added to what is known of the old ones: the
dump, and SHAP, of a whole model grow with every round.  Only ``dart``, which weighs old
trees anew, the linear booster, and ``process_type="update"`` are read as a whole.

Trees come in the format of ``Booster.save_raw("json")``: doc/model.schema of XGBoost.

Thread safety: the training's thread.

Errors: XGBoost's, for what a kind of model does not support.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import xgboost
from numpy.typing import NDArray

from tdbg.hooks.trees.importance import KINDS, Importance
from tdbg.hooks.trees.margins import (
    RunningSum,
    derivatives_of,
    margin_of,
    prediction_of,
    spread_of,
)
from tdbg.hooks.trees.rounds import DataSet
from tdbg.hooks.trees.shap import sample_rows
from tdbg.hooks.trees.tables import TreeTable, level_order
from tdbg.run.tree_facts import TreeFacts

__all__ = ["XGBoostModel"]

Floats = NDArray[np.float64]

# Elements of a matrix that XGBoost cannot slice and that is copied to sample its rows.
_MOST_COPIED = 50_000_000
# Objectives of which no sample weighs more than its own weight in a leaf, and those
# that take the logarithm of a prediction.
_OF_ONE = ("reg:squarederror", "reg:logistic", "binary:", "multi:")
_OF_LOGS = ("count:", "reg:gamma", "reg:tweedie", "survival:")


class OwnDerivatives:
    """What an objective of the program's own computes: gradient and hessian.

    Attributes:
        latest: Those of the latest round; None: there was none.
    """

    def __init__(self) -> None:
        self.latest: tuple[Floats, Floats] | None = None

    def watch(self, booster: xgboost.Booster) -> None:
        """See what the next round of a booster is given.

        The booster is as it was when the round has begun.
        """
        self.latest = None
        given: Any = booster
        update = given.update

        def watched(dtrain: Any, iteration: int, fobj: Any = None) -> Any:
            del given.update
            if fobj is None:
                return update(dtrain, iteration)

            return update(dtrain, iteration, _WatchedObjective(fobj, self))

        given.update = watched

    def note(self, computed: Any) -> None:
        """Keep what an objective has computed."""
        with contextlib.suppress(Exception):  # XGBoost says what is wrong.
            gradient, hessian = computed
            self.latest = np.array(gradient), np.array(hessian)


class _WatchedObjective:
    """An objective that says what it computes, and is otherwise the given one.

    XGBoost asks for its class: objects of ``xgboost.objective`` are given more than
    functions are, and have other methods.
    """

    def __init__(self, objective: Any, derivatives: OwnDerivatives) -> None:
        self._objective = objective
        self._derivatives = derivatives

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._objective.__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def __call__(self, *args: Any) -> Any:
        computed = self._objective(*args)
        self._derivatives.note(computed)
        return computed


class XGBoostModel:
    """A booster that is being trained: a ``TreeModel``.

    Args:
        booster: The booster.
    """

    name = "Booster"

    def __init__(self, booster: xgboost.Booster) -> None:
        # What an objective of the program's own has computed in the latest round.
        self.own_derivatives: OwnDerivatives | None = None
        self._booster = booster
        self._n_rounds = 0
        self._trees: TreeTable | None = None
        self._importance: Importance | None = None
        self._n_trees = 0
        self._margins: dict[int, RunningSum] = {}
        self._sampled: dict[int, xgboost.DMatrix] = {}
        self._contributions: dict[int, RunningSum] = {}
        learner = json.loads(booster.save_config())["learner"]
        gradient_booster = learner["gradient_booster"]
        self._kind = str(gradient_booster["name"])
        self._objective = str(learner["objective"]["name"])
        trained = gradient_booster.get("gbtree_train_param", {})
        self._is_sum = (
            self._kind == "gbtree" and trained.get("process_type") != "update"
        )

    @property
    def n_rounds(self) -> int:
        """Number of rounds of the booster."""
        return int(self._booster.num_boosted_rounds())

    @property
    def objective(self) -> str:
        """Name of the objective, which metrics transform predictions by."""
        return self._objective

    def metrics(self) -> Sequence[str]:
        """Return the names of XGBoost's own metrics that are computed."""
        learner = json.loads(self._booster.save_config())["learner"]
        return [str(each["name"]) for each in learner.get("metrics", ())]

    def scale_pos_weight(self) -> float:
        """Return by what the objective multiplies the weight of class 1."""
        learner = json.loads(self._booster.save_config())["learner"]
        given = learner["objective"].get("reg_loss_param", {})
        return float(given.get("scale_pos_weight", 1.0))

    def feature_names(self) -> Sequence[str]:
        """Return the names that the data have, or f0, f1 and so on."""
        given = self._booster.feature_names
        if given:
            return list(given)
        return [f"f{i}" for i in range(self._booster.num_features())]

    def hyperparameters(self) -> Mapping[str, float | str]:
        """Return all parameters that are in effect, those by default, too."""
        learner = json.loads(self._booster.save_config())["learner"]
        # Grows with every round, and is no parameter.
        learner["gradient_booster"].get("gbtree_model_param", {}).pop("num_trees", None)
        found: dict[str, float | str] = {}
        for path, value in _leaves(learner, ()):
            names = [str(part) for part in path if not isinstance(part, int)]
            name = names[-1] if names[-1] != "name" else ".".join(names[-2:])
            if name not in found:
                found[name] = value
        return found

    def facts(self, data: xgboost.DMatrix, n_rounds: int) -> TreeFacts:
        """Return what is set for a training by some data, of so many rounds."""
        if not self._is_sum:
            return TreeFacts()
        learner = json.loads(self._booster.save_config())["learner"]
        given = learner["gradient_booster"].get("tree_train_param", {})
        weights = np.asarray(data.get_weight(), dtype=np.float64)
        weight = float(weights.sum()) if weights.size else float(data.num_row())
        first: float | None = None
        is_possible, labels = True, tuple[float, ...]()
        if learner["learner_model_param"].get("boost_from_average") == "0":
            score = self._base_score()
            if score.size == 1:
                first = float(score[0])
                is_possible = first > 0.0 or not self._objective.startswith(_OF_LOGS)
                labels = spread_of(np.asarray(data.get_label(), dtype=np.float64))
        return TreeFacts(
            learning_rate=float(given.get("eta", 1.0)),
            penalty=float(given.get("lambda", 0.0)),
            weight=weight if self._objective.startswith(_OF_ONE) else None,
            n_rounds=n_rounds,
            first_prediction=first,
            is_possible=is_possible,
            labels=labels,
        )

    # ---- trees -----------------------------------------------------------------

    def trees(self) -> TreeTable:
        """Return the trees of the latest round.

        Raises:
            ValueError: If the booster is linear.
        """
        if self._kind == "gblinear":
            msg = "a linear booster (gblinear) has no trees"
            raise ValueError(msg)
        self._read_new_trees()
        return cast(TreeTable, self._trees)

    def importance(self) -> Mapping[str, Floats]:
        """Return all five kinds; of a linear booster its coefficients only."""
        if self._kind == "gblinear":
            score = self._booster.get_score(importance_type="weight")
            weights = [score[name] for name in self.feature_names()]
            return {"weight": np.array(weights, dtype=np.float64)}
        self._read_new_trees()
        importance = cast(Importance, self._importance)
        return {kind: importance.of_kind(kind) for kind in KINDS}

    def _read_new_trees(self) -> None:
        n_rounds = self.n_rounds
        if n_rounds == self._n_rounds and self._trees is not None:
            return
        names = self.feature_names()
        if self._importance is None or not self._is_sum or n_rounds < self._n_rounds:
            self._importance = Importance(len(names))
            self._n_rounds = self._n_trees = 0
        part = self._booster[self._n_rounds : n_rounds]
        model = gbtree_of(json.loads(part.save_raw("json")))
        table = table_of_trees(model["trees"], self._n_trees, names)
        self._importance.add(table)
        latest = self._n_trees + int(model["iteration_indptr"][-2])
        self._trees = table.of_trees(latest)
        self._n_rounds, self._n_trees = n_rounds, self._n_trees + len(model["trees"])

    # ---- predictions -----------------------------------------------------------

    def labels(self, data_set: DataSet) -> NDArray[Any]:
        """Return the labels; class numbers as integers."""
        data = data_set.data
        labels = np.asarray(data.get_label())
        n_rows = data.num_row()
        if n_rows and labels.size > n_rows:
            labels = labels.reshape(n_rows, -1)
        is_class = self._objective.startswith(("binary:", "multi:"))
        whole = labels.astype(np.int64)
        return whole if is_class and (whole == labels).all() else labels

    def predictions(self, data_set: DataSet) -> Floats:
        """Return what the booster predicts, as ``Booster.predict`` has it.

        Except of ``multi:softmax``, whose probabilities it returns.
        """
        return prediction_of(self._objective, self._margin(data_set.data))

    def derivatives(self, data_set: DataSet) -> tuple[Floats, Floats] | None:
        """Return gradient and hessian that the trees of the latest round were fit to.

        Of objectives that are known, and of the program's own.
        """
        if self.own_derivatives is not None:
            return self.own_derivatives.latest
        data = data_set.data
        margin = self._margin_before(data)
        if margin is None:
            return None
        label = np.asarray(data.get_label(), dtype=np.float64)
        weight = np.asarray(data.get_weight(), dtype=np.float64)
        return derivatives_of(
            self._objective, margin, label, weight if len(weight) else None
        )

    def _margin_before(self, data: xgboost.DMatrix) -> Floats | None:
        """Return the margin before the latest round; None where nothing tells it.

        It is the one after the round where rounds cannot be told apart.
        """
        if not self._is_sum:
            return self._predict(data, output_margin=True)
        n_rounds = self.n_rounds
        if n_rounds > 1:
            return self._sum_of(data).up_to(n_rounds - 1)
        given = np.asarray(data.get_base_margin(), dtype=np.float64)
        if given.size:
            return given.reshape(data.num_row(), -1).squeeze(-1)
        base = margin_of(self._objective, self._base_score())
        after = self._predict(data, output_margin=True)
        fits = base is not None and (base.size == 1 or base.shape == after.shape[1:])
        return np.broadcast_to(base, after.shape) if base is not None and fits else None

    def _base_score(self) -> Floats:
        """Return the first prediction, as the booster has it."""
        learner = json.loads(self._booster.save_config())["learner"]
        text = str(learner["learner_model_param"]["base_score"])
        return np.array([float(part) for part in text.strip("[]").split(",")])

    def _margin(self, data: xgboost.DMatrix) -> Floats:
        if not self._is_sum:
            return self._predict(data, output_margin=True)
        return self._sum_of(data).up_to(self.n_rounds)

    def _sum_of(self, data: xgboost.DMatrix) -> RunningSum:
        found = self._margins.get(id(data))
        if found is None:
            found = self._margins[id(data)] = RunningSum(
                lambda first, last: self._predict(
                    data, output_margin=True, iteration_range=(first, last)
                ),
                lambda: self._base_margin(data),
            )
        return found

    def _base_margin(self, data: xgboost.DMatrix) -> Floats | None:
        """Return what all rounds are added to: the base of two, less that of both."""
        if self.n_rounds < 2:
            return None
        one, other, both = (
            self._predict(data, output_margin=True, iteration_range=rounds)
            for rounds in ((0, 1), (1, 2), (0, 2))
        )
        with np.errstate(invalid="ignore"):  # Of a base that is infinite.
            return np.asarray(one + other - both)

    def _predict(self, data: xgboost.DMatrix, **options: Any) -> Floats:
        return np.asarray(self._booster.predict(data, **options), dtype=np.float64)

    # ---- contributions ---------------------------------------------------------

    def contributions(self, data_set: DataSet, n_rows: int) -> Floats:
        """Return samples x columns, or samples x classes x columns; the bias last."""
        key = id(data_set.data)
        data = self._sampled.get(key)
        if data is None:
            data = self._sampled[key] = _sample(data_set.data, n_rows)
        if not self._is_sum:
            return self._predict(data, pred_contribs=True)
        found = self._contributions.get(key)
        if found is None:
            found = self._contributions[key] = RunningSum(
                lambda first, last: np.asarray(
                    self._booster[first:last].predict(data, pred_contribs=True),
                    dtype=np.float64,
                ),
                lambda: self._base_contribution(data),
            )
        return found.up_to(self.n_rounds)

    def _base_contribution(self, data: xgboost.DMatrix) -> Floats | None:
        """Return the base margin in the column of the bias, and 0 for the features."""
        base = self._base_margin(data)
        if base is None:
            return None
        n_columns = self._booster.num_features() + 1
        result = np.zeros((*base.shape, n_columns))
        result[..., -1] = base
        return result


def _sample(data: xgboost.DMatrix, n_rows: int) -> xgboost.DMatrix:
    """Return some rows of a matrix.

    Raises:
        ValueError: If XGBoost cannot slice it, and it is too large to be copied.
    """
    rows = sample_rows(data.num_row(), n_rows)
    if rows is None:
        return data
    try:
        return data.slice(rows)
    except xgboost.core.XGBoostError:
        # A QuantileDMatrix gives its values, in the bins that trees are made of.
        if data.num_row() * data.num_col() > _MOST_COPIED:
            msg = f"{type(data).__name__} of {data.num_row()} rows cannot be sliced"
            raise ValueError(msg) from None
    return xgboost.DMatrix(
        data.get_data()[rows],
        feature_names=data.feature_names,
        feature_types=data.feature_types,
        enable_categorical=True,
    )


def _leaves(value: Any, path: tuple[str | int, ...]) -> Any:
    """Yield the numbers and texts of a JSON document with their paths."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            yield from _leaves(child, (*path, i))
    elif isinstance(value, str | int | float):
        yield path, _number(value)


def _number(value: str | float) -> float | str:
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        return int(value)
    try:
        number = float(value)
    except ValueError:
        return str(value)
    return number if math.isfinite(number) else str(value)


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
