"""ClassImbalance: classes that are rare in the data, or that the model misses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import percent, plural, times
from tdbg.rules.builtin.data.classifier_batches import RecentBatches
from tdbg.rules.builtin.data.classifier_rule import (
    SHOWN,
    ClassifierRule,
    lasting,
    most_confused_with,
)
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Bools, Description

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = ["ClassImbalance"]

Ints = NDArray[np.int64]

# The chance, over all pairs of classes and all batches of a training, that too few
# samples accuse a data set whose imbalance only equals the threshold.
ERROR_RATE = 1e-3
# A model that predicts the only class for this share of samples is a constant.
CONSTANT = 0.99


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassImbalance(ClassifierRule):
    """Report classes that are rare in the data, or that the model does not learn.

    Args:
        threshold_imbalance: How many times as many samples as the rarest class the most
            frequent one may have; the rule adds one sample to both.
        threshold_misprediction: Largest share of a class's samples that the model may
            misclassify once it has learned the other classes.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    threshold_imbalance: float = 10.0
    threshold_misprediction: float = 0.7

    def __post_init__(self) -> None:
        check_number(self, "threshold_imbalance", above=1.0)
        check_number(self, "threshold_misprediction", above=0.0, most=1.0)
        ClassifierRule.__post_init__(self)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return (
            f"labels and predictions of {plural(self.samples, 'sample')}, from a "
            "classification loss"
        )

    def is_sick(self, recent: RecentBatches) -> bool:
        """Return whether a class is rare, or the only one not learned."""
        counts = recent.confusion.sum(axis=1)
        if _is_constant(counts):
            return _says_nothing_else(recent)
        imbalance = (counts.max() + 1) / (counts.min() + 1)
        if imbalance > self.threshold_imbalance:
            return True
        return bool(lasting(recent, self._not_learned).any())

    def is_surely_sick(self, recent: RecentBatches) -> bool:
        """Return whether a class is so rare that even few samples leave no doubt.

        An exact binomial test: at the largest imbalance allowed, the rarer of two
        classes has 1 in ``threshold_imbalance`` + 1 of their samples.
        """
        counts = recent.confusion.sum(axis=1)
        if _is_constant(counts):
            return False
        n, rare = int(counts.max() + counts.min()), int(counts.min())
        chance = _at_most(rare, n, 1.0 / (self.threshold_imbalance + 1.0))
        pairs = len(counts) * (len(counts) - 1)
        # Over all batches, these terms add up to one.
        n_tests = recent.n_batches * (recent.n_batches + 1)
        return chance < ERROR_RATE / (pairs * n_tests)

    def _not_learned(self, confusion: Ints) -> Bools:
        """Find the classes that the model misses although it has learned the others."""
        counts = confusion.sum(axis=1)
        right = np.diagonal(confusion)
        others = (right.sum() - right) / np.maximum(counts.sum() - counts, 1)
        wrong = 1.0 - right / np.maximum(counts, 1)
        known = (counts >= self.samples_per_class) & (others >= self.learned)
        # With two classes, a constant prediction is right about one of them.
        known &= np.count_nonzero(counts) > 2
        bad: Bools = known & (wrong > self.threshold_misprediction)
        return bad

    def is_on_purpose(
        self, recent: RecentBatches, model_info: ModelInfo | None
    ) -> bool:
        """Return whether labels of one class are meant.

        Adversaries label a whole batch as real or as fake, and a regression may have
        targets that are all 0 or 1.
        """
        if not _is_constant(recent.confusion.sum(axis=1)):
            return False
        has_several = model_info is not None and model_info.has_several_optimizers
        return has_several or recent.of_regression

    def describe(self, recent: RecentBatches) -> Description:
        """Describe how many samples each class has, or how many the model misses."""
        counts = recent.confusion.sum(axis=1)
        if _is_constant(counts):
            return _of_one_class(counts)
        if (counts.max() + 1) / (counts.min() + 1) > self.threshold_imbalance:
            return self._of_rare_classes(recent, counts)
        return self._of_missed_classes(recent, counts)

    def _of_rare_classes(self, recent: RecentBatches, counts: Ints) -> Description:
        most, least = int(counts.argmax()), int(counts.argmin())
        imbalance = float((counts[most] + 1) / (counts[least] + 1))
        rare = np.flatnonzero(
            counts[most] + 1 > self.threshold_imbalance * (counts + 1)
        )
        n_least = int(counts[least])
        rest, missed = f" and none to class {least}", ""
        if n_least:
            rest = f", {times(imbalance)} as many as to class {least} ({n_least:,})"
        if n_least and recent.has_predictions:
            wrong = 100 * (1 - recent.confusion[least, least] / n_least)
            missed = f" The model misclassifies {percent(wrong)} of class {least}."
        return Description(
            message=(
                f"Of the last {counts.sum():,} samples, {counts[most]:,} belong to "
                f"class {most}{rest}.{missed}"
            ),
            value=imbalance,
            threshold=self.threshold_imbalance,
            advice=lambda words: (
                f"Rare classes: {_some(rare)}. Draw them more often "
                f"({words.oversampling}), weight the loss by class "
                f"({words.class_weights}), or collect more samples of them. "
                "Measure balanced accuracy instead of accuracy."
            ),
        )

    def _of_missed_classes(self, recent: RecentBatches, counts: Ints) -> Description:
        confusion = recent.confusion
        bad = np.flatnonzero(lasting(recent, self._not_learned))
        worst = int(max(bad, key=lambda i: 1 - confusion[i, i] / counts[i]))
        wrong = float(1 - confusion[worst, worst] / counts[worst])
        return Description(
            message=(
                f"The model misclassifies {percent(100 * wrong)} of the "
                f"{counts[worst]:,} samples of class {worst}, mostly as class "
                f"{most_confused_with(confusion, worst)}, although it has learned the "
                "other classes."
            ),
            value=wrong,
            threshold=self.threshold_misprediction,
            advice=(
                f"Classes that the model does not learn: {_some(bad)}. Check that "
                "their labels are right, that augmentation does not remove what sets "
                "them apart, and that you have enough samples of them."
            ),
        )


def _of_one_class(counts: Ints) -> Description:
    return Description(
        message=(
            f"All of the last {counts.sum():,} labels are class {counts.argmax()}, and "
            "so is nearly every prediction. The model can ignore its inputs."
        ),
        value=1.0,
        threshold=0.0,
        advice=(
            "Check how you read labels and draw batches: sorted rows or a wrong column "
            "give labels of a single class. If the fixed class is deliberate, as in "
            "contrastive learning, the task has become too easy."
        ),
    )


def _at_most(k: int, n: int, share: float) -> float:
    """Return the probability of at most *k* hits in *n* draws (binomial)."""
    odds = share / (1.0 - share)
    term = total = 1.0
    for i in range(k):
        term *= (n - i) / (i + 1) * odds
        total += term
    # The logarithm keeps precision where the probability is tiny.
    return total * math.exp(n * math.log1p(-share))


def _is_constant(counts: Ints) -> bool:
    """Return whether all labels are of one class."""
    return int(np.count_nonzero(counts)) < 2


def _says_nothing_else(recent: RecentBatches) -> bool:
    """Return whether the model predicts the only class for nearly all samples.

    Labels that are equal by construction (in a contrastive loss the true class is
    always 0; samples of a generator are all fake) do not count as imbalanced.
    """
    if not recent.has_predictions:
        return False
    total = recent.confusion.sum()
    return bool(np.trace(recent.confusion) >= CONSTANT * total)


def _some(classes: NDArray[np.intp]) -> str:
    shown = ", ".join(map(str, classes[:SHOWN].tolist()))
    return f"{shown} and {len(classes) - SHOWN} more" if len(classes) > SHOWN else shown
