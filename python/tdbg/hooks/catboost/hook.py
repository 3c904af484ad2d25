"""``Hook``: the callback that captures a training of CatBoost.

CatBoost gives a callback the metrics and nothing else.  What the model was after its
rounds is asked of it when it is trained: these are steps of mode PREDICT, numbered as
the rounds.  The model and its data are found in the call of ``fit`` below the callback.
The object that CatBoost wraps callbacks in lives as long as that call, so its end tells
the hook when the model is there.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import catboost  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from tdbg.capture.modes import CurrentMode
from tdbg.capture.schedule import StepPlan
from tdbg.capture.session import Session
from tdbg.hooks.catboost.model import TrainedModel
from tdbg.hooks.catboost.scores import Scores, scores_of_folds, scores_of_rounds
from tdbg.hooks.trees.adapter import ArrayAdapter
from tdbg.hooks.trees.hook import TreeHook
from tdbg.hooks.trees.rounds import DataSet, Score, are_telling
from tdbg.hooks.trees.rows import (
    MOST_ELEMENTS,
    fault_of_classes,
    fault_of_features,
    fault_of_label_range,
    fault_of_range,
    fault_of_rows,
)
from tdbg.hooks.trees.settings import (
    StoppingWatch,
    class_without_weight,
    fault_of_balance,
    fault_of_reversal,
)
from tdbg.modes import PREDICT, TRAIN
from tdbg.run.tree_facts import TreeFact, TreeFacts, TreeFault

__all__ = ["Hook", "del_hook", "get_hook", "set_hook"]

_log = logging.getLogger("tdbg")
# Frames between a callback and the training; callbacks may be wrapped.
_MOST_FRAMES = 24
_PACKAGE = "catboost.core"
_DIRECTIONS = (
    "return True from is_max_optimal() of your metric",
    "return False from is_max_optimal() of your metric",
)
# What asks for early stopping, and the default number of rounds.
_STOPPING = "early_stopping_rounds", "od_wait", "od_pval"
_ROUNDS = "iterations", "n_estimators", "num_boost_round", "num_trees"
_DEFAULT_ROUNDS = 1000
# Losses of which no sample weighs more than one in a leaf.
_OF_ONE = frozenset({"RMSE", "Logloss", "CrossEntropy", "MultiClass"})
_OF_CLASSES = frozenset({"Logloss", "MultiClass", "MultiClassOneVsAll"})
_OF_NUMBERS = frozenset({"MAE", "Poisson", "RMSE"})
# Samples whose features are compared, and their number of values.
_MOST_ROWS = 100


@dataclass(slots=True, eq=False)
class FitCall:
    """A training under way.

    Attributes:
        call: What CatBoost has wrapped the callbacks of this training in.
        model: The model, which is not trained yet.
        before: Identity of the trained model that it is so far; empty: it is none.
        data_set: What the model predicts when it is trained; None: nothing is known.
        n_continued: Rounds of the model that this training goes on with.
        n_rows: Of the data that it is trained by; -1: unknown.
        facts: What is set for it.
        first_step: Number of the step of its first round that is seen.
        first_round: Number of that round in the model.
    """

    call: weakref.ref[Any]
    model: Any
    before: str
    data_set: DataSet | None
    n_continued: int
    n_rows: int = -1
    facts: TreeFacts = field(default_factory=TreeFacts)
    first_step: int = 0
    first_round: int = 0


def find_training(ended: Callable[[FitCall], None]) -> FitCall | None:
    """Find the training that calls this; None where there is none to be found.

    Args:
        ended: Called when the training is over, in whichever way.
    """
    call: Any = None
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        if frame.f_globals.get("__name__") == _PACKAGE:
            local = frame.f_locals
            if frame.f_code.co_name == "after_iteration":
                call = local.get("self")
            elif frame.f_code.co_name == "_train" and call is not None:
                training = _training_of(call, local)
                end = weakref.finalize(call, ended, training)
                end.atexit = False
                return training
        frame = frame.f_back
    return None


def _training_of(call: Any, arguments: Mapping[str, Any]) -> FitCall:
    model, continued = arguments["self"], arguments.get("init_model")
    pool = arguments.get("train_pool")
    return FitCall(
        call=weakref.ref(call),
        model=model,
        before=identity_of(model),
        data_set=data_set_of(pool, arguments.get("test_pool")),
        n_continued=0 if continued is None else int(continued.tree_count_),
        n_rows=-1 if pool is None else int(pool.num_row()),
        facts=_facts_of(arguments),
    )


def _facts_of(arguments: Mapping[str, Any]) -> TreeFacts:
    """Return what is set for a training; nothing of one that goes on, or fails."""
    train, others = arguments.get("train_pool"), arguments.get("test_pool")
    pools: Sequence[Any] = others if isinstance(others, list) else [others]
    if train is None or arguments.get("init_model") is not None:
        return TreeFacts()
    try:
        given = dict(arguments.get("params") or {})
        return facts_of(given, train, [each for each in pools if each is not None])
    except Exception as error:
        _log.debug("the settings of a training are not known: %s", error)
        return TreeFacts()


def data_set_of(train: Any, others: Any) -> DataSet | None:
    """Return the data that a model predicts: the last of others, or those of training.

    Args:
        train: The ``catboost.Pool`` of training; None: it is not known.
        others: A pool of evaluation, a list of such, or None.
    """
    pools: Sequence[Any] = others if isinstance(others, list) else [others]
    held_back = [pool for pool in pools if pool is not None]
    if held_back:
        return DataSet(held_back[-1], is_training=False)
    return None if train is None else DataSet(train, is_training=True)


def identity_of(model: Any) -> str:
    """Return what tells a trained model apart from all others; empty: it is none."""
    if not model.is_fitted():
        return ""
    return str(model.get_metadata()["model_guid"])


class Hook(TreeHook):
    """Captures a training of CatBoost; metrics and losses unless told otherwise.

    A callback of ``fit``::

        hook = tdbg.catboost.Hook("runs/c", include_collections=["trees"])
        model.fit(x, y, eval_set=(x_valid, y_valid), callbacks=[hook])

    On a GPU CatBoost refuses any callback: there, and of cross-validation, what it
    returns is recorded (``record_model``, ``record_cv``).
    """

    def _make_adapter(self) -> ArrayAdapter:
        return ArrayAdapter("catboost", catboost.__version__)

    def _attach(self, session: Session) -> CurrentMode:
        self._training: FitCall | None = None
        # Of the round before, in CatBoost's own count; 0: no training is under way.
        self._iteration = 0
        self._reader = Scores(self._maximized)
        # What follows the metric by which a training stops, its name, and whether it is
        # to rise; None: nobody knows.
        self._stopping: tuple[StoppingWatch, str, bool] | None = None
        # Identity of the trained model that was recorded last.
        self._recorded = ""
        return super()._attach(session)

    # ---- what CatBoost calls -----------------------------------------------------

    def after_iteration(self, info: Any) -> bool:
        """A round is over; CatBoost calls it.  False stops the training."""
        iteration = int(info.iteration)
        if not self._iteration or iteration <= self._iteration:
            self._session.run(self._begin_training, iteration)
        self._iteration = iteration
        return not self._round_was(None, lambda: self._reader.read(info.metrics), {})

    # ---- what CatBoost calls no callback for ---------------------------------------

    def record_model(self, model: Any, data: Any = None) -> None:
        """Record a trained model that this hook has not seen in training.

        Its metrics become rounds, as far as it still has them, and it is asked what it
        was after each.  Nothing happens for a model that the hook has seen to its end.

        Args:
            model: The model.
            data: Samples and labels that it is asked to predict: a ``catboost.Pool``,
                or a pair of what ``fit`` takes; None: none.
        """
        self._session.run(self._record_model, model, data)
        self._training_ends()

    def record_cv(self, results: Any) -> None:
        """Record the metrics that ``catboost.cv`` has returned.

        Args:
            results: Its table, or its dictionary.
        """
        self._session.run(self._record_folds, results)
        self._training_ends()

    # ---- the training --------------------------------------------------------------

    def _fault_of_stopping(self) -> TreeFact | None:
        if self._stopping is None:
            return None
        watch, metric, maximizes = self._stopping
        named = (
            each
            for each in self._scores
            if each.metric == metric and not each.is_training
        )
        return watch.see(next(named, None), maximizes=maximizes)

    def _begin_training(self, iteration: int) -> None:
        training = self._training = find_training(self._training_ended)
        first_round = iteration - 1  # Of a snapshot that is gone on with, more than 0.
        self._reader = Scores(self._maximized)
        self._model_name = "CatBoost"
        n_rows = -1
        self._facts, self._stopping = TreeFacts(), None
        if training is not None:
            self._facts = training.facts
            self._stopping = direction_of(training.model)
            n_rows = training.n_rows
            first_round += training.n_continued
            self._model_name = type(training.model).__name__
        self._training_begins(first_round, (), n_rows)
        if training is not None:
            training.first_round = first_round
            training.first_step = self._session.next_step(TRAIN)

    def _training_ended(self, training: FitCall) -> None:
        """Record the model after ``fit``; it is trained unless ``fit`` has raised."""
        if training is not self._training:
            return
        self._training, self._iteration = None, 0
        self._session.run(self._record_trained, training)
        self._training_ends()

    def _record_trained(self, training: FitCall) -> None:
        identity = identity_of(training.model)
        if identity not in {"", training.before}:
            self._recorded = identity
            model = TrainedModel(training.model)
            first = training.first_round, training.first_step
            self._record_stages(model, training.data_set, *first)

    def _record_model(self, model: Any, data: Any) -> None:
        identity = identity_of(model)
        if identity == self._recorded:
            _log.info(
                "the model is already recorded, because the hook was its callback"
            )
            return
        self._recorded = identity
        data_set = None
        if data is not None:
            data_set = DataSet(_pool_of(model, data), is_training=False)
        trained = TrainedModel(model)
        self._model_name = trained.name
        results = _results_of(model)
        n_rounds = max(
            (len(v) for each in results.values() for v in each.values()), default=0
        )
        first_round = max(0, trained.n_all - n_rounds) if n_rounds else 0
        self._training_begins(first_round, ())
        first_step = self._session.next_step(TRAIN)
        self._record_rounds(scores_of_rounds(results, n_rounds, self._maximized))
        self._record_stages(trained, data_set, first_round, first_step)

    def _record_folds(self, results: Any) -> None:
        self._model_name = "cv"
        for number, scores in scores_of_folds(results, self._maximized):
            self._training_begins(number, ())
            self._record_rounds([scores])

    def _record_rounds(self, rounds: Iterable[Sequence[Score]]) -> None:
        for scores in rounds:
            self._begin(has_obeyed=True)
            self._end(None, functools.partial(tuple, scores), {})

    def _record_stages(
        self,
        model: TrainedModel,
        data_set: DataSet | None,
        first_round: int,
        first_step: int,
    ) -> None:
        """Record what a model was after each round that is captured, and after all.

        After all rounds everything is captured that is at any of them.
        """
        session, most = self._session, 0
        fullest: StepPlan | None = None
        session.steps_end()
        start = session.next_steps().step
        for number in range(first_round, model.n_all):
            passed = number - first_round
            plan = session.step_plan(PREDICT, first_step + passed)
            n_due = self._n_due(plan)
            if n_due > most:
                most, fullest = n_due, plan
            if number + 1 == model.n_all and fullest is not None:
                plan = fullest
            elif not n_due:
                continue
            model.n_rounds = number + 1
            at = start + passed, first_step + passed
            self._take_stage(model, data_set, at, plan)


def _results_of(model: Any) -> Mapping[str, Any]:
    """Return the metrics of all rounds of a trained model; none if it has not all."""
    if model.get_param("metric_period") not in {None, 1}:
        return {}
    return model.get_evals_result() or {}


def _pool_of(model: Any, data: Any) -> Any:
    if isinstance(data, catboost.Pool):
        return data
    x, y = data
    return catboost.Pool(
        x,
        y,
        cat_features=model.get_cat_feature_indices(),
        text_features=model.get_text_feature_indices(),
        embedding_features=model.get_embedding_feature_indices(),
    )


def facts_of(params: Mapping[str, Any], train: Any, others: Sequence[Any]) -> TreeFacts:
    """Return what is set, as far as it is known.

    Args:
        params: The parameters of the training, as CatBoost is given them.
        train: The pool that it is trained by.
        others: The pools of evaluation.
    """
    loss = str(params.get("loss_function", "")).partition(":")[0]
    rate = _first(params, ("learning_rate", "eta"))
    penalty = _first(params, ("l2_leaf_reg", "reg_lambda"))
    n_rounds = _first(params, _ROUNDS)
    stopping = [name for name in _STOPPING if params.get(name) not in {None, 0}]
    faults: list[TreeFact] = []
    if stopping and not others and not params.get("eval_fraction"):
        # CatBoost itself renames what most programs write.
        name = {"od_wait": "early_stopping_rounds"}.get(stopping[0], stopping[0])
        faults.append(TreeFact(TreeFault.STOPS_BY_NOTHING, name))
    faults += _faults_of_weights(params, loss, train)
    faults += _faults_of_rows(loss, train, others)
    is_same = bool(stopping and others) and _are_same(train, others[-1])
    return TreeFacts(
        # CatBoost chooses a rate by itself if none is given.
        learning_rate=1.0 if rate is None else float(rate),
        penalty=3.0 if penalty is None else float(penalty),
        weight=float(train.num_row()) if loss in _OF_ONE else None,
        n_rounds=_DEFAULT_ROUNDS if n_rounds is None else int(n_rounds),
        stops_by_training="the validation set" if is_same else "",
        faults=tuple(faults),
    )


def direction_of(model: Any) -> tuple[StoppingWatch, str, bool] | None:
    """Return what follows a metric of the program's own, its name and its direction.

    Args:
        model: The model that is trained.
    """
    metric = (getattr(model, "_init_params", None) or {}).get("eval_metric")
    if metric is None or isinstance(metric, str):
        return None
    maximizes = bool(metric.is_max_optimal())
    return StoppingWatch(_DIRECTIONS), type(metric).__name__, maximizes


def _first(params: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((params[each] for each in names if params.get(each) is not None), None)


def _faults_of_weights(
    params: Mapping[str, Any], loss: str, train: Any
) -> Sequence[TreeFact]:
    if loss not in _OF_CLASSES:
        return ()
    try:
        labels = np.asarray(train.get_label(), dtype=np.float64)
    except ValueError:
        return ()  # Classes have names.
    weights = np.asarray(train.get_weight(), dtype=np.float64)
    found = [class_without_weight(labels, weights)]
    if not params.get("auto_class_weights"):
        found.append(_fault_of_reversal(params, labels, weights))
    # auto_class_weights counts the weights of samples, so it does nothing to even ones.
    # CatBoost makes class weights of scale_pos_weight, the first of them 1.
    of_classes = params.get("class_weights")
    if isinstance(of_classes, list | tuple) and len(of_classes) == 2:
        zero, one = map(float, of_classes)
        name = "scale_pos_weight" if zero == 1.0 else "class_weights"
        if zero > 0.0:
            found.append(fault_of_balance(labels, weights, one / zero, name))
    return [each for each in found if each is not None]


def _fault_of_reversal(
    params: Mapping[str, Any],
    labels: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> TreeFact | None:
    of_classes = params.get("class_weights")
    if not isinstance(of_classes, list | tuple):
        return fault_of_reversal(labels, weights, 1.0, "")
    classes = np.unique(labels)
    if classes.tolist() != list(range(len(of_classes))):
        return None
    factors = np.asarray(of_classes, np.float64)[labels.astype(np.int64)]
    fault = fault_of_reversal(labels, weights * factors, 1.0, "")
    is_one = len(of_classes) == 2 and of_classes[0] == 1.0
    name = "scale_pos_weight" if is_one else "class_weights"
    return None if fault is None else dataclasses.replace(fault, name=name)


def _faults_of_rows(loss: str, train: Any, others: Sequence[Any]) -> list[TreeFact]:
    """Return what the samples show, where they can be read quickly."""
    rows, found = _rows_of(train), list[TreeFact | None]()
    try:
        labels = np.asarray(train.get_label(), dtype=np.float64)
    except ValueError:
        return []  # Classes have names.
    if rows is not None:
        names = train.get_feature_names()
        names = [name or str(i) for i, name in enumerate(names)]
        found.append(fault_of_features(rows, labels, names))
    if others:
        held_back = _rows_of(others[-1])
        if rows is not None and held_back is not None:
            found.append(fault_of_rows(rows, held_back, "eval_set"))
            found.append(fault_of_range(rows, held_back, "eval_set"))
        given = np.asarray(others[-1].get_label(), dtype=np.float64)
        if loss in _OF_CLASSES:
            found.append(fault_of_classes(labels, given, "eval_set"))
        elif loss in _OF_NUMBERS:
            found.append(fault_of_label_range(labels, given, "eval_set"))
    return [each for each in found if each is not None]


def _rows_of(pool: Any) -> NDArray[Any] | None:
    """Return the samples; None where that would take long, or they are no numbers."""
    if pool.num_row() * pool.num_col() > MOST_ELEMENTS:
        return None
    try:
        rows = np.asarray(pool.get_features())
    except Exception:
        return None  # Features that are no numbers, or quantized.
    return rows if rows.dtype.kind == "f" and rows.ndim == 2 else None


def _are_same(one: Any, other: Any) -> bool:
    """Return whether two pools have the same labels and, at first, samples."""
    if one is other:
        return True
    if one.shape != other.shape:
        return False
    labels, others = np.asarray(one.get_label()), np.asarray(other.get_label())
    if not np.array_equal(labels, others):
        return False
    try:
        rows = np.arange(min(_MOST_ROWS, one.num_row()))
        first, second = (each.slice(rows).get_features() for each in (one, other))
        return bool(np.array_equal(first, second, equal_nan=True))
    except Exception:
        return are_telling(labels)  # Features that are no numbers, or quantized.


_process_hook = Hook.of_process()
get_hook = _process_hook.get_hook
set_hook = _process_hook.set_hook
del_hook = _process_hook.del_hook
