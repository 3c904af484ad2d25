"""Classifiers: what rules about their labels and predictions have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.needs import Needs, with_beginning
from tdbg.rules._base import Rule
from tdbg.rules._checks import check_number, check_regex, finds
from tdbg.rules.data.batches import Pair, Stretch, pairs_of, stretches
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Bools,
    Description,
    Floats,
    Judgement,
    Table,
    TensorInfo,
    Window,
)

__all__ = ["LASTS", "SHOWN", "OfClassifiers", "lasting", "mostly"]

Ints = NDArray[np.int64]

# Labels and predictions are small; every fifth step tells the same as every one.
INTERVAL = 5
# A class of which so much more is recognized than before is still being learned, and
# so is everything if of all samples so much more is.
IMPROVEMENT = 0.1
IMPROVEMENT_OF_ALL = 0.05
# Mistakes must last for so many steps.  While every step is recorded half of the steps
# is a few back, and classes are learned one after the other.
LASTS = 30
# Classes and pairs that are named in a message.
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class OfClassifiers(Rule):
    """Base of rules about the labels and predictions of a classifier.

    Args:
        learned: Share of right predictions of all other classes from which on these
            are learned, and a class is compared with them.
        samples: Labels to judge by, at least.
        samples_per_class: Labels to judge by for each class, on average, at least.
        max_steps: Recorded steps to look at, at most.
        max_classes: With more classes nothing is said.
        labels_regex: Names of labels; None: the second input of each loss.
        predictions_regex: Names of predictions; None: the first input of each loss.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    learned: float = 0.8
    samples: int = 500
    samples_per_class: int = 20
    max_steps: int = 200
    max_classes: int = 1000
    labels_regex: str | None = None
    predictions_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "learned", above=0.0, most=1.0)
        check_number(self, "samples", least=1, whole=True)
        check_number(self, "samples_per_class", least=1, whole=True)
        check_number(self, "max_steps", least=1, whole=True)
        check_number(self, "max_classes", least=2, whole=True)
        check_regex(self, "labels_regex")
        check_regex(self, "predictions_regex")

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Values of labels and predictions, which are small, and rows to go by."""
        return with_beginning(
            Needs(
                collections=frozenset({"labels", "predictions"}),
                raw=True,
                interval=INTERVAL,
            )
        )

    @property
    def look_back(self) -> int:
        """The batches that are taken together."""
        return self.max_steps

    @property
    def anchor(self) -> int:
        """The first batch, from which on steps count."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """What a loss was given, or what the expressions find."""
        given = {"label": self.labels_regex, "prediction": self.predictions_regex}
        return any(
            tensor.role == role if regex is None else finds(regex, tensor.name)
            for role, regex in given.items()
        )

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge each loss by its last batches."""
        for table in window.tables():
            for pair in pairs_of(table, self.labels_regex, self.predictions_regex):
                yield self._judge(window, table, pair)

    def _judge(self, window: Window, table: Table, pair: Pair) -> Judgement:
        levels = np.full(len(table.steps) - table.start, UNKNOWN, np.int8)
        found: dict[int, Stretch] = {}
        for stretch in stretches(
            table,
            pair,
            window.facts_at,
            samples=self.samples,
            per_class=self.samples_per_class,
            max_steps=self.max_steps,
            max_classes=self.max_classes,
        ):
            j = stretch.column - table.start
            found[j] = stretch
            if stretch.is_short:
                # Of few samples much can be seen, but not that all is well.
                sick, well = self.is_surely_sick(stretch), UNKNOWN
            else:
                sick, well = self.is_sick(stretch), HEALTHY
            levels[j] = Severity.WARNING if sick else well
        name = table.names[pair.label]
        return table.judge_one(name, levels, lambda j: self.describe(found[j]))

    @abstractmethod
    def is_sick(self, stretch: Stretch) -> bool:
        """Whether samples by label and prediction show the fault."""

    def is_surely_sick(self, stretch: Stretch) -> bool:
        """The same of fewer samples than are asked for; as a rule nobody can say."""
        del stretch
        return False

    @abstractmethod
    def describe(self, stretch: Stretch) -> Description:
        """The fault in words."""


def lasting(stretch: Stretch, bad: Callable[[Ints], Bools]) -> Bools:
    """What is bad now and was before, of classes that do not get better.

    Args:
        stretch: Samples by label and prediction.
        bad: What is bad of such samples, by label and anything else.
    """
    now, before = stretch.confusion, stretch.before
    result = bad(now)
    if not result.any():
        return result
    if before is None or not stretch.has_predictions or _learns(now, before):
        return np.zeros_like(result)
    if stretch.apart < LASTS:
        return np.zeros_like(result)
    result &= bad(before)
    result[_recall(now) - _recall(before) > IMPROVEMENT] = False
    return result


def _recall(confusion: Ints) -> Floats:
    """Share of each class that is recognized."""
    recall: Floats = np.diagonal(confusion) / np.maximum(confusion.sum(axis=1), 1)
    return recall


def _learns(now: Ints, before: Ints) -> bool:
    """Whether the model as a whole still gets better."""
    right = [np.trace(part) / max(1, int(part.sum())) for part in (now, before)]
    return bool(right[0] - right[1] > IMPROVEMENT_OF_ALL)


def mostly(confusion: Ints, label: int) -> int:
    """The class that most of the mistaken samples of this one are taken for."""
    wrong = confusion[label].copy()
    wrong[label] = -1
    return int(wrong.argmax())
