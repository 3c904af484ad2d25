"""ClassImbalance: classes that are rare in the data, or that alone are not learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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

# How often a data set with an imbalance of just the threshold may be reported by fewer
# samples than required: once in so many trainings, over all pairs of classes and
# all batches.
ERROR_RATE = 1e-3
# Share of predictions of the only class that makes the model a constant.
CONSTANT = 0.99


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassImbalance(ClassifierRule):
    """Report classes that are rare in the data, or that are not learned at all.

    Args:
        threshold_imbalance: The most frequent class may have so many times the samples
            of the rarest one; one sample is added to both.
        threshold_misprediction: Share of a class's samples that may be taken for
            others, once the other classes are learned.

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
        """What its first verdict needs."""
        return (
            f"labels and predictions of {self.samples} samples, from a loss of classes"
        )

    def is_sick(self, recent: RecentBatches) -> bool:
        """Return whether a class is rare, or alone is not learned."""
        counts = recent.confusion.sum(axis=1)
        if _is_constant(counts):
            return _says_nothing_else(recent)
        imbalance = (counts.max() + 1) / (counts.min() + 1)
        if imbalance > self.threshold_imbalance:
            return True
        return bool(lasting(recent, self._not_learned).any())

    def is_surely_sick(self, recent: RecentBatches) -> bool:
        """Return whether a class is so rare that even few samples leave no doubt.

        An exact binomial test: if the share of the rarer of two classes is just
        allowed, that class has 1 in ``threshold_imbalance`` + 1 of their samples.
        """
        counts = recent.confusion.sum(axis=1)
        if _is_constant(counts):
            return False
        n, rare = int(counts.max() + counts.min()), int(counts.min())
        chance = _at_most(rare, n, 1.0 / (self.threshold_imbalance + 1.0))
        pairs = len(counts) * (len(counts) - 1)
        # These terms add up to one over all batches.
        n_tests = recent.n_batches * (recent.n_batches + 1)
        return chance < ERROR_RATE / (pairs * n_tests)

    def _not_learned(self, confusion: Ints) -> Bools:
        """Classes that are mistaken while the others are learned."""
        counts = confusion.sum(axis=1)
        right = np.diagonal(confusion)
        others = (right.sum() - right) / np.maximum(counts.sum() - counts, 1)
        wrong = 1.0 - right / np.maximum(counts, 1)
        known = (counts >= self.samples_per_class) & (others >= self.learned)
        # A constant prediction is right about one class of two.
        known &= np.count_nonzero(counts) > 2
        bad: Bools = known & (wrong > self.threshold_misprediction)
        return bad

    def is_on_purpose(
        self, recent: RecentBatches, model_info: ModelInfo | None
    ) -> bool:
        """Adversaries say of all that it is real, or that it is not.

        And numbers that are all 0 or 1 may be no classes.
        """
        if not _is_constant(recent.confusion.sum(axis=1)):
            return False
        has_several = model_info is not None and model_info.has_several_optimizers
        return has_several or recent.of_regression

    def describe(self, recent: RecentBatches) -> Description:
        """Describe the samples of each class, and how many of them are mistaken."""
        confusion = recent.confusion
        counts = confusion.sum(axis=1)
        most, least = int(counts.argmax()), int(counts.argmin())
        imbalance = (counts[most] + 1) / (counts[least] + 1)
        n = counts.sum()
        if _is_constant(counts):
            return Description(
                message=(
                    f"all of the last {n} labels are of class {most}, and so is what "
                    "the model says: it need not look at its inputs"
                ),
                value=1.0,
                threshold=0.0,
                advice=(
                    "see how labels are read and batches are drawn (sorted rows, a "
                    "wrong column); what is compared with a fixed class on purpose, as "
                    "in contrastive learning, has become too easy"
                ),
            )
        if imbalance > self.threshold_imbalance:
            rare = np.flatnonzero(
                (counts[most] + 1) > self.threshold_imbalance * (counts + 1)
            )
            less = f", {imbalance:.0f} times less" if counts[least] else ""
            mistaken = ""
            if recent.has_predictions and counts[least]:
                wrong = 1 - confusion[least, least] / counts[least]
                mistaken = f"; {wrong:.0%} of class {least} are taken for other classes"
            return Description(
                message=(
                    f"of the last {n} samples {counts[most]} are of class {most} and "
                    f"{counts[least]} of class {least}{less}{mistaken}"
                ),
                value=float(imbalance),
                threshold=self.threshold_imbalance,
                advice=(
                    f"rare classes: {_some(rare)}. Draw them more often "
                    "(WeightedRandomSampler), weight the loss by class "
                    "(CrossEntropyLoss(weight=...)), collect more of them, and judge "
                    "by balanced accuracy instead of accuracy"
                ),
            )
        bad = np.flatnonzero(lasting(recent, self._not_learned))
        worst = int(max(bad, key=lambda i: 1 - confusion[i, i] / counts[i]))
        wrong = float(1 - confusion[worst, worst] / counts[worst])
        return Description(
            message=(
                f"{wrong:.0%} of the {counts[worst]} samples of class {worst} are "
                f"taken for other classes, mostly for "
                f"{most_confused_with(confusion, worst)}, "
                "though the other classes are learned"
            ),
            value=wrong,
            threshold=self.threshold_misprediction,
            advice=(
                f"classes that are not learned: {_some(bad)}. See whether their labels "
                "are right, whether the augmentation destroys what tells them apart, "
                "and whether there are enough samples of them"
            ),
        )


def _at_most(k: int, n: int, share: float) -> float:
    """The probability of at most *k* hits in *n* draws (binomial distribution)."""
    odds = share / (1.0 - share)
    term = total = 1.0
    for i in range(k):
        term *= (n - i) / (i + 1) * odds
        total += term
    # Precise where the probability is tiny, which is what counts.
    return total * math.exp(n * math.log1p(-share))


def _is_constant(counts: Ints) -> bool:
    """Whether all labels are of one class."""
    return int(np.count_nonzero(counts)) < 2


def _says_nothing_else(recent: RecentBatches) -> bool:
    """Whether the model predicts the only class for nearly all samples.

    Labels that are the same by construction (the true one of a contrastive loss is
    number 0, samples of a generator are all false) do not count as imbalanced.
    """
    if not recent.has_predictions:
        return False
    total = recent.confusion.sum()
    return bool(np.trace(recent.confusion) >= CONSTANT * total)


def _some(classes: NDArray[np.intp]) -> str:
    shown = ", ".join(map(str, classes[:SHOWN].tolist()))
    return f"{shown} and {len(classes) - SHOWN} more" if len(classes) > SHOWN else shown
