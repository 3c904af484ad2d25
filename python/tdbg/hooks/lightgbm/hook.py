"""``Hook``: the callback that captures a training of LightGBM."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import lightgbm
from lightgbm.callback import EarlyStopException

from tdbg.capture.modes import CurrentMode
from tdbg.capture.session import Session
from tdbg.hooks.lightgbm.booster import LightGBMModel
from tdbg.hooks.trees.adapter import ArrayAdapter
from tdbg.hooks.trees.hook import SHAP_ROWS, TreeHook
from tdbg.hooks.trees.rounds import DataSet, Score, arguments_of_training
from tdbg.hooks.trees.settings import StoppingWatch
from tdbg.modes import EVAL, TRAIN, ModeKeys
from tdbg.run.tree_facts import TreeFact, TreeFacts

__all__ = ["Hook", "del_hook", "get_hook", "set_hook"]

# After ``record_evaluation`` (20), before ``early_stopping`` (30) ends the round.
_ORDER = 25
# The third value that a metric of the program's own returns.
_DIRECTIONS = (
    "return True as the third value of the metric (is_higher_better)",
    "return False as the third value of the metric (is_higher_better)",
)


def copies_of_training(booster: Any, model: LightGBMModel) -> frozenset[str]:
    """Return the names of the data sets of ``valid_sets`` that are the training's.

    LightGBM tells only a set that is the training's own object.
    """
    train = DataSet(booster.train_set, is_training=True)
    named = zip(booster.name_valid_sets, booster.valid_sets, strict=True)
    return frozenset(
        str(name)
        for name, data in named
        if model.are_same(train, DataSet(data, is_training=False))
    )


def stops_by(booster: Any, copies: frozenset[str]) -> tuple[str, bool]:
    """Return the data set that early stopping goes by, or would, if it is trained by.

    LightGBM leaves the training data out, and stops by nothing where there are no
    others.

    Args:
        booster: The booster.
        copies: As ``copies_of_training`` returns them.

    Returns:
        Its name, and nothing where early stopping goes by other data, or there is
        none; and whether it goes by other data.
    """
    if not _stops_early():
        return "", False
    if not booster.valid_sets:
        return str(getattr(booster, "_train_data_name", "training")), False
    if copies.issuperset(map(str, booster.name_valid_sets)):
        return str(booster.name_valid_sets[0]), False
    return "", True


def _stops_early() -> bool:
    """Return whether the training that calls this has early stopping."""
    call = arguments_of_training("lightgbm.engine", "train")
    callbacks = call.get("callbacks_after_iter") or ()
    return any(hasattr(each, "stopping_rounds") for each in callbacks)


class Hook(TreeHook):
    """Captures a training of LightGBM; metrics and losses unless told otherwise.

    A callback of ``lightgbm.train`` and ``lightgbm.cv``, and of the estimators'
    ``fit``::

        hook = tdbg.lightgbm.Hook("runs/l", include_collections=["trees"])
        lightgbm.train(parameters, train, 100, valid_sets=[valid], callbacks=[hook])
    """

    before_iteration = False
    # Of a hook that a file has made, or that is a copy.
    _explained: Any = None

    def __init__(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        *,
        shap_data: Any = None,
        maximize: Iterable[str] = (),
        shap_rows: int = SHAP_ROWS,
        **settings: Any,
    ) -> None:
        """Open a run.

        Args:
            out_dir: As for ``HookBase``.
            shap_data: Samples, as ``Booster.predict`` takes them, whose predictions
                are explained; None: the data of the last of ``valid_sets``, which
                LightGBM keeps with ``free_raw_data=False`` only.
            maximize: Names of metrics that grow as the model gets better, beside
                those of which LightGBM says it: no losses.
            shap_rows: Of how many rows, at most, contributions are computed.
            settings: The other arguments of ``HookBase``.

        Raises:
            ConfigurationError: If something asked for can never work.
            StorageError: If the run cannot be made or written.
        """
        self._explained = shap_data
        super().__init__(out_dir, maximize=maximize, shap_rows=shap_rows, **settings)

    def _make_adapter(self) -> ArrayAdapter:
        return ArrayAdapter("lightgbm", lightgbm.__version__)

    def _attach(self, session: Session) -> CurrentMode:
        # LightGBM puts callbacks without an order of their own before all others.
        self.order = _ORDER
        self._model: LightGBMModel | None = None
        self._data_sets: Mapping[ModeKeys, DataSet] = {}
        self._copies: frozenset[str] = frozenset()
        # By data set and metric: what follows it, if early stopping goes by it (None:
        # there is none), and whether it is to rise.
        self._stopping: dict[tuple[str, str], StoppingWatch] | None = None
        self._maximizes: dict[tuple[str, str], bool] = {}
        return super()._attach(session)

    # ---- what LightGBM calls -----------------------------------------------------

    def __call__(self, env: lightgbm.callback.CallbackEnv) -> None:
        """A round is over; LightGBM calls it.

        Raises:
            EarlyStopException: If somebody asked the training to stop, which ends it
                in good order.
        """
        session = self._session
        if env.iteration == env.begin_iteration or self._model is None:
            session.run(self._begin_training, env)
        stops = False
        if self._model is not None:
            stops = self._round_was(
                self._model, lambda: self._read_scores(env), self._data_sets
            )
        if stops or env.iteration + 1 >= env.end_iteration:
            self._training_ends()
            self._model, self._data_sets = None, {}
        if stops:
            raise EarlyStopException(env.iteration, env.evaluation_result_list or [])

    # ---- the training --------------------------------------------------------------

    def _begin_training(self, env: Any) -> None:
        folds = getattr(env.model, "boosters", None)
        booster: Any = env.model if folds is None else folds[0]
        self._model = LightGBMModel(booster, env.params, self._explained)
        self._data_sets, self._copies = {}, frozenset()
        same: frozenset[str] = frozenset()
        if folds is None:
            same = copies_of_training(booster, self._model)
            # Beside the training data, or alone, a copy is what one validates on.
            has_training = any(each.is_training for each in self._read_scores(env))
            if not has_training and same != frozenset(booster.name_valid_sets):
                self._copies = same
        data_sets = {TRAIN: DataSet(booster.train_set, is_training=True)}
        named = zip(booster.name_valid_sets, booster.valid_sets, strict=True)
        others = [data for name, data in named if str(name) not in self._copies]
        if others:
            data_sets[EVAL] = DataSet(others[-1], is_training=False)
        self._data_sets = data_sets
        self._facts = TreeFacts()
        self._stopping = None
        boosters = [booster] if folds is None else folds
        n_rows = sum(each.train_set.num_data() for each in boosters)
        self._training_begins(env.begin_iteration, booster.feature_name(), n_rows)
        if folds is None and env.begin_iteration == 0:
            by_training, by_validation = stops_by(booster, same)
            facts = self._model.facts(env.end_iteration)
            faults = (
                *self._model.faults_of_weights(),
                *self._model.faults_of_settings(),
                *self._model.faults_of_data(data_sets[TRAIN], data_sets.get(EVAL)),
            )
            self._facts = dataclasses.replace(
                facts,
                stops_by_training=by_training,
                stops_by_validation=by_validation,
                faults=faults,
            )
            self._stopping = {} if _stops_early() else None

    def _fault_of_stopping(self) -> TreeFact | None:
        if self._stopping is None:
            return None
        for score in self._scores:
            key = score.data_set, score.metric
            if score.is_training or key not in self._maximizes:
                continue
            watch = self._stopping.setdefault(key, StoppingWatch(_DIRECTIONS))
            found = watch.see(score, maximizes=self._maximizes[key])
            if found is not None:
                return found
        return None

    def _read_scores(self, env: Any) -> Sequence[Score]:
        train_name = getattr(env.model, "_train_data_name", "training")
        return [
            self._score(result, train_name)
            for result in env.evaluation_result_list or ()
        ]

    def _score(self, result: Any, train_name: str) -> Score:
        """Read a result: an ``EvalResult``, or before LightGBM 4.7 a tuple."""
        if isinstance(result, tuple):
            data_set, metric, value, maximized, *rest = result
            deviation = rest[0] if rest else None
        else:
            data_set, metric = result.dataset_name, result.metric_name
            value, maximized = result.metric_value, result.maximize
            deviation = result.metric_std_dev
        if data_set == "cv_agg" and " " in metric:
            # Cross-validation before 4.7: "valid binary_logloss" of "cv_agg".
            data_set, metric = metric.split(" ", 1)
        self._maximizes[data_set, metric] = bool(maximized)
        is_loss = not (maximized or metric in self._maximized)
        is_training = data_set in {train_name, "train", *self._copies}
        return Score(data_set, metric, float(value), is_training, is_loss, deviation)


_process_hook = Hook.of_process()
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook
