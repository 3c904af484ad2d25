"""``Hook``: the callback that captures a training of XGBoost.

XGBoost gives a callback the model and the metrics, but no data.  The hook finds them in
the call of ``xgboost.train`` below, under the public names of its arguments.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xgboost import Booster, DMatrix, QuantileDMatrix, __version__, collective
from xgboost.callback import EarlyStopping, TrainingCallback
from xgboost.core import XGBoostError

from tdbg.capture.modes import CurrentMode
from tdbg.capture.policy import Policy
from tdbg.capture.session import Session
from tdbg.config import HookConfig
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.hooks.trees.adapter import ArrayAdapter
from tdbg.hooks.trees.hook import SHAP_ROWS, TreeHook
from tdbg.hooks.trees.rounds import (
    DataSet,
    Score,
    are_telling,
    arguments_of_training,
    is_maximized,
)
from tdbg.hooks.trees.rows import (
    MOST_ELEMENTS,
    fault_of_classes,
    fault_of_features,
    fault_of_label_range,
    fault_of_range,
    fault_of_rows,
)
from tdbg.hooks.trees.settings import (
    OF_PROBABILITIES,
    StoppingWatch,
    class_without_weight,
    fault_of_balance,
    fault_of_derivatives,
    fault_of_margins,
    fault_of_queries,
    fault_of_reversal,
    misplaced_arguments,
)
from tdbg.hooks.xgboost.booster import OwnDerivatives, XGBoostModel
from tdbg.modes import EVAL, TRAIN, ModeKeys
from tdbg.run.tree_facts import TreeFact, TreeFacts

__all__ = ["Hook", "del_hook", "get_hook", "set_hook"]

# What begins the names of objectives whose labels are numbers.
_OF_NUMBERS = ("reg:", "count:")

_log = logging.getLogger("tdbg")
# Samples that are compared to know whether two data sets are the same.
_COMPARED = 100
# So many quantiles are read for that in a tenth of a second.
_MOST_QUANTILES = 1 << 22
# Rounds after which predictions that are no probabilities have shown.
_ENOUGH_ROUNDS = 5
_DIRECTIONS = (
    "set maximize=True, in xgboost.train or in EarlyStopping",
    "set maximize=False, in xgboost.train or in EarlyStopping",
)


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The data of one training.

    Attributes:
        sets: What the model predicts, by mode.
        trained_by: Names of the data sets of ``evals`` that the model is trained by;
            None where that is not known.
        features: Names of the features; empty where they are not known.
        same: Names of the data sets of ``evals`` with the samples of training.
    """

    sets: Mapping[ModeKeys, DataSet] = field(default_factory=dict)
    trained_by: frozenset[str] | None = None
    features: Sequence[str] = ()
    same: frozenset[str] = frozenset()

    def is_training(self, name: str, all_names: Sequence[str]) -> bool:
        """Return whether a data set of ``evals`` is what the model is trained by.

        Where that is not known, the sets with "train" in their name are, or else the
        first of several.
        """
        if self.trained_by is not None:
            return name in self.trained_by
        named = [each for each in all_names if "train" in each.lower()]
        return name in named if named else name == all_names[0]

    def score_of_stopping(
        self, call: Mapping[str, Any], scores: Sequence[Score]
    ) -> tuple[Score | None, bool]:
        """Return the metric that early stopping goes by, and whether it is to rise.

        Args:
            call: The arguments of ``train``, with all of its callbacks.
            scores: The metrics of the latest round.

        Returns:
            None where there is no early stopping, or it has not begun.
        """
        names = [str(name) for _, name in call.get("evals") or ()]
        for each in call.get("callbacks") or ():
            maximizes = getattr(each, "maximize", None)
            if not isinstance(each, EarlyStopping) or maximizes is None or not names:
                continue
            name = str(getattr(each, "data", None) or names[-1])
            metric = getattr(each, "metric_name", None)
            found = [
                score
                for score in scores
                if score.data_set == name and metric in {None, score.metric}
            ]
            return (found[-1] if found else None), bool(maximizes)
        return None, False

    def stops_by(self, call: Mapping[str, Any]) -> tuple[str, bool]:
        """Return by which of ``evals`` early stopping goes.

        Args:
            call: The arguments of ``train``, with all of its callbacks.

        Returns:
            The name of the set, if the model is trained by it, and else nothing; and
            whether early stopping goes by another set.
        """
        evals = {str(name): data for data, name in call.get("evals") or ()}
        for callback in call.get("callbacks") or ():
            if isinstance(callback, EarlyStopping) and evals:
                name = str(getattr(callback, "data", None) or list(evals)[-1])
                is_trained_by = name in self.same
                return name if is_trained_by else "", not is_trained_by
        return "", False


def find_data(
    arguments: Mapping[str, Any], train_data: Any, validation_data: Any
) -> TrainingData:
    """Find the data of a training.

    Args:
        arguments: Those of its ``train``; {}: not known.
        train_data: What the hook was given; None: as ``train`` was.
        validation_data: Likewise; None: the last of ``evals`` that is not trained by.
    """
    trained: frozenset[str] | None = None
    same: frozenset[str] = frozenset()
    if "dtrain" in arguments:
        given = arguments.get("dtrain")
        evals = [each for each in arguments.get("evals") or () if len(each) == 2]
        trained = frozenset(str(name) for data, name in evals if data is given)
        copies = frozenset(
            str(name)
            for data, name in evals
            if data is not given and _is_same(data, given)
        )
        same = trained | copies
        # Beside the training data, or alone, a copy is what the program validates on.
        if not trained and len(copies) < len(evals):
            trained = copies
        others = [data for data, name in evals if str(name) not in trained]
        train_data = given if train_data is None else train_data
        if validation_data is None and others:
            validation_data = others[-1]
    return dataclasses.replace(_make(train_data, validation_data, trained), same=same)


def data_of_folds(folds: Sequence[Any]) -> TrainingData:
    """Return the data of a cross-validation: those of its first fold."""
    first = folds[0]
    return _make(first.dtrain, first.dtest, frozenset({"train"}))


def _make(
    train_data: Any, validation_data: Any, trained: frozenset[str] | None
) -> TrainingData:
    sets: dict[ModeKeys, DataSet] = {}
    features: Sequence[str] = ()
    if train_data is not None:
        sets[TRAIN] = DataSet(train_data, is_training=True)
        names = train_data.feature_names
        features = names or [f"f{i}" for i in range(train_data.num_col())]
    if validation_data is not None:
        sets[EVAL] = DataSet(validation_data, is_training=False)
    return TrainingData(sets, trained, list(features))


class Hook(TreeHook, TrainingCallback):
    """Captures a training of XGBoost; metrics and losses unless told otherwise.

    A callback of ``xgboost.train`` and ``xgboost.cv``, or an argument ``callbacks`` of
    the estimators::

        hook = tdbg.xgboost.Hook("runs/x", include_collections=["trees"])
        xgboost.train(
            parameters, train, 100, evals=[(valid, "valid")], callbacks=[hook]
        )

    A copy that is pickled into a process of a collective (Dask, Spark) captures there;
    any other copy does nothing.
    """

    # Of a hook that a file has made, or that is a copy.
    _train_data: Any = None
    _validation_data: Any = None
    _config: HookConfig | None = None
    _is_copy = False

    def __init__(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        *,
        train_data: Any = None,
        validation_data: Any = None,
        maximize: Iterable[str] = (),
        shap_rows: int = SHAP_ROWS,
        **settings: Any,
    ) -> None:
        """Open a run.

        Args:
            out_dir: As for ``HookBase``.
            train_data: The DMatrix that the model is trained by; None: as ``train``
                is given it.
            validation_data: The DMatrix whose labels, predictions and contributions
                are captured; None: the last of ``evals`` that is not trained by.
            maximize: Names of metrics that grow as the model gets better, beside
                those that are known: no losses.
            shap_rows: Of how many rows, at most, contributions are computed.
            settings: The other arguments of ``HookBase``.

        Raises:
            ConfigurationError: If something asked for can never work.
            StorageError: If the run cannot be made or written.
        """
        self._train_data = _checked("train_data", train_data)
        self._validation_data = _checked("validation_data", validation_data)
        super().__init__(out_dir, maximize=maximize, shap_rows=shap_rows, **settings)

    def _make_adapter(self) -> ArrayAdapter:
        return ArrayAdapter("xgboost", __version__, _rank)

    def _make_policy(self, config: HookConfig) -> Policy:
        self._config = config
        return super()._make_policy(config)

    def _configure(self, make_config: Callable[[], HookConfig]) -> None:
        def configure() -> HookConfig:
            config = make_config()
            if (_rank() or (0, 1))[1] > 1:
                # A rank that left alone would keep the others waiting for ever.
                return dataclasses.replace(config, on_stop="flag")
            return config

        super()._configure(configure)

    def _attach(self, session: Session) -> CurrentMode:
        self._data = TrainingData()
        self._model: XGBoostModel | None = None
        self._own_derivatives: OwnDerivatives | None = None
        self._stopping = StoppingWatch(_DIRECTIONS)
        self._n_looks = 0
        self._call: Mapping[str, Any] = {}
        return super()._attach(session)

    def __reduce__(self) -> tuple[Any, ...]:
        writes_as = self._session.writes_as
        settings = {
            "_config": self._config,
            "_joins": self._joins if writes_as is None else writes_as.attempt,
            "_maximized": self._maximized,
            "_shap_rows": self._shap_rows,
        }
        return _copied, (type(self), settings)

    # ---- what XGBoost calls ------------------------------------------------------

    def before_training(self, model: Any) -> Any:
        """A training begins; XGBoost calls it."""
        if self._is_copy and self._config is not None and collective.is_distributed():
            self._open_copy()
        self._session.run(self._begin_training, model)
        return model

    def before_iteration(
        self, model: Any, epoch: int, evals_log: Mapping[str, Any]
    ) -> bool:
        """A round begins; XGBoost calls it.  True stops the training."""
        del epoch, evals_log
        if self._round_begins():
            return True
        own, context = self._own_derivatives, self._context
        is_due = context is not None and self._derivatives.due(context.step_plan)
        is_due |= not self._n_looks
        if own is not None and is_due:
            self._session.run(own.watch, _booster_of(model))
        return False

    def after_iteration(
        self, model: Any, epoch: int, evals_log: Mapping[str, Any]
    ) -> bool:
        """A round is over; XGBoost calls it.  True stops the training."""
        del epoch
        self._session.run(self._make_model, model)
        if self._model is None:
            return False
        self._session.run(self._look_at_objective, self._model)
        return self._round_ends(
            self._model, lambda: self._read_scores(evals_log), self._data.sets
        )

    def after_training(self, model: Any) -> Any:
        """A training is over; XGBoost calls it."""
        self._session.run(self._note_kept_rounds, model)
        self._training_ends()
        self._data, self._model, self._call = TrainingData(), None, {}
        return model

    # ---- the training --------------------------------------------------------------

    def _begin_training(self, model: Any) -> None:
        self._model = None
        folds = getattr(model, "cvfolds", None)
        self._call = arguments_of_training("xgboost.training", "train", "cv")
        self._facts = TreeFacts()
        self._stopping, self._n_looks = StoppingWatch(_DIRECTIONS), 0
        given = self._call.get("obj") is not None
        self._own_derivatives = OwnDerivatives() if given else None
        if folds is None:
            self._data = find_data(self._call, self._train_data, self._validation_data)
            first_round = _rounds_of(model)
            trained = [self._call["dtrain"]] if "dtrain" in self._call else []
        else:
            self._data, first_round = data_of_folds(folds), 0
            trained = [each.dtrain for each in folds]
        of_training = self._set_of_training(self._data.sets)
        if of_training is not None and of_training.is_training:
            self._derivatives.expect(("gradient/margin", "hessian/margin"))
        n_rows = sum(each.num_row() for each in trained) if trained else -1
        self._training_begins(first_round, self._data.features, n_rows)

    def _make_model(self, model: Any) -> None:
        """Read the booster, once it has been configured by its first round."""
        if self._model is None:
            self._model = XGBoostModel(_booster_of(model))
            self._model.own_derivatives = self._own_derivatives
            self._facts = self._facts_of_training(self._model)

    def _facts_of_training(self, model: XGBoostModel) -> TreeFacts:
        """Return what the program has set; nothing of folds, and of old models."""
        data, call = self._data, self._call
        train = data.sets.get(TRAIN)
        if train is None or "num_boost_round" not in call or call.get("xgb_model"):
            return TreeFacts()
        facts = TreeFacts()
        if self._own_derivatives is None:
            facts = model.facts(train.data, int(call["num_boost_round"]))
        by_training, by_validation = data.stops_by(call)
        faults = (
            *_faults_of_weights(train.data, model),
            *self._faults_of_rows(train.data, model),
            *misplaced_arguments(_settings_of(call), call),
        )
        return dataclasses.replace(
            facts,
            stops_by_training=by_training,
            stops_by_validation=by_validation,
            faults=faults,
        )

    def _faults_of_rows(self, train: DMatrix, model: XGBoostModel) -> list[TreeFact]:
        """Return what the samples show, where they can be read quickly."""
        rows, labels = _rows_of(train), np.asarray(train.get_label(), np.float64)
        found: list[TreeFact | None] = []
        if rows is not None:
            found.append(fault_of_features(rows, labels, self._data.features))
        other = self._data.sets.get(EVAL)
        if other is not None:
            evals = self._call.get("evals") or ()
            names = [str(name) for data, name in evals if data is other.data]
            name = names[0] if names else "valid"
            others = _rows_of(other.data)
            if rows is not None and others is not None:
                found.append(fault_of_rows(rows, others, name))
                found.append(fault_of_range(rows, others, name))
            given = np.asarray(other.data.get_label(), np.float64)
            if _has_classes(model.objective):
                found.append(fault_of_classes(labels, given, name))
            elif model.objective.startswith(_OF_NUMBERS):
                found.append(fault_of_label_range(labels, given, name))
        if model.objective.startswith("rank:"):
            found.append(fault_of_queries(_queries_of(train), train.num_row()))
        return [each for each in found if each is not None]

    def _fault_of_stopping(self) -> TreeFact | None:
        score, maximizes = self._data.score_of_stopping(self._call, self._scores)
        return self._stopping.see(score, maximizes=maximizes)

    def _look_at_objective(self, model: XGBoostModel) -> None:
        """Look at what an objective of the program's own has computed."""
        train, own = self._data.sets.get(TRAIN), self._own_derivatives
        self._n_looks += 1
        is_over = self._n_looks > _ENOUGH_ROUNDS or "num_boost_round" not in self._call
        if train is None or own is None or is_over:
            return
        labels = np.asarray(train.data.get_label(), dtype=np.float64)
        if self._n_looks == 1 and own.latest is not None:
            self._add_fact(fault_of_derivatives(*own.latest, labels))
        if self._n_looks == _ENOUGH_ROUNDS and model.objective == "reg:squarederror":
            metrics = model.metrics()
            if not OF_PROBABILITIES.isdisjoint(metrics):
                predictions = model.predictions(train)
                self._add_fact(fault_of_margins(metrics, predictions, labels))

    def _read_scores(self, evals_log: Mapping[str, Any]) -> Sequence[Score]:
        names = list(evals_log)
        scores = []
        for name, by_metric in evals_log.items():
            is_training = self._data.is_training(name, names)
            for metric, values in by_metric.items():
                latest = values[-1]
                mean, deviation = (
                    latest if isinstance(latest, tuple) else (latest, None)
                )
                is_loss = not (metric in self._maximized or is_maximized(metric))
                scores.append(
                    Score(name, metric, float(mean), is_training, is_loss, deviation)
                )
        return scores

    def _note_kept_rounds(self, model: Any) -> None:
        """Record where early stopping has found the best round."""
        best = model.attr("best_iteration") if isinstance(model, Booster) else None
        if best is not None:
            self._session.record_scalar(self._mode.now(), "best_iteration", float(best))

    def _open_copy(self) -> None:
        """Open the run in a process of the collective that trains."""
        config = cast(HookConfig, self._config)
        self._is_copy = False
        try:
            self._configure(lambda: config)
        except TdbgError as error:
            _log.warning("this rank captures nothing: %s", error)


def _is_same(data: Any, other: Any) -> bool:
    """Return whether two data sets have the same labels and, at first, samples.

    Of quantiles only all samples can be had: where that would take long, labels tell.
    """
    if data.num_row() != other.num_row() or data.num_col() != other.num_col():
        return False
    labels = data.get_label()
    if not np.array_equal(labels, other.get_label()):
        return False
    rows = list(range(min(_COMPARED, data.num_row())))
    try:
        if not isinstance(data, QuantileDMatrix):
            one, two = (each.slice(rows).get_data() for each in (data, other))
        elif data.num_nonmissing() > _MOST_QUANTILES:
            return are_telling(labels)
        else:
            one, two = data.get_data(), other.get_data()
    except XGBoostError:
        return False  # It is of other quantiles, or not in memory.
    return bool((one != two).nnz == 0)


def _rows_of(data: DMatrix) -> NDArray[np.float32] | None:
    """Return the samples; None where that would take long, or they are not there."""
    if data.num_row() * data.num_col() > MOST_ELEMENTS:
        return None
    try:
        given = data.get_data().tocoo()
    except XGBoostError:
        return None
    rows = np.full((data.num_row(), data.num_col()), np.nan, np.float32)
    rows[given.row, given.col] = given.data
    return rows


def _queries_of(data: DMatrix) -> Sequence[int] | None:
    """Return the numbers of samples of the queries; None: the program gave none."""
    borders = np.asarray(data.get_uint_info("group_ptr"))
    return np.diff(borders).tolist() if borders.size else None


def _faults_of_weights(data: DMatrix, model: XGBoostModel) -> Iterator[TreeFact]:
    """Yield what is wrong with the weights of samples."""
    weights = np.asarray(data.get_weight(), dtype=np.float64)
    labels = np.asarray(data.get_label(), dtype=np.float64)
    factor = model.scale_pos_weight()
    has_classes = _has_classes(model.objective)
    if has_classes:
        given = weights if weights.size else np.ones_like(labels)
        fault = fault_of_reversal(labels, given, factor, "scale_pos_weight")
        if fault is not None:
            yield fault
    if not weights.size:
        return
    found = (
        class_without_weight(labels, weights) if has_classes else None,
        fault_of_balance(labels, weights, factor, "scale_pos_weight"),
    )
    yield from (each for each in found if each is not None)


def _settings_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a call, without what its callbacks make up for."""
    given = call.get("params")
    settings = dict(given) if isinstance(given, Mapping) else {}
    if any(isinstance(each, EarlyStopping) for each in call.get("callbacks") or ()):
        settings.pop("early_stopping_rounds", None)
    return settings


def _has_classes(objective: str) -> bool:
    return objective.startswith(("binary:", "multi:"))


def _rounds_of(model: Booster) -> int:
    """Return the rounds of a model; 0 where XGBoost refuses its parameters.

    It then raises into the program by itself, in the first round.
    """
    try:
        return int(model.num_boosted_rounds())
    except XGBoostError:
        return 0


def _booster_of(model: Any) -> Booster:
    """Return the booster that is trained, of several folds the first one."""
    folds = getattr(model, "cvfolds", None)
    booster: Booster = model if folds is None else folds[0].bst
    return booster


def _rank() -> tuple[int, int] | None:
    """The rank in the collective that trains; None outside of one."""
    if not collective.is_distributed():
        return None
    return collective.get_rank(), collective.get_world_size()


def _copied(kind: type[Hook], settings: Mapping[str, Any]) -> Hook:
    """Make the copy of a hook, which does nothing outside of a collective."""
    hook = kind._inert()
    for name, value in settings.items():
        setattr(hook, name, value)
    hook._is_copy = True
    return hook


def _checked(name: str, data: Any) -> Any:
    """Return data that can be predicted.

    Raises:
        ConfigurationError: If they are no DMatrix.
    """
    if data is None or isinstance(data, DMatrix):
        return data
    msg = f"{name} must be an xgboost.DMatrix, not {type(data).__name__}"
    raise ConfigurationError(msg)


_process_hook = Hook.of_process()
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook
