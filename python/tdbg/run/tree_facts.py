"""TreeFacts: what a program has set for a training of boosted trees.

Thread safety: values that never change.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tdbg.run.json_values import is_integer

__all__ = ["TreeFact", "TreeFacts", "TreeFault"]


class TreeFault(enum.StrEnum):
    """A fault in what trees are given.  On disk by name: never rename."""

    # Early stopping waits for a metric to fall that rises as the model gets better, or
    # the reverse; or it has no data to go by.
    STOPS_WRONG_WAY = "stops_wrong_way"
    STOPS_BY_NOTHING = "stops_by_nothing"
    # It goes by what the program calls its test data.
    STOPS_BY_TEST = "stops_by_test"
    # All samples of a class have the weight zero.
    CLASS_WITHOUT_WEIGHT = "class_without_weight"
    # Weights of samples make up for rare classes, and a setting does so once more.
    BALANCED_TWICE = "balanced_twice"
    # Weights of samples, or a setting, grow with the number of samples of a class.
    WEIGHTS_REVERSED = "weights_reversed"
    # A feature that is the label; rows of validation that are trained on, and classes
    # of validation that are not.
    LABEL_IS_FEATURE = "label_is_feature"
    ROWS_OVERLAP = "rows_overlap"
    CLASS_NOT_TRAINED = "class_not_trained"
    # An objective of the program's own whose hessian is nowhere above zero, or whose
    # gradient moves each prediction away from its label.
    HESSIAN_NOT_POSITIVE = "hessian_not_positive"
    GRADIENT_REVERSED = "gradient_reversed"
    # A setting that the library does not know, or that does nothing without another.
    SETTING_UNKNOWN = "setting_unknown"
    SETTING_IGNORED = "setting_ignored"
    # A setting that is an argument of the function that trains.
    SETTING_IS_ARGUMENT = "setting_is_argument"
    # All samples of a ranking belong to one query.
    ONE_QUERY = "one_query"
    # Features, or labels, of validation lie beyond all that are trained on.
    ROWS_OUT_OF_RANGE = "rows_out_of_range"
    LABELS_OUT_OF_RANGE = "labels_out_of_range"
    # A metric of probabilities is given the sums of trees.
    METRIC_OF_MARGINS = "metric_of_margins"


@dataclass(frozen=True, slots=True)
class TreeFact:
    """One fault of a training of boosted trees.

    Attributes:
        fault: Which one.
        name: What it is about: a metric, a class, a setting.
        numbers: Figures, in an order that the fault has.
        words: Texts, likewise.
    """

    fault: TreeFault
    name: str = ""
    numbers: tuple[float, ...] = ()
    words: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, document: object) -> TreeFact | None:
        """Return the fact; None if it is none that is known."""
        if not isinstance(document, Mapping):
            return None
        fault, name = document.get("fault"), document.get("name")
        if fault not in list(TreeFault) or not isinstance(name, str):
            return None
        numbers = [_number(each) for each in _list(document.get("numbers"))]
        words = [each for each in _list(document.get("words")) if isinstance(each, str)]
        known = tuple(each for each in numbers if each is not None)
        return cls(TreeFault(fault), name, known, tuple(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFacts:
    """Settings of boosted trees, as far as they are known.

    Attributes:
        learning_rate: The share of a full step that a round takes.
        penalty: What the weights of the samples in a leaf are added to before its
            value is divided by them: lambda.
        weight: The weights of all samples together, or more; None: nothing bounds
            them.
        n_rounds: Rounds that the training may have; 0: nobody knows.
        first_prediction: What the program set as the first prediction; None: nothing.
        is_possible: Whether the objective can start from there.
        labels: The lowest label, the mean, the highest, and the standard deviation;
            empty: not known.
        stops_by_training: Name of the data set by which early stopping goes, if these
            are the training data; empty: it goes by others, or there is none.
        stops_by_validation: Whether early stopping goes by other data, so that the
            program knows the best round.
        faults: What else is wrong.
    """

    learning_rate: float = 1.0
    penalty: float = 0.0
    weight: float | None = None
    n_rounds: int = 0
    first_prediction: float | None = None
    is_possible: bool = True
    labels: tuple[float, ...] = ()
    stops_by_training: str = ""
    stops_by_validation: bool = False
    faults: tuple[TreeFact, ...] = ()

    @property
    def kept(self) -> float:
        """The share of a leaf's value that the penalty leaves, at most."""
        if not self.weight or self.penalty <= 0:
            return 1.0
        return self.weight / (self.weight + self.penalty)

    @property
    def step(self) -> float:
        """The share of a full step that a round takes, at most."""
        return self.learning_rate * self.kept

    @property
    def way(self) -> float:
        """The share of the way to the labels that all rounds go together, at most.

        A round goes a share of what is left of it.
        """
        if not self.n_rounds or not 0.0 <= self.step < 1.0:
            return 1.0
        return -math.expm1(self.n_rounds * math.log1p(-self.step))

    @property
    def distance(self) -> float:
        """How far the first prediction is from all labels, in their deviations.

        0 where it lies between the lowest and the highest, or is not known.
        """
        if self.first_prediction is None or len(self.labels) != 4:
            return 0.0
        low, mean, high, deviation = self.labels
        if low <= self.first_prediction <= high or not deviation:
            return 0.0
        return abs(self.first_prediction - mean) / deviation

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: object) -> TreeFacts | None:
        """Return the facts that ``to_json`` wrote; None if there are none."""
        if not isinstance(document, Mapping):
            return None
        given = _list(document.get("labels"))
        faults = map(TreeFact.from_json, _list(document.get("faults")))
        numbers = [each for each in map(_number, given) if each is not None]
        rate, penalty = _number(document.get("learning_rate")), document.get("penalty")
        n_rounds, stops_by = document.get("n_rounds"), document.get("stops_by_training")
        return cls(
            learning_rate=1.0 if rate is None else rate,
            penalty=_number(penalty) or 0.0,
            weight=_number(document.get("weight")),
            n_rounds=n_rounds if is_integer(n_rounds) else 0,
            first_prediction=_number(document.get("first_prediction")),
            is_possible=document.get("is_possible") is not False,
            labels=tuple(numbers) if len(numbers) == 4 else (),
            stops_by_training=stops_by if isinstance(stops_by, str) else "",
            stops_by_validation=document.get("stops_by_validation") is True,
            faults=tuple(each for each in faults if each is not None),
        )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
