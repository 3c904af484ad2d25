"""Classes that are rare in the data, or alone in not being learned."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.rules._checks import check_number
from tdbg.rules.data.batches import Stretch
from tdbg.rules.data.classifier import (
    SHOWN,
    OfClassifiers,
    lasting,
    mostly,
)
from tdbg.rules.registry import register
from tdbg.rules.window import Bools, Description

__all__ = ["ClassImbalance"]

Ints = NDArray[np.int64]

# How often a data set with an imbalance of just the threshold may be reported by fewer
# samples than are asked for: once in so many trainings, over all pairs of classes and
# all batches.
ERROR_RATE = 1e-3
# Share of predictions that are of the only class from which on a constant will do.
CONSTANT = 0.99


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassImbalance(OfClassifiers):
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
        OfClassifiers.__post_init__(self)

    def is_sick(self, stretch: Stretch) -> bool:
        """Whether a class is rare, or alone in not being learned."""
        counts = stretch.confusion.sum(axis=1)
        if _is_constant(counts):
            return _says_nothing_else(stretch)
        imbalance = (counts.max() + 1) / (counts.min() + 1)
        if imbalance > self.threshold_imbalance:
            return True
        return bool(lasting(stretch, self._not_learned).any())

    def is_surely_sick(self, stretch: Stretch) -> bool:
        """Whether a class is so rare that fewer samples leave no doubt.

        Of the samples of two classes the rarer one has 1 in ``threshold_imbalance`` + 1
        if its share is just allowed: an exact binomial test.
        """
        counts = stretch.confusion.sum(axis=1)
        if _is_constant(counts):
            return False
        n, rare = int(counts.max() + counts.min()), int(counts.min())
        chance = _at_most(rare, n, 1.0 / (self.threshold_imbalance + 1.0))
        pairs = len(counts) * (len(counts) - 1)
        # These add up to one over all batches.
        looks = stretch.n_batches * (stretch.n_batches + 1)
        return chance < ERROR_RATE / (pairs * looks)

    def _not_learned(self, confusion: Ints) -> Bools:
        """Classes that are alone in being mistaken."""
        counts = confusion.sum(axis=1)
        right = np.diagonal(confusion)
        others = (right.sum() - right) / np.maximum(counts.sum() - counts, 1)
        wrong = 1.0 - right / np.maximum(counts, 1)
        known = (counts >= self.samples_per_class) & (others >= self.learned)
        # Who says the same of all samples is right about one class of two.
        known &= np.count_nonzero(counts) > 2
        bad: Bools = known & (wrong > self.threshold_misprediction)
        return bad

    def describe(self, stretch: Stretch) -> Description:
        """How many samples each class has, and how many of them are mistaken."""
        confusion = stretch.confusion
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
            if stretch.has_predictions and counts[least]:
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
        bad = np.flatnonzero(lasting(stretch, self._not_learned))
        worst = int(max(bad, key=lambda i: 1 - confusion[i, i] / counts[i]))
        wrong = float(1 - confusion[worst, worst] / counts[worst])
        return Description(
            message=(
                f"{wrong:.0%} of the {counts[worst]} samples of class {worst} are "
                f"taken for other classes, mostly for {mostly(confusion, worst)}, "
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
    """The probability of *k* or fewer hits in *n* draws, each with this chance."""
    odds = share / (1.0 - share)
    term = total = 1.0
    for i in range(k):
        term *= (n - i) / (i + 1) * odds
        total += term
    # Near one where there are many draws and hits; of interest where it is tiny.
    return total * math.exp(n * math.log1p(-share))


def _is_constant(counts: Ints) -> bool:
    """Whether there are labels of one class only."""
    return int(np.count_nonzero(counts)) < 2


def _says_nothing_else(stretch: Stretch) -> bool:
    """Whether the only class is what the model says of nearly everything.

    Labels that are the same by construction (the true one of a contrastive loss is
    number 0, all that a generator made is false) are not said to lack the others.
    """
    if not stretch.has_predictions:
        return False
    total = stretch.confusion.sum()
    return bool(np.trace(stretch.confusion) >= CONSTANT * total)


def _some(classes: NDArray[np.intp]) -> str:
    shown = ", ".join(map(str, classes[:SHOWN].tolist()))
    return f"{shown} and {len(classes) - SHOWN} more" if len(classes) > SHOWN else shown
