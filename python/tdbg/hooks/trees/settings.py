"""What is wrong with what a training of trees is given: weights, objectives, metrics.

Each check compares numbers that the program itself has set; doubtful cases stay open.

Thread safety: pure functions; ``StoppingWatch`` belongs to the training's thread.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.hooks.trees.rounds import Score, is_maximized
from tdbg.run.tree_facts import TreeFact, TreeFault

__all__ = [
    "OF_PROBABILITIES",
    "StoppingWatch",
    "class_without_weight",
    "fault_of_balance",
    "fault_of_derivatives",
    "fault_of_margins",
    "fault_of_queries",
    "fault_of_reversal",
    "fault_of_test_data",
    "misplaced_arguments",
    "unknown_settings",
]

Floats = NDArray[np.float64]

# A round from which on a metric has shown where it goes.
_ENOUGH_ROUNDS = 3
# How exactly weights make up for rare classes, and settings do.
_BALANCED, _SET_TO_BALANCE = 0.02, 0.05
# Classes are as many as this at most, and rare ones are a warning from here on.
_MOST_CLASSES, _RARE = 1000, 1.5
# Names are misspelt if they are as similar as this.
_SIMILAR = 0.8
# What programs call test data; and where libraries keep what they evaluate.
_TEST = re.compile(r"(^|_)d?test([_0-9]|$)|^test", re.IGNORECASE)
_GIVEN = ("eval_set", "eval_X", "evals", "valid_sets")
_LIBRARIES = ("xgboost", "lightgbm", "catboost", "tdbg", "sklearn")
_MOST_FRAMES = 40
# The share of predictions that are no probabilities, beyond rounding.
_MANY, _ROUNDING = 0.01, 1e-6
# Losses, by the names that the frameworks have for them.
_LOSSES = (
    "rmse",
    "rmsle",
    "mae",
    "mape",
    "mse",
    "l1",
    "l2",
    "logloss",
    "mlogloss",
    "binary_logloss",
    "multi_logloss",
    "error",
    "merror",
    "binary_error",
    "multi_error",
)
# Metrics of probabilities, which nobody can compute of the sums of trees.
OF_PROBABILITIES = frozenset(
    {"logloss", "mlogloss", "error", "binary_logloss", "binary_error", "multi_logloss"}
)


class StoppingWatch:
    """Follows the metric by which early stopping goes.

    Args:
        setting: What sets the direction, where metrics rise, and where they fall.
    """

    def __init__(self, setting: tuple[str, str]) -> None:
        self._setting = setting
        self._first: float | None = None
        self._n_rounds = 0

    def see(self, score: Score | None, *, maximizes: bool) -> TreeFact | None:
        """Look at the metric after a round.

        Args:
            score: The metric of the data that decide; None: it is not there.
            maximizes: Whether early stopping waits for it to rise.

        Returns:
            The fault, once the metric has moved against the direction.
        """
        if score is None or not np.isfinite(score.value):
            return None
        name = score.metric.lower()
        rises = is_maximized(name) and "brier" not in name
        if rises == maximizes or not (rises or name in _LOSSES):
            return None
        self._n_rounds += 1
        if self._first is None:
            self._first = score.value
        moved = score.value - self._first
        if self._n_rounds < _ENOUGH_ROUNDS or not (moved > 0 if rises else moved < 0):
            return None
        return TreeFact(
            TreeFault.STOPS_WRONG_WAY,
            score.name,
            (self._first, score.value, float(self._n_rounds), float(rises)),
            (self._setting[0 if rises else 1],),
        )


def class_without_weight(labels: Floats, weights: Floats) -> TreeFact | None:
    """Return that all samples of one class have no weight, where labels are classes.

    Example:
        >>> labels = np.array([0.0, 1.0, 1.0])
        >>> class_without_weight(labels, np.array([1.0, 0.0, 0.0])).name
        '1'
        >>> class_without_weight(labels, np.array([1.0, 1.0, 0.0]))
    """
    classes, totals, counts = _totals_of_classes(labels, weights)
    without = np.flatnonzero(totals == 0.0)
    if not 0 < len(without) < len(classes):
        return None
    first = int(without[0])
    numbers = (float(counts[first]), float(len(without)))
    return TreeFact(TreeFault.CLASS_WITHOUT_WEIGHT, f"{classes[first]:g}", numbers, ())


def fault_of_balance(
    labels: Floats, weights: Floats, factor: float | None, setting: str
) -> TreeFact | None:
    """Return that weights and a setting both make up for a rare class.

    Args:
        labels: Of two classes, 0 and 1.
        weights: Of the samples.
        factor: By which the setting multiplies the weight of class 1; None: it makes
            classes even, whatever their weights are.
        setting: Its name.

    Example:
        >>> labels = np.array([0.0, 0.0, 0.0, 1.0])
        >>> weights = np.array([1.0, 1.0, 1.0, 3.0])
        >>> fault_of_balance(labels, weights, 3.0, "scale_pos_weight").name
        'scale_pos_weight'
        >>> fault_of_balance(labels, np.ones(4), 3.0, "scale_pos_weight")
        >>> fault_of_balance(labels, weights, 1.0, "scale_pos_weight")
    """
    classes, totals, counts = _totals_of_classes(labels, weights)
    if classes.tolist() != [0.0, 1.0] or not totals.all():
        return None
    ratio = counts[0] / counts[1]
    is_rare = max(ratio, 1 / ratio) >= _RARE
    is_even = abs(totals[0] / totals[1] - 1.0) <= _BALANCED
    is_set = factor is None or abs(factor / ratio - 1.0) <= _SET_TO_BALANCE
    if not (is_rare and is_even and is_set):
        return None
    numbers = (float(ratio if factor is None else factor), float(ratio))
    return TreeFact(TreeFault.BALANCED_TWICE, setting, numbers)


def fault_of_reversal(
    labels: Floats, weights: Floats, factor: float, setting: str
) -> TreeFact | None:
    """Return that the weight of each class is proportional to its number of samples.

    Args:
        labels: The classes of the samples.
        weights: Of the samples.
        factor: By which a setting multiplies the weight of class 1 of two.
        setting: Its name.

    Example:
        >>> labels = np.array([0.0, 0.0, 0.0, 1.0])
        >>> fault_of_reversal(labels, np.ones(4), 1 / 3, "scale_pos_weight").name
        'scale_pos_weight'
        >>> fault_of_reversal(labels, np.ones(4), 3.0, "scale_pos_weight")
        >>> fault_of_reversal(labels, np.ones(4), 1.0, "scale_pos_weight")
    """
    classes, totals, counts = _totals_of_classes(labels, weights)
    if len(classes) < 2 or not totals.all() or counts.max() < _RARE * counts.min():
        return None
    each = totals / counts
    if not np.allclose(weights, each[np.searchsorted(classes, labels)], rtol=1e-4):
        return None
    if classes.tolist() == [0.0, 1.0]:
        each = each * (1.0, factor)
    shares = each / counts
    if not (shares > 0).all() or shares.max() > (1 + _SET_TO_BALANCE) * shares.min():
        return None
    often, rare = int(counts.argmax()), int(counts.argmin())
    found = (
        value
        for i in (often, rare)
        for value in (classes[i], counts[i], each[i] / each[often])
    )
    name = setting if factor != 1.0 else ""
    return TreeFact(TreeFault.WEIGHTS_REVERSED, name, tuple(map(float, found)))


def fault_of_derivatives(
    gradient: Floats, hessian: Floats, labels: Floats
) -> TreeFact | None:
    """Return what is wrong with what an objective has computed for all samples.

    Args:
        gradient: For each sample; more than one dimension is not judged for its sign.
        hessian: Likewise.
        labels: The labels.

    Example:
        >>> labels, gradient = np.array([0.0, 1.0]), np.array([-0.5, 0.5])
        >>> fault_of_derivatives(gradient, np.ones(2), labels).fault
        <TreeFault.GRADIENT_REVERSED: 'gradient_reversed'>
        >>> fault_of_derivatives(-gradient, np.zeros(2), labels).fault
        <TreeFault.HESSIAN_NOT_POSITIVE: 'hessian_not_positive'>
        >>> fault_of_derivatives(-gradient, np.ones(2), labels)
    """
    if not hessian.size or not (np.isfinite(gradient).all() and gradient.any()):
        return None
    if not (hessian > 0).any():
        numbers = (float(np.nanmin(hessian)), float(np.nanmax(hessian)))
        return TreeFact(TreeFault.HESSIAN_NOT_POSITIVE, "objective", numbers)
    if gradient.shape != labels.shape or not np.isin(labels, (0.0, 1.0)).all():
        return None
    of_one, of_zero = gradient[labels == 1.0], gradient[labels == 0.0]
    if not (of_one > 0).all() or not (of_zero < 0).all() or not of_one.size:
        return None
    if not of_zero.size:
        return None
    numbers = (float(of_one.mean()), float(of_zero.mean()))
    return TreeFact(TreeFault.GRADIENT_REVERSED, "objective", numbers)


def fault_of_margins(
    metrics: Sequence[str], predictions: Floats, labels: Floats
) -> TreeFact | None:
    """Return that a metric of probabilities is given other numbers.

    Args:
        metrics: Names of the framework's own metrics.
        predictions: What they are given.
        labels: The labels: classes, or nothing is said.
    """
    name = next((each for each in metrics if each in OF_PROBABILITIES), None)
    if name is None or not predictions.size or (labels != np.floor(labels)).any():
        return None
    outside = (predictions < -_ROUNDING) | (predictions > 1.0 + _ROUNDING)
    share = float(outside.mean())
    if share < _MANY:
        return None
    numbers = (float(predictions.min()), float(predictions.max()), share)
    return TreeFact(TreeFault.METRIC_OF_MARGINS, name, numbers)


def fault_of_queries(
    sizes: Sequence[int] | NDArray[np.int64] | None, n_rows: int
) -> TreeFact | None:
    """Return that a ranking compares all samples with each other.

    Args:
        sizes: Numbers of samples of the queries; None: the program gave none.
        n_rows: Number of samples.

    Example:
        >>> fault_of_queries(None, 90).numbers
        (90.0,)
        >>> fault_of_queries([40, 50], 90)
    """
    if n_rows < 2 or (sizes is not None and len(sizes) != 1):
        return None
    words = () if sizes is None else ("given",)
    return TreeFact(TreeFault.ONE_QUERY, "group", (float(n_rows),), words)


# What programs call arguments of the function that trains, and their names there.
_ARGUMENTS = {
    **dict.fromkeys(
        ("n_estimators", "num_boost_round", "num_rounds", "num_iterations"),
        "num_boost_round",
    ),
    "early_stopping_rounds": "early_stopping_rounds",
}


def unknown_settings(
    given: Iterable[str], known: Mapping[str, Collection[str]]
) -> Iterator[TreeFact]:
    """Yield settings that a library passes over, and the name that was meant.

    A name that is like none may be meant for somebody else.

    Args:
        given: Names of the settings that a program gives.
        known: Those of the library, each with its aliases.

    Example:
        >>> known = {"num_leaves": ["num_leaves", "max_leaves"], "seed": ["seed"]}
        >>> [each.words for each in unknown_settings(["num_leafs", "mine"], known)]
        [('num_leaves',)]
    """
    names = {alias: name for name, each in known.items() for alias in (name, *each)}
    for name in given:
        if not names or name in names:
            continue
        near = difflib.get_close_matches(name.lower(), names, 1, _SIMILAR)
        if near:
            yield TreeFact(TreeFault.SETTING_UNKNOWN, name, (), (names[near[0]],))


def misplaced_arguments(
    settings: Mapping[str, Any], call: Mapping[str, Any]
) -> Iterator[TreeFact]:
    """Yield settings that a library reads only as arguments of the call that trains.

    Args:
        settings: What the program gives as parameters.
        call: The arguments of the call, by name.

    Example:
        >>> call = {"num_boost_round": 10}
        >>> [each.words for each in misplaced_arguments({"n_estimators": 80}, call)]
        [('num_boost_round',)]
    """
    for name, argument in _ARGUMENTS.items():
        meant, used = settings.get(name), call.get(argument)
        if isinstance(meant, int | float) and meant != used:
            numbers = (float(meant), *([float(used)] if used else []))
            yield TreeFact(TreeFault.SETTING_IS_ARGUMENT, name, numbers, (argument,))


def _totals_of_classes(
    labels: Floats, weights: Floats
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return classes, the weight of each, and its number of samples; none if unknown.

    Labels are classes if they are few whole numbers from 0 on.
    """
    nothing = np.empty(0), np.empty(0), np.empty(0, np.int64)
    if labels.ndim != 1 or weights.shape != labels.shape or not labels.size:
        return nothing
    if not np.isfinite(labels).all() or (labels != np.floor(labels)).any():
        return nothing
    classes, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) > _MOST_CLASSES or classes[0] < 0:
        return nothing
    totals = np.bincount(index, weights, len(classes)).astype(np.float64)
    return classes, totals, counts.astype(np.int64)


def fault_of_test_data(frame: FrameType | None) -> TreeFact | None:
    """Return that early stopping goes by what the program calls its test data.

    Args:
        frame: Called by the training; the functions that call it are looked at.
    """
    given, stops = list[Any](), False
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        known = frame.f_locals
        if str(frame.f_globals.get("__name__")).startswith(_LIBRARIES):
            stops = stops or any(map(_stops_by_rounds, _settings_in(known)))
            given = [*_last_of(known)] or given
        elif names := _names_of(given, known):
            is_test = stops and all(map(_TEST.search, names))
            return TreeFact(TreeFault.STOPS_BY_TEST, names[0]) if is_test else None
        frame = frame.f_back
    return None


def _names_of(given: Sequence[Any], known: Mapping[str, Any]) -> list[str]:
    every = known.items()
    return [name for name, value in every if any(value is each for each in given)]


def _settings_in(known: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what functions of the libraries keep early stopping in."""
    model = known.get("self")
    yield known.get("early_stopping_rounds")
    if type(model).__module__.startswith(("xgboost", "catboost")):
        yield vars(model).get("early_stopping_rounds")
        settings = vars(model).get("_init_params")
        yield settings.get("early_stopping_rounds") if settings else None
    callbacks = known.get("callbacks")
    for each in callbacks if isinstance(callbacks, list | tuple) else ():
        yield getattr(each, "stopping_rounds", getattr(each, "rounds", None))


def _stops_by_rounds(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _last_of(known: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the last data set that a function of the libraries evaluates."""
    for name in _GIVEN:
        value = known.get(name)
        if name == "eval_X" and isinstance(value, tuple) and value:
            value = value[-1]  # Those of several data sets.
        while isinstance(value, list) and value:
            value = value[-1]
        # Features and labels; or a data set and its name.
        value = value[0] if isinstance(value, tuple) and value else value
        if value is not None:
            yield value
