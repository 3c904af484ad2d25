"""Confusion: classes that stay mixed up when the others are learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.rules.builtin.data.classifier_batches import RecentBatches
from tdbg.rules.builtin.data.classifier_rule import (
    LASTS,
    SHOWN,
    ClassifierRule,
    lasting,
    most_confused_with,
)
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Bools, Description, Floats

__all__ = ["Confusion"]

Ints = NDArray[np.int64]

# Significance of a share, as a quantile of the normal distribution.
CERTAINTY = 1.96
# The least number of samples of a class: three of three would be enough for
# the interval, and there are as many intervals as pairs.
LEAST = 10
ADVICE = (
    "look at inputs of these classes: whether labels are swapped, whether the "
    "augmentation makes one look like the other (a mirrored 2, a turned 6), whether "
    "the resolution is enough; then add samples that tell them apart"
)
NUMBERS = (
    "number the classes of evaluation as those of training: compare class_to_idx of "
    "the two folders (one may lack a class), encode labels by what was fitted on the "
    "training data, and see whether one of them counts from 1"
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion(ClassifierRule):
    """Report pairs of classes that stay mixed up when the others are told apart.

    A share counts by the lower end of its confidence interval (Wilson, 95 %).  Also
    reported are classes that evaluation tells apart under other numbers than its own.

    Args:
        max_off_diag: Share of a class's samples that may be taken for one other class.
        min_diag: Share of a class's samples that must be recognized.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    max_off_diag: float = 0.25
    min_diag: float = 0.5
    samples_per_class: int = 30
    max_classes: int = 100

    def __post_init__(self) -> None:
        check_number(self, "max_off_diag", above=0.0, most=1.0)
        check_number(self, "min_diag", above=0.0, most=1.0)
        ClassifierRule.__post_init__(self)

    @property
    def first_verdict(self) -> str:
        """What its first verdict needs."""
        return (
            f"{self.samples_per_class} samples of each of two classes, from a loss of "
            "classes, and a model that tells most classes apart"
        )

    def is_sick(self, recent: RecentBatches) -> bool:
        """Return whether classes are mixed up, or have other numbers."""
        mixed_up = lasting(recent, self._mistaken)
        return bool(mixed_up.any() or self._renumbered(recent).any())

    def _renumbered(self, recent: RecentBatches) -> Bools:
        """Classes that are recognized under the number of another class.

        Nearly all samples must be recognized, under whatever number.  Training
        teaches the numbers of its labels, so only those of evaluation can differ.
        """
        now, before = recent.confusion, recent.before
        is_late = recent.mode is ModeKeys.EVAL and recent.apart >= LASTS
        if before is None or not is_late:
            return np.zeros(len(now), dtype=bool)
        numbers = now.argmax(axis=1)
        other = numbers != np.arange(len(now))
        apart = self._are_separated(now, numbers) & (before.argmax(axis=1) == numbers)
        counts = now.sum(axis=1)
        is_known = counts[apart].sum() >= self.learned * counts.sum()
        # One class alone is a mixed-up pair; two of two classes swap true and false.
        is_known &= np.count_nonzero(counts) > 2 and np.count_nonzero(apart & other) > 1
        result: Bools = apart & other & is_known
        return result

    def _are_separated(self, confusion: Ints, numbers: Ints) -> Bools:
        """Classes that nearly always get this number, unlike all other classes."""
        counts = confusion.sum(axis=1)
        taken = confusion[np.arange(len(confusion)), numbers]
        said = confusion.sum(axis=0)[numbers]
        separated: Bools = (
            (counts >= LEAST)
            & (taken >= self.learned * counts)
            & (taken >= self.learned * said)
        )
        return separated

    def _mistaken(self, confusion: Ints) -> Bools:
        """Label x prediction: pairs that are mixed up, and missed classes."""
        counts = confusion.sum(axis=1)
        right = np.diagonal(confusion)
        taken = _at_least(confusion, counts[:, np.newaxis])
        np.fill_diagonal(taken, 0.0)
        missed = _at_least(counts - right, counts)
        bad = taken > self.max_off_diag
        # A constant prediction is right about one class of two.
        if np.count_nonzero(counts) > 2:
            bad |= np.diag(missed > 1.0 - self.min_diag)
        bad &= (counts >= LEAST)[:, np.newaxis]
        # With two classes there are no others to compare with.
        n_others = _of_others(counts)
        separated = _of_others(right) / np.maximum(n_others, 1) >= self.learned
        return bad & separated & (n_others > 0)

    def describe(self, recent: RecentBatches) -> Description:
        """Describe which pairs are mixed up."""
        confusion = recent.confusion
        counts = confusion.sum(axis=1)
        share = confusion / np.maximum(counts, 1)[:, np.newaxis]
        renumbered = np.flatnonzero(self._renumbered(recent))
        if len(renumbered):
            return self._other_numbers(confusion, renumbered)
        bad = lasting(recent, self._mistaken)
        pairs = [(int(i), int(j)) for i, j in np.argwhere(bad) if i != j]
        pairs.sort(key=lambda pair: -share[pair])
        if not pairs:
            worst = int(np.argmin(np.where(np.diagonal(bad), np.diagonal(share), 2.0)))
            return Description(
                message=(
                    f"only {share[worst, worst]:.0%} of the {counts[worst]} samples of "
                    f"class {worst} are recognized, the others are taken "
                    f"mostly for {most_confused_with(confusion, worst)}"
                ),
                value=float(share[worst, worst]),
                threshold=self.min_diag,
                advice=ADVICE,
            )
        text = _some(confusion, pairs)
        return Description(
            message=f"mixed up, though the other classes are told apart: {text}",
            value=float(share[pairs[0]]),
            threshold=self.max_off_diag,
            advice=ADVICE,
        )

    def _other_numbers(self, confusion: Ints, classes: NDArray[np.intp]) -> Description:
        """Describe which classes are recognized under which numbers."""
        numbers = confusion[classes].argmax(axis=1)
        text = _some(
            confusion, list(zip(classes.tolist(), numbers.tolist(), strict=True))
        )
        taken = confusion[classes, numbers].sum()
        return Description(
            message=(
                "classes are told apart, but under other numbers than their labels "
                f"have here: {text}"
            ),
            value=float(taken / confusion[classes].sum()),
            threshold=self.learned,
            advice=NUMBERS,
        )


def _some(confusion: Ints, pairs: list[tuple[int, int]]) -> str:
    """The first of some pairs of label and prediction, in words."""
    counts = confusion.sum(axis=1)
    text = ", ".join(
        f"{i} is taken for {j} ({confusion[i, j] / counts[i]:.0%} of {counts[i]})"
        for i, j in pairs[:SHOWN]
    )
    return f"{text} and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else text


def _of_others(counts: Ints) -> Ints:
    """Label x prediction: the sum over all other classes."""
    others: Ints = counts.sum() - counts[:, np.newaxis] - counts[np.newaxis, :]
    np.fill_diagonal(others, counts.sum() - counts)
    return others


def _at_least(part: Ints, whole: Ints) -> Floats:
    """Lower end of the Wilson interval of a share; 0 without samples."""
    n = np.maximum(whole, 1).astype(np.float64)
    share = part / n
    z2 = CERTAINTY**2
    middle = share + z2 / (2 * n)
    spread = CERTAINTY * np.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low: Floats = np.where(whole > 0, (middle - spread) / (1 + z2 / n), 0.0)
    return low
