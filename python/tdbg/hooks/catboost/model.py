"""What can be read of a model of CatBoost when it is trained, round by round.

CatBoost hands out no model while it trains.  Trees, predictions and contributions of a
trained model are sums over rounds, so that it can be asked what it was after each.

Thread safety: the training's thread.

Errors: CatBoost's, for what a kind of model does not support.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from catboost import CatBoost, Pool  # type: ignore[import-untyped]
from numpy.typing import NDArray

from tdbg.hooks.catboost.trees_json import Features, table_of_trees, trees_of
from tdbg.hooks.trees.importance import Importance
from tdbg.hooks.trees.margins import RunningSum, prediction_of
from tdbg.hooks.trees.rounds import DataSet
from tdbg.hooks.trees.shap import sample_rows
from tdbg.hooks.trees.tables import TreeTable

__all__ = ["TrainedModel"]

Floats = NDArray[np.float64]

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
            name: float(value) if isinstance(value, int | float) else str(value)
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
