"""``Hook``: the callback that captures a training of CatBoost.

CatBoost gives a callback the metrics and nothing else: importance and contributions are
recorded of the model after ``fit``, by ``record_model``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import catboost  # type: ignore[import-untyped]
import numpy as np

from tdbg.capture.modes import CurrentMode
from tdbg.capture.process_hook import ProcessHook
from tdbg.capture.schedule import ROWS, VALUES
from tdbg.capture.session import Session
from tdbg.hooks.trees import shap
from tdbg.hooks.trees.adapter import ArrayAdapter
from tdbg.hooks.trees.collections import Group
from tdbg.hooks.trees.hook import TreeHook
from tdbg.hooks.trees.rounds import Score, is_maximized
from tdbg.modes import TRAIN

__all__ = ["Hook", "del_hook", "get_hook", "set_hook"]

# What CatBoost calls the data that a model is trained by.
_LEARN = "learn"
_KIND = "prediction_values_change"


class Hook(TreeHook):
    """Captures a training of CatBoost on the CPU: metrics and losses.

    A callback of ``fit``; on a GPU CatBoost refuses any::

        hook = tdbg.catboost.Hook("runs/c")
        model.fit(x, y, eval_set=(x_valid, y_valid), callbacks=[hook])
        hook.record_model(model)
    """

    def _make_adapter(self) -> ArrayAdapter:
        return ArrayAdapter("catboost", catboost.__version__)

    def _attach(self, session: Session) -> CurrentMode:
        self._model = _NoModel()
        return super()._attach(session)

    def _remember(self) -> None:
        _process_hook.remember(self)

    def after_iteration(self, info: Any) -> bool:
        """A round is over; CatBoost calls it.  False stops the training."""
        if info.iteration == 1:
            self._session.run(self._training_begins, 0, ())
        stops = self._round_was(
            self._model, lambda: self._read_scores(info.metrics), {}
        )
        if stops:
            self._training_ends()
        return not stops

    def record_model(self, model: Any, pool: Any = None) -> None:
        """Record what CatBoost says of a model when it is trained.

        Args:
            model: The model.
            pool: Samples (a ``catboost.Pool``) whose predictions are explained; None:
                contributions are not recorded.
        """
        self._session.run(self._record_model, model, pool)
        self._training_ends()

    def _record_model(self, model: Any, pool: Any) -> None:
        names = [str(name) for name in model.feature_names_]
        importance = model.get_feature_importance()
        self._record_all(
            self._importance,
            {
                f"feature_importance/{_KIND}/{name}": value
                for name, value in zip(names, importance, strict=True)
            },
        )
        if pool is None:
            return
        rows = shap.sample_rows(pool.num_row(), self._shap_rows)
        sampled = pool if rows is None else pool.slice(rows.tolist())
        contributions = np.asarray(
            model.get_feature_importance(sampled, type="ShapValues")
        )
        means = shap.average(contributions)
        every = [*names, shap.BIAS]
        self._record_all(
            self._average_shap,
            {f"average_shap/{x}": mean for x, mean in zip(every, means, strict=True)},
        )
        self._record_all(
            self._full_shap,
            {
                f"full_shap/{name}": np.ascontiguousarray(column)
                for name, column in shap.columns(contributions, names)
            },
        )

    def _record_all(self, group: Group, tensors: Mapping[str, Any]) -> None:
        """Record tensors at the last round, whatever the schedule says of it."""
        group.expect(tensors)
        context = self._session.given(TRAIN)
        if context is not None and tensors:
            entries = [group.entry(name) for name in tensors]
            values = [np.asarray(value) for value in tensors.values()]
            flags = [ROWS | VALUES] * len(entries)
            context.note_data(self._session.recorder.pending)
            self._session.take(context, entries, values, flags)

    def _read_scores(self, metrics: Mapping[str, Any]) -> Sequence[Score]:
        scores = []
        for data_set, by_metric in metrics.items():
            for metric, values in by_metric.items():
                # Parameters of a metric follow a colon: "AUC:type=Mu".
                name = metric.partition(":")[0]
                is_loss = not (metric in self._maximized or is_maximized(name))
                is_training = data_set == _LEARN
                scores.append(
                    Score(data_set, metric, float(values[-1]), is_training, is_loss)
                )
        return scores


class _NoModel:
    """A model that cannot be asked anything: CatBoost hands none out."""

    name = "CatBoost"
    n_rounds = 0

    def _refuse(self, *_: Any) -> NoReturn:
        msg = "CatBoost hands out no model while it trains: hook.record_model(model)"
        raise NotImplementedError(msg)

    feature_names = hyperparameters = trees = importance = _refuse
    labels = predictions = derivatives = contributions = _refuse


_process_hook = ProcessHook(Hook)
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook
