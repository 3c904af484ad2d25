"""What a program has set for a training of CatBoost.

Thread safety: pure functions.

Errors: CatBoost's; the caller goes on without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdbg.hooks.trees.rounds import are_telling
from tdbg.hooks.trees.settings import (
    StoppingWatch,
    class_without_weight,
    fault_of_balance,
)
from tdbg.run.tree_facts import TreeFact, TreeFacts, TreeFault

__all__ = ["direction_of", "facts_of"]

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
# Samples whose features are compared, and their number of values.
_MOST_ROWS = 100


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
    # auto_class_weights counts the weights of samples, so it does nothing to even ones.
    # CatBoost makes class weights of scale_pos_weight, the first of them 1.
    of_classes = params.get("class_weights")
    if isinstance(of_classes, list | tuple) and len(of_classes) == 2:
        zero, one = map(float, of_classes)
        name = "scale_pos_weight" if zero == 1.0 else "class_weights"
        if zero > 0.0:
            found.append(fault_of_balance(labels, weights, one / zero, name))
    return [each for each in found if each is not None]


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
