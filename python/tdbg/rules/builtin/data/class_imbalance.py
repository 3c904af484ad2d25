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
    learns,
    most_confused_with,
    share_at_most,
)
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import OK, Bools, Description
from tdbg.run.findings import Severity

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = ["ClassImbalance"]

Ints = NDArray[np.int64]

# The chance, over all pairs of classes and all batches of a training, that too few
# samples accuse a data set whose imbalance only equals the threshold.
ERROR_RATE = 1e-3
# Steps after which a model that misses a rare class is no longer a young one.
PATIENCE = 100
# A model ranks the samples of two classes if the chance that it prefers the right one
# of a pair is above a half by so many standard errors, and separates them from here on.
RANKED, SEPARATED = 2.0, 0.9
# A model that expects the rare class so many times as often as it comes is a young one.
EXPECTED = 1.5
# A model that predicts the only class for this share of samples is a constant.
CONSTANT = 0.99


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassImbalance(ClassifierRule):
    """Report classes that are rare in the data, or that the model does not learn.

    A rare class is an info.  It is a warning once the model has seen enough of its
    samples, and recognizes hardly any, though it has learned the others.  The rule says
    nothing of rare classes that the model recognizes.

    Args:
        threshold_imbalance: How many times as many samples as the rarest class the most
            frequent one may have; the rule adds one sample to both.
        threshold_misprediction: Largest share of a class's samples that the model may
            misclassify once it has learned the other classes.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

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

    def level(self, recent: RecentBatches) -> int:
        """Return how certain it is that a rare class hurts."""
        level = ClassifierRule.level(self, recent)
        counts = recent.confusion.sum(axis=1)
        if level > OK and _is_constant(counts):
            always = recent.age >= PATIENCE and _is_constant(recent.later.sum(axis=1))
            return int(Severity.WARNING if always else Severity.INFO)
        if level <= OK or not self._are_rare(counts).any():
            return level
        rare = self._are_rare(counts)
        if recent.later.shape == recent.confusion.shape:
            rare &= self._are_rare(recent.later.sum(axis=1))
        missed, known = self._missed(recent)
        if (rare & missed).any() or self._others_missed(recent).any():
            return int(Severity.WARNING)
        return OK if not (rare & ~known).any() else int(Severity.INFO)

    def is_sick(self, recent: RecentBatches) -> bool:
        """Return whether a class is rare, or the only one not learned."""
        counts = recent.confusion.sum(axis=1)
        if _is_constant(counts):
            return _says_nothing_else(recent)
        if self._are_rare(counts).any():
            return True
        return bool(lasting(recent, self._not_learned).any())

    def _others_missed(self, recent: RecentBatches) -> Bools:
        """Find classes that are not rare, and that alone the model does not learn."""
        missed = lasting(recent, self._not_learned)
        missed &= ~self._are_rare(recent.confusion.sum(axis=1)) & (not recent.is_short)
        return missed

    def _are_rare(self, counts: Ints) -> Bools:
        """Find the classes with far fewer samples than the most frequent one."""
        rare: Bools = counts.max() + 1 > self.threshold_imbalance * (counts + 1)
        return rare

    def _missed(self, recent: RecentBatches) -> tuple[Bools, Bools]:
        """Find the classes that the model surely misses, and those that it recognizes.

        Only its later predictions count, and the class must have been there for long:
        models learn rare classes last.
        """
        now = recent.confusion.sum(axis=1)
        if not recent.has_predictions or recent.later.shape != recent.confusion.shape:
            return np.zeros(len(now), bool), np.zeros(len(now), bool)
        counts, right = recent.later.sum(axis=1), np.diagonal(recent.later)
        least = 1.0 - self.threshold_misprediction
        right_now = np.diagonal(recent.confusion)
        others = (right_now.sum() - right_now) / np.maximum(now.sum() - now, 1)
        missed: Bools = (
            (share_at_most(right, counts) < least)
            & (right_now <= least * now)
            & (others >= self.learned)
        )
        missed &= recent.seen_since >= PATIENCE
        if recent.before is not None and learns(recent.confusion, recent.before):
            missed = np.zeros_like(missed)
        if missed.any() and _is_fair(recent):
            missed = np.zeros_like(missed)
        known: Bools = (counts > 0) & (right > least * counts)
        return missed, known

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
        rare = self._are_rare(counts)
        is_rare_missed = rare & self._missed(recent)[0]
        if is_rare_missed.any() or (
            rare.any() and not self._others_missed(recent).any()
        ):
            return self._of_rare_classes(recent, counts)
        return self._of_missed_classes(recent, counts)

    def _of_rare_classes(self, recent: RecentBatches, counts: Ints) -> Description:
        most, least = int(counts.argmax()), self._worst_of_rare(recent, counts)
        imbalance = float((counts[most] + 1) / (counts[least] + 1))
        rare = np.flatnonzero(
            counts[most] + 1 > self.threshold_imbalance * (counts + 1)
        )
        n_least = int(counts[least])
        seen = int(recent.later[least].sum()) if least < len(recent.later) else 0
        rest, missed = f" and none to class {least}", ""
        if n_least:
            rest = f", {times(imbalance)} as many as to class {least} ({n_least:,})"
        if seen and recent.has_predictions:
            right = int(recent.later[least, least])
            missed = (
                f" The model misclassifies {percent(100 * (1 - right / seen))} of the "
                f"{plural(seen, 'later sample')} of class {least}."
            )
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

    def _worst_of_rare(self, recent: RecentBatches, counts: Ints) -> int:
        """Return the rarest class, or of the rare ones that are missed the rarest."""
        chosen = self._are_rare(counts)
        missed = chosen & self._missed(recent)[0]
        chosen = missed if missed.any() else chosen
        return int(np.argmin(np.where(chosen, counts, counts.max() + 1)))

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


def _is_fair(recent: RecentBatches) -> bool:
    """Return whether the model ranks two classes that nobody can separate, or is young.

    Of such classes the rare one is never the more likely one, as clicks are, and a good
    model predicts how likely it is.  Of classes that the scores separate, it is.  A
    young model has not learned yet how rare the class is.
    """
    batches = recent.later_batches
    scores = [batch.scores for batch in batches if batch.scores is not None]
    if len(recent.confusion) != 2 or len(scores) < len(batches):
        return False
    labels = np.concatenate([batch.labels for batch in batches])
    given = np.concatenate(scores)
    area, error = _area(given, labels)
    if area >= SEPARATED:
        return False
    return 0.5 + RANKED * error < area or _expects_too_many(given, labels)


def _area(scores: NDArray[np.float32], labels: Ints) -> tuple[float, float]:
    """Return the share of pairs that the scores order rightly, and its error."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # Equal scores share their ranks.
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    second = int(np.count_nonzero(labels == 1))
    pairs = (len(labels) - second) * second
    right = ranks[labels == 1].sum() - second * (second + 1) / 2.0
    error = math.sqrt((len(labels) + 1) / (12.0 * max(1, pairs)))
    return float(right) / max(1, pairs), error


def _expects_too_many(scores: NDArray[np.float32], labels: Ints) -> bool:
    """Return whether the rare class has far fewer samples than its probabilities say.

    Scores within 0 and 1 are probabilities.
    """
    is_share = bool(scores.min(initial=0.0) >= 0.0 and scores.max(initial=0.0) <= 1.0)
    second = scores if is_share else 1.0 / (1.0 + np.exp(-np.clip(scores, -50.0, 50.0)))
    n = len(labels)
    n_second, expected = int(np.count_nonzero(labels == 1)), float(second.sum())
    if 2 * n_second > n:
        n_second, expected = n - n_second, n - expected
    return expected > EXPECTED * n_second


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
