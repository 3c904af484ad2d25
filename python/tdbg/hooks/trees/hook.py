"""``TreeHook``: the hook of boosted trees, whose step is a round.

The framework's hook derives from it: it says when rounds begin and end, and what the
model is after one (``TreeModel``).

Thread safety: the training's thread.

Errors: none raises into the training, and what a model cannot say is refused once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tdbg.capture.adapter import array_ref
from tdbg.capture.model_info import ModelInfoWriter, ModelMarks
from tdbg.capture.modes import CurrentMode
from tdbg.capture.policy import Policy
from tdbg.capture.recorder import StepContext
from tdbg.capture.schedule import HISTOGRAM, ROWS, StepPlan
from tdbg.capture.session import Session
from tdbg.capture.step_clock import COMPUTE
from tdbg.capture.steps import Counters
from tdbg.config import HookConfig
from tdbg.config.collections import CollectionKeys, Role
from tdbg.config.messages import whole_number
from tdbg.errors import ConfigurationError, TrainingStopped
from tdbg.hooks.framework import FrameworkHook
from tdbg.hooks.trees import shap
from tdbg.hooks.trees.collections import Group, policy_of_trees
from tdbg.hooks.trees.importance import KINDS
from tdbg.hooks.trees.rounds import DataSet, Score, TreeModel, loss_of
from tdbg.hooks.trees.settings import fault_of_test_data
from tdbg.hooks.trees.tables import COLUMNS
from tdbg.modes import EVAL, PREDICT, TRAIN, ModeKeys
from tdbg.run.model_info import ModelInfo
from tdbg.run.tree_facts import TreeFact, TreeFacts

__all__ = ["SHAP_ROWS", "TreeHook"]

_log = logging.getLogger("tdbg")

#: Rows of a data set whose predictions are explained, unless the hook says otherwise.
SHAP_ROWS = 1000
# Keys of what begins and ends the steps.
_ROOT, _OPTIMIZER = "trees", "boosting"
# Seconds that the end of a training may wait until readers see all of it.
_FLUSH_SECONDS = 5.0


class TreeHook(FrameworkHook):
    """Captures a training of boosted trees; metrics and losses unless told otherwise.

    A round is a step of mode TRAIN. The metrics of data that are not trained by, and
    predictions of them, are a step of mode EVAL after it.
    """

    # Whether other data than those of training are evaluation; a hook that keeps the
    # modes of another library has all in steps of training.
    _has_evaluation = True
    # Settings of a hook that a file has made, or that is a copy.
    _shap_rows = SHAP_ROWS
    _maximized: frozenset[str] = frozenset()

    def __init__(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        *,
        maximize: Iterable[str] = (),
        shap_rows: int = SHAP_ROWS,
        **settings: Any,
    ) -> None:
        """Open a run.

        Args:
            out_dir: As for ``HookBase``.
            maximize: Names of metrics that grow as the model gets better, beside
                those that are known: no losses.
            shap_rows: Of how many rows, at most, contributions are computed.
            settings: The other arguments of ``HookBase``.

        Raises:
            ConfigurationError: If something asked for can never work.
            StorageError: If the run cannot be made or written.
        """
        if isinstance(maximize, str) or not isinstance(maximize, Iterable):
            msg = f"maximize must be a list of names of metrics, not {maximize!r}"
            raise ConfigurationError(msg)
        n_rows = whole_number(shap_rows, 1)
        if n_rows is None:
            msg = f"shap_rows must be a whole number of at least 1, not {shap_rows!r}"
            raise ConfigurationError(msg)
        self._maximized = frozenset(map(str, maximize))
        self._shap_rows = n_rows
        super().__init__(out_dir, **settings)

    # ---- what HookBase asks ----------------------------------------------------

    def _make_policy(self, config: HookConfig) -> Policy:
        return policy_of_trees(config)

    def _attach(self, session: Session) -> CurrentMode:
        self._context: StepContext | None = None
        self._ended_ns: int | None = None
        # Of the data that each round is trained by; -1: unknown.
        self._n_rows = -1
        self._of_test: TreeFact | None = None
        self._scores: Sequence[Score] = ()
        self._model_name = ""
        self._facts = TreeFacts()
        self._hyperparameters: dict[str, float | str] = {}
        self._refused: set[str] = set()
        self._model_info = ModelInfoWriter(session, self)
        keys = CollectionKeys

        def group(collection: CollectionKeys, role: Role = Role.OTHER) -> Group:
            return Group(session, collection.value, role)

        self._losses = group(keys.METRICS, Role.LOSS)
        self._metrics = group(keys.METRICS)
        self._trees = group(keys.TREES)
        self._importance = group(keys.FEATURE_IMPORTANCE)
        self._hyper = group(keys.HYPERPARAMETERS)
        self._average_shap = group(keys.AVERAGE_SHAP)
        self._full_shap = group(keys.FULL_SHAP)
        self._labels = group(keys.LABELS, Role.LABEL)
        self._predictions = group(keys.PREDICTIONS, Role.PREDICTION)
        self._derivatives = group(keys.GRADIENTS)
        self._labels.expect(("labels",))
        self._predictions.expect(("predictions",))
        self._trees.expect(f"trees/{column}" for column in COLUMNS)
        self._hyper.expect(("hyperparameters/learning_rate",))
        return super()._attach(session)

    def __deepcopy__(self, memo: dict[int, Any]) -> TreeHook:
        """Return the hook itself: estimators copy the arguments they were made with."""
        del memo
        return self

    # ---- the model info --------------------------------------------------------

    def marks(self) -> ModelMarks:
        """Look at the model: which losses it has, and what is set."""
        return ModelMarks(0, (len(self._scores), hash(self._facts)))

    def model_info(self, step: int, trained_in_evaluation: Any) -> ModelInfo:
        """Describe the model, and which loss of evaluation belongs to which other."""
        del trained_in_evaluation
        losses = [score for score in self._scores if score.is_loss]
        pairs = ((score.name, loss_of(score, losses)) for score in losses)
        return ModelInfo(
            step=step,
            models=(self._model_name,),
            losses=tuple(score.name for score in losses),
            evaluates={name: other for name, other in pairs if other is not None},
            complete=True,
            trees=self._facts,
        )

    def _add_fact(self, fact: TreeFact | None) -> None:
        """Add what is wrong with the training, unless it is known; None: nothing."""
        known = self._facts.faults
        if fact is not None and all(each.fault is not fact.fault for each in known):
            self._facts = dataclasses.replace(self._facts, faults=(*known, fact))
            self._model_info.changed()

    def _fault_of_stopping(self) -> TreeFact | None:
        """Return what the latest scores show to be wrong with early stopping."""
        return None

    # ---- the training ----------------------------------------------------------

    def _training_begins(
        self, first_round: int, features: Sequence[str], n_rows: int = -1
    ) -> None:
        """Begin a training, or continue it, with this round.

        Args:
            first_round: Number of the round among those of the model.
            features: Names of the features; empty where they are not known yet.
            n_rows: Rows that each round is trained by, of all folds; -1: unknown.
        """
        self._n_rows = n_rows
        self._of_test = None
        with contextlib.suppress(Exception):
            self._of_test = fault_of_test_data(sys._getframe(1))
        self._refused.clear()
        self._hyperparameters.clear()
        self._ended_ns = None
        self._note_features(features)
        session = self._session
        if session.depth:
            session.forward_lost()  # Of a training that raised in a round.
        following = session.next_steps()
        if first_round > following.modes[TRAIN]:
            step = max(first_round, following.step)
            modes = {**following.modes, TRAIN: first_round}
            modes[EVAL] = max(modes[EVAL], first_round)
            session.continue_from(Counters(step, modes))

    def _note_features(self, features: Sequence[str]) -> None:
        if features:
            names = tuple(features)
            self._importance.expect(_names_of_importance(KINDS, names))
            self._average_shap.expect(_names_of_shap(names))
            self._full_shap.expect(f"full_shap/{each}" for each in (*names, shap.BIAS))

    def _round_begins(self) -> bool:
        """Begin a round; return whether the training is to stop before it."""
        try:
            self._session.run(self._begin)
        except TrainingStopped:
            return True
        return False

    def _begin(self, *, has_obeyed: bool = False) -> None:
        session = self._session
        if session.depth:
            session.forward_lost()
        self._context = session.forward_begins(_ROOT, TRAIN, has_obeyed=has_obeyed)
        session.clock.enter(COMPUTE)  # A round has no parts that anybody can tell.
        session.clock.add_samples(self._n_rows)

    def _round_was(
        self,
        model: TreeModel | None,
        scores: Callable[[], Sequence[Score]],
        data_sets: Mapping[ModeKeys, DataSet],
    ) -> bool:
        """End a round whose beginning the framework did not report.

        It began when the last one was over.  Arguments and result are those of
        ``_round_ends``.
        """
        clock = self._session.clock
        clock.leave(COMPUTE)
        stops = self._round_begins()
        if not stops:
            if self._context is not None and self._ended_ns is not None:
                self._context.start_ns = self._ended_ns
            stops = self._round_ends(model, scores, data_sets)
        self._ended_ns = time.perf_counter_ns()
        clock.enter(COMPUTE)  # The next round.
        return stops

    def _round_ends(
        self,
        model: TreeModel | None,
        scores: Callable[[], Sequence[Score]],
        data_sets: Mapping[ModeKeys, DataSet],
    ) -> bool:
        """End a round; return whether the training is to stop.

        Args:
            model: The model, with that round; None: the framework hands out none.
            scores: Returns the metrics after it.
            data_sets: What the model predicts, in training and in evaluation.
        """
        try:
            self._session.run(self._end, model, scores, data_sets)
        except TrainingStopped:
            return True
        return False

    def _end(
        self,
        model: TreeModel | None,
        scores: Callable[[], Sequence[Score]],
        data_sets: Mapping[ModeKeys, DataSet],
    ) -> None:
        session, context = self._session, self._context
        self._context = None
        session.clock.leave(COMPUTE)
        try:
            self._scores = scores()
            self._add_fact(self._fault_of_stopping())
            self._add_fact(self._of_test)
            if model is not None:
                self._model_name = model.name
            self._record_scores(TRAIN)
            if model is not None and context is not None and context.takes:
                self._take_model(context, model, data_sets)
                self._take_data(context, model, self._set_of_training(data_sets))
        finally:
            session.forward_ends()
            session.optimizer_begins(_OPTIMIZER, self._mode.now)
            self._model_info.optimizer_stepped()
            session.optimizer_ends(_OPTIMIZER)
        if self._has_evaluation and (
            EVAL in data_sets or any(not score.is_training for score in self._scores)
        ):
            self._evaluate(model, data_sets.get(EVAL))

    def _set_of_training(self, data_sets: Mapping[ModeKeys, DataSet]) -> DataSet | None:
        """Return the data whose predictions belong to a step of training."""
        train = data_sets.get(TRAIN)
        return train if self._has_evaluation else data_sets.get(EVAL, train)

    def _evaluate(self, model: TreeModel | None, data_set: DataSet | None) -> None:
        session = self._session
        context = session.forward_begins(_ROOT, EVAL)
        try:
            self._record_scores(EVAL)
            if model is not None and context is not None and context.takes:
                self._take_data(context, model, data_set)
        finally:
            session.forward_ends()

    # ---- a model that is asked when it is trained --------------------------------

    def _n_due(self, step_plan: StepPlan) -> int:
        """Count the collections of a model that a step captures anything of."""
        groups = (
            self._trees,
            self._importance,
            self._hyper,
            self._average_shap,
            self._full_shap,
            self._labels,
            self._predictions,
        )
        return sum(group.due(step_plan) for group in groups)

    def _take_stage(
        self,
        model: TreeModel,
        data_set: DataSet | None,
        at: tuple[int, int],
        step_plan: StepPlan,
    ) -> None:
        """Take what a trained model was after a round, as a step of mode PREDICT.

        Args:
            model: The model as it was.
            data_set: What it predicts; None: nothing.
            at: Number of the step among all, and among those of mode PREDICT.
            step_plan: What the step captures.
        """
        session = self._session
        number, mode_step = at
        modes = {**session.next_steps().modes, PREDICT: mode_step}
        session.continue_from(Counters(number, modes))
        context = session.forward_begins(_ROOT, PREDICT, has_obeyed=True)
        try:
            if context is not None:
                context.step_plan = step_plan
                sets = {} if data_set is None else {EVAL: data_set}
                self._take_model(context, model, sets)
                self._take_data(context, model, data_set)
        finally:
            session.forward_ends()

    def _training_ends(self) -> None:
        """End a training: let readers see all of it."""
        self._session.clock.leave(COMPUTE)
        self._session.run(self._model_info.conclude)
        self._session.run(self._session.steps_end)
        if self._session.is_live:
            try:
                self._session.flush(durable=False, timeout=_FLUSH_SECONDS)
            except Exception as error:
                _log.warning("the run is not completely written yet: %s", error)

    # ---- what is captured ------------------------------------------------------

    def _record_scores(self, mode: ModeKeys) -> None:
        for score in self._scores:
            is_training = score.is_training or not self._has_evaluation
            if is_training is not (mode is TRAIN):
                continue
            self._record(mode, score.name, score.value, is_loss=score.is_loss)
            if score.deviation is not None:
                name = f"{score.name}-std"
                self._record(mode, name, score.deviation, is_loss=False)

    def _record(
        self, mode: ModeKeys, name: str, value: float, *, is_loss: bool
    ) -> None:
        (self._losses if is_loss else self._metrics).expect((name,))
        role = Role.LOSS if is_loss else Role.OTHER
        self._session.record(mode, name, role, array_ref(np.float64(value)))

    def _take_model(
        self,
        context: StepContext,
        model: TreeModel,
        data_sets: Mapping[ModeKeys, DataSet],
    ) -> None:
        """Take what describes the model, which is captured in steps of training."""
        if not self._importance.entries:
            self._attempt(context, "features", lambda: self._note_features_of(model))
        plan = context.step_plan

        def trees() -> dict[str, Any]:
            columns = model.trees().columns()
            return {f"trees/{name}": column for name, column in columns.items()}

        self._take(context, self._trees, trees)
        if self._importance.due(plan):
            self._attempt(
                context,
                self._importance.name,
                lambda: self._take_importance(context, model),
            )
        self._take(context, self._hyper, lambda: self._changed(model))
        explained = data_sets.get(EVAL) or data_sets.get(TRAIN)
        if explained is not None and (
            self._average_shap.due(plan) or self._full_shap.due(plan)
        ):
            self._attempt(
                context, "shap", lambda: self._take_shap(context, model, explained)
            )

    def _take_importance(self, context: StepContext, model: TreeModel) -> None:
        by_kind = model.importance()
        names = _names_of_importance(tuple(by_kind), tuple(model.feature_names()))
        values = np.concatenate(list(by_kind.values()))
        if values.ndim == 1:
            self._importance.take_numbers(context, names, values)
            return
        named = zip(names, values, strict=True)
        self._take_all(context, self._importance, dict(named))

    def _note_features_of(self, model: TreeModel) -> None:
        self._note_features(model.feature_names())

    def _changed(self, model: TreeModel) -> dict[str, Any]:
        """Return the parameters that have another value than before."""
        given = model.hyperparameters().items()
        known, now = self._hyperparameters, {k: _as_stored(v) for k, v in given}
        new = {name: value for name, value in now.items() if known.get(name) != value}
        known.update(new)
        return {f"hyperparameters/{name}": value for name, value in new.items()}

    def _take_shap(
        self, context: StepContext, model: TreeModel, data_set: DataSet
    ) -> None:
        contributions = model.contributions(data_set, self._shap_rows)
        names = model.feature_names()
        if self._average_shap.due(context.step_plan):
            self._average_shap.take_numbers(
                context, _names_of_shap(tuple(names)), shap.average(contributions)
            )
        if self._full_shap.due(context.step_plan):
            self._take_all(
                context,
                self._full_shap,
                {
                    f"full_shap/{name}": np.ascontiguousarray(column)
                    for name, column in shap.columns(contributions, names)
                },
            )

    def _take_data(
        self, context: StepContext, model: TreeModel, data_set: DataSet | None
    ) -> None:
        """Take labels of a data set, and what the model makes of it."""
        if data_set is None:
            return

        def derivatives() -> dict[str, Any]:
            found = model.derivatives(data_set)
            if found is None:
                return {}
            return {"gradient/margin": found[0], "hessian/margin": found[1]}

        # First, because they are of the round before, whose margin is the older one.
        if data_set.is_training:
            self._take(context, self._derivatives, derivatives)
        self._take(context, self._labels, lambda: {"labels": model.labels(data_set)})
        self._take(
            context,
            self._predictions,
            lambda: {"predictions": model.predictions(data_set)},
        )

    def _take(
        self,
        context: StepContext,
        group: Group,
        make: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Take the tensors of a group if the step captures any of them."""
        if group.due(context.step_plan):
            key = f"{group.name} {context.step.mode.name}"
            self._attempt(context, key, lambda: self._take_all(context, group, make()))

    def _attempt(
        self, context: StepContext, key: str, function: Callable[[], None]
    ) -> None:
        """Do what the model may not be able to; it is refused once, and left out."""
        if key in self._refused:
            return
        try:
            function()
        except Exception as error:
            self._refused.add(key)
            reason = str(error).strip().partition("\n")[0][:200]
            self._session.refuse(context, key, reason or type(error).__name__)
            _log.info("%s are not captured: %s", key, reason)

    def _take_all(
        self, context: StepContext, group: Group, tensors: Mapping[str, Any]
    ) -> None:
        plan = context.step_plan
        entries, values, flags = [], [], []
        for name, value in tensors.items():
            array = np.asarray(value)
            entry = group.entry(name)
            requested = plan.of_entry(entry)
            if array.dtype.kind not in "biuf":
                requested &= ~(ROWS | HISTOGRAM)  # Texts have no statistics.
            if requested:
                entries.append(entry)
                values.append(array)
                flags.append(requested)
        if entries:
            self._session.take(context, entries, values, flags)


# From here on floats leave whole numbers out.
_MOST_WHOLE = 2**53


def _as_stored(value: str | float) -> str | float:
    """Return a number as a float, or as text where a float would be another number."""
    if isinstance(value, str) or abs(value) > _MOST_WHOLE:
        return str(value)
    return float(value)


@functools.lru_cache(maxsize=8)
def _names_of_importance(
    kinds: tuple[str, ...], features: tuple[str, ...]
) -> tuple[str, ...]:
    """The names of importances, kind by kind."""
    return tuple(f"feature_importance/{kind}/{x}" for kind in kinds for x in features)


@functools.lru_cache(maxsize=8)
def _names_of_shap(features: tuple[str, ...]) -> tuple[str, ...]:
    """The names of mean contributions, that of the bias last."""
    return tuple(f"average_shap/{each}" for each in (*features, shap.BIAS))
