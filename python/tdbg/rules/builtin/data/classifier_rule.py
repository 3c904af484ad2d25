"""ClassifierRule: base class for the labels and predictions of a classifier."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import REGRESSIONS
from tdbg.config.needs import Needs, with_beginning
from tdbg.rules.builtin.data.classifier_batches import (
    Pair,
    RecentBatches,
    pairs_of,
    recent_batches,
)
from tdbg.rules.columns import kind_of
from tdbg.rules.rule import Rule, check_number, check_regex, finds
from tdbg.rules.table import nothing_to_describe
from tdbg.rules.training_facts import NO_CLASSES, TrainingFacts
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Bools,
    Description,
    Evaluation,
    Floats,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = [
    "LASTS",
    "SHOWN",
    "ClassifierRule",
    "lasting",
    "learns",
    "most_confused_with",
    "share_at_least",
    "share_at_most",
]

Ints = NDArray[np.int64]

# Labels and predictions are small; every fifth step is as good as every step.
INTERVAL = 5
# The model is still learning a class whose recall has grown by this much, and all
# classes if its accuracy has.
IMPROVEMENT = 0.1
IMPROVEMENT_OF_ALL = 0.05
# Steps that mistakes must last.  While every step is recorded, the halfway point is
# only a few steps back, and a model learns its classes one after the other.
LASTS = 30
# The most axes of a model's input that labels may follow.
MOST_AXES = 6
# Significance of a share: a quantile of the normal distribution.
CERTAINTY = 1.96
# How many classes or pairs a message names.
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierRule(Rule):
    """Base class of rules about the labels and predictions of a classifier.

    Skips detectors, which propose their own places, most of them empty, and labels of
    tokens and pixels, whose frequencies are those of the language or the scene.

    Args:
        learned: The model has learned the other classes, and the rule compares a class
            with them, once this share of their predictions is right.
        samples: Least number of labels to judge by.
        samples_per_class: Least number of labels to judge by, on average for a class.
        max_steps: Most recorded steps to look at.
        max_classes: The rule says nothing about more classes.
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
        """Rows and values of labels and predictions, which are small."""
        return with_beginning(
            Needs(
                collections=frozenset({"labels", "predictions"}),
                raw=True,
                interval=INTERVAL,
            )
        )

    @property
    def lookback(self) -> int:
        """The batches that one verdict sums up."""
        return self.max_steps

    @property
    def head_rows(self) -> int:
        """The first batch, from which steps are counted."""
        return 1

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that there are no classes, if so."""
        if training.is_regression:
            return NO_CLASSES
        return Rule.inapplicable(self, training)

    def selects(self, tensor: TensorInfo) -> bool:
        """Select inputs of losses and models, or tensors that the expressions match."""
        given = {"label": self.labels_regex, "prediction": self.predictions_regex}
        return tensor.role == "model_input" or any(
            tensor.role == role if regex is None else finds(regex, tensor.name)
            for role, regex in given.items()
        )

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each loss by its last batches."""
        for table in window.tables():
            for pair in pairs_of(table, self.labels_regex, self.predictions_regex):
                yield self._judge(window, table, pair)

    def _judge(self, window: Window, table: Table, pair: Pair) -> Evaluation:
        severities = np.full(len(table.steps) - table.start, UNKNOWN, np.int8)
        found: dict[int, RecentBatches] = {}
        name = table.names[pair.label]
        info = window.model_info_at(int(table.steps[-1]))
        if self.labels_regex is None and (
            _are_of_proposals(table, pair.label, info) or _are_dense(table, pair.label)
        ):
            return table.judge_one(name, severities, nothing_to_describe)
        for recent in recent_batches(
            table,
            pair,
            window.model_info_at,
            samples=self.samples,
            per_class=self.samples_per_class,
            max_steps=self.max_steps,
            max_classes=self.max_classes,
        ):
            j = recent.column - table.start
            found[j] = recent
            info = window.model_info_at(int(table.steps[recent.column]))
            if self.is_on_purpose(recent, info):
                continue
            severities[j] = self.level(recent)
        return table.judge_one(name, severities, lambda j: self.describe(found[j]))

    def level(self, recent: RecentBatches) -> int:
        """Return a severity, ``OK`` or ``UNKNOWN``."""
        if recent.is_short:
            # Few samples may prove a fault, but not its absence.
            return int(Severity.WARNING) if self.is_surely_sick(recent) else UNKNOWN
        return int(Severity.WARNING) if self.is_sick(recent) else OK

    @abstractmethod
    def is_sick(self, recent: RecentBatches) -> bool:
        """Return whether the batches show the fault."""

    def is_on_purpose(
        self, recent: RecentBatches, model_info: ModelInfo | None
    ) -> bool:
        """Return whether the apparent fault is deliberate; False by default."""
        del recent, model_info
        return False

    def is_surely_sick(self, recent: RecentBatches) -> bool:
        """Return whether too few samples already show it; False by default."""
        del recent
        return False

    @abstractmethod
    def describe(self, recent: RecentBatches) -> Description:
        """Describe the fault."""


def _are_of_proposals(table: Table, label: int, model_info: ModelInfo | None) -> bool:
    """Return whether the labels belong to places that a detector proposed itself.

    A detector also learns locations, by a regression, and the number of its labels
    matches no number of samples, tokens or pixels of its inputs.
    """
    detects = any(
        role == "label" and kind_of(model_info, name) in REGRESSIONS
        for name, role in zip(table.names, table.roles, strict=True)
    )
    places = set().union(*_places(table))
    if not detects or not places:
        return False
    shape = table.shapes[label]
    return places.isdisjoint({math.prod(shape), *shape[:1]})


def _are_dense(table: Table, label: int) -> bool:
    """Return whether a sample has several labels, one for each token or pixel.

    The program has joined samples and tokens into one dimension, as a loss takes them.
    How often each class occurs is then a matter of the language or the scene.
    """
    # The other dimension of two, if any, is that of classes.
    n_labels = set(table.shapes[label][:1])
    places = _places(table)
    samples = {min(each) for each in places}
    return bool(n_labels & set().union(*places) - samples)


def _places(table: Table) -> list[set[int]]:
    """Return how many places each input of the model may have labels for.

    Places are samples, of which there are the fewest, and tokens, pixels, or whatever
    else the other dimensions stand for.
    """
    shapes = [
        shape[:MOST_AXES]
        for shape, role in zip(table.shapes, table.roles, strict=True)
        if role == "model_input" and shape
    ]
    return [
        {
            math.prod((shape[0], *others))
            for n in range(len(shape))
            for others in itertools.combinations(shape[1:], n)
        }
        for shape in shapes
    ]


def lasting(recent: RecentBatches, bad: Callable[[Ints], Bools]) -> Bools:
    """Return what was bad before and still is, for classes that do not improve.

    Args:
        recent: Samples by label and prediction.
        bad: Marks what is bad in a confusion matrix; the first axis is the label.
    """
    now, before = recent.confusion, recent.before
    result = bad(now)
    if not result.any():
        return result
    if before is None or not recent.has_predictions or learns(now, before):
        return np.zeros_like(result)
    if recent.apart < LASTS:
        return np.zeros_like(result)
    result &= bad(before)
    result[_recall(now) - _recall(before) > IMPROVEMENT] = False
    return result


def _recall(confusion: Ints) -> Floats:
    """Return the share of each class that the model recognizes."""
    recall: Floats = np.diagonal(confusion) / np.maximum(confusion.sum(axis=1), 1)
    return recall


def learns(now: Ints, before: Ints) -> bool:
    """Return whether the model as a whole still improves."""
    right = [np.trace(part) / max(1, int(part.sum())) for part in (now, before)]
    return bool(right[0] - right[1] > IMPROVEMENT_OF_ALL)


def most_confused_with(confusion: Ints, label: int) -> int:
    """Return the most frequent wrong prediction for *label*."""
    wrong = confusion[label].copy()
    wrong[label] = -1
    return int(wrong.argmax())


def share_at_least(part: Ints, whole: Ints) -> Floats:
    """Return the lower end of a share's Wilson interval; 0 without samples."""
    n = np.maximum(whole, 1).astype(np.float64)
    share = part / n
    z2 = CERTAINTY**2
    middle = share + z2 / (2 * n)
    spread = CERTAINTY * np.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low: Floats = np.where(whole > 0, (middle - spread) / (1 + z2 / n), 0.0)
    return low


def share_at_most(part: Ints, whole: Ints) -> Floats:
    """Return the upper end of a share's Wilson interval; 1 without samples."""
    high: Floats = 1.0 - share_at_least(whole - part, whole)
    return high
