"""What can be read of a booster of LightGBM after a round, at a constant cost.

The booster itself keeps the scores of the data that it evaluates, so predictions are
those that it gives to a metric; trees and contributions are read of new rounds only.

Thread safety: the training's thread.

Errors: LightGBM's, for what a kind of model does not support.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import lightgbm
import numpy as np
from numpy.typing import NDArray

from tdbg.hooks.lightgbm.trees_text import table_of_text
from tdbg.hooks.trees.importance import KINDS, Importance
from tdbg.hooks.trees.margins import RunningSum
from tdbg.hooks.trees.rounds import DataSet
from tdbg.hooks.trees.shap import sample_rows
from tdbg.hooks.trees.tables import TreeTable

__all__ = ["LightGBMModel"]

Floats = NDArray[np.float64]

# The kinds of boosting in which old trees stay as they are and predictions are sums.
_SUMS = frozenset({"gbdt", "gbrt", "goss"})


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
            name: float(value) if isinstance(value, int | float) else str(value)
            for name, value in given.items()
            if isinstance(value, int | float | str)
        }

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
