"""Confusion: classes that the model keeps confusing after it learned the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import percent, plural
from tdbg.modes import ModeKeys
from tdbg.rules.builtin.data.classifier_batches import RecentBatches
from tdbg.rules.builtin.data.classifier_rule import (
    LASTS,
    SHOWN,
    ClassifierRule,
    lasting,
    most_confused_with,
    share_at_least,
)
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import OK, Bools, Description
from tdbg.run.findings import Severity

__all__ = ["Confusion"]

Ints = NDArray[np.int64]

# Shares of a class that are taken for one other, and that are not recognized, which no
# likeness between two classes explains.
MOST, NEARLY_ALL = 0.5, 0.7
# Least number of samples in a class: three of three would satisfy one interval, but
# there is an interval for each pair.
LEAST = 10
ADVICE = (
    "Look at inputs of these classes. Labels may be swapped, augmentation may make one "
    "class look like another (a mirrored 2, a rotated 6), or the resolution may be too "
    "low. Then add samples that show the difference."
)
NUMBERS = (
    "Number the classes of evaluation as those of training. Compare class_to_idx of "
    "the two folders (one may lack a class), encode labels with the encoder that you "
    "fitted on the training data, and check whether one of them counts from 1."
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion(ClassifierRule):
    """Report classes that a model confuses after it has learned the others.

    The rule judges a share by the lower end of its confidence interval (Wilson, 95%).
    It also reports evaluation labels that number the classes in another way.  The
    finding is a warning where most samples of a class are taken for another one, and
    otherwise an info: classes may resemble each other by nature.

    Args:
        max_off_diag: Largest share of a class's samples that the model may take for
            one other class.
        min_diag: Least share of a class's samples that the model must recognize.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

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
        """The data that a first verdict needs."""
        return (
            f"{plural(self.samples_per_class, 'sample')} of each of two classes, from "
            "a classification loss, and a model that recognizes most classes"
        )

    def level(self, recent: RecentBatches) -> int:
        """Return a warning where the model is wrong for most, and else an info."""
        level = ClassifierRule.level(self, recent)
        if level <= OK:
            return level
        sure = lasting(recent, self._mostly_mistaken)
        is_sure = bool(sure.any() or self._renumbered(recent).any())
        return int(Severity.WARNING if is_sure else Severity.INFO)

    def is_sick(self, recent: RecentBatches) -> bool:
        """Return whether classes are confused, or numbered differently."""
        mixed_up = lasting(recent, self._mistaken)
        return bool(mixed_up.any() or self._renumbered(recent).any())

    def _renumbered(self, recent: RecentBatches) -> Bools:
        """Find classes that the model recognizes under the number of another class.

        The model must recognize nearly all samples, under whatever number.  Training
        teaches the numbers of its own labels, so only those of evaluation can differ.
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
        # A single class is a confused pair; with two classes, true and false swap.
        is_known &= np.count_nonzero(counts) > 2 and np.count_nonzero(apart & other) > 1
        result: Bools = apart & other & is_known
        return result

    def _are_separated(self, confusion: Ints, numbers: Ints) -> Bools:
        """Find classes that nearly always get this number, unlike all others."""
        counts = confusion.sum(axis=1)
        taken = confusion[np.arange(len(confusion)), numbers]
        said = confusion.sum(axis=0)[numbers]
        separated: Bools = (
            (counts >= LEAST)
            & (taken >= self.learned * counts)
            & (taken >= self.learned * said)
        )
        return separated

    def _mostly_mistaken(self, confusion: Ints) -> Bools:
        """Find what is mistaken by more than classes that resemble each other."""
        counts = confusion.sum(axis=1)
        sure = share_at_least(confusion, counts[:, np.newaxis]) > MOST
        missed = share_at_least(counts - np.diagonal(confusion), counts)
        np.fill_diagonal(sure, missed > NEARLY_ALL)
        result: Bools = self._mistaken(confusion) & sure
        return result

    def _mistaken(self, confusion: Ints) -> Bools:
        """Find, label x prediction, confused pairs and missed classes."""
        counts = confusion.sum(axis=1)
        right = np.diagonal(confusion)
        taken = share_at_least(confusion, counts[:, np.newaxis])
        np.fill_diagonal(taken, 0.0)
        missed = share_at_least(counts - right, counts)
        bad = taken > self.max_off_diag
        # With two classes, a constant prediction is right about one of them.
        if np.count_nonzero(counts) > 2:
            bad |= np.diag(missed > 1.0 - self.min_diag)
        bad &= (counts >= LEAST)[:, np.newaxis]
        # With two classes, there are no others to compare with.
        n_others = _of_others(counts)
        separated = _of_others(right) / np.maximum(n_others, 1) >= self.learned
        return bad & separated & (n_others > 0)

    def describe(self, recent: RecentBatches) -> Description:
        """Describe which pairs the model confuses."""
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
                    f"The model recognizes only {percent(100 * share[worst, worst])} "
                    f"of the {counts[worst]:,} samples of class {worst}, and takes the "
                    f"others mostly for class {most_confused_with(confusion, worst)}."
                ),
                value=float(share[worst, worst]),
                threshold=self.min_diag,
                advice=ADVICE,
            )
        text = _some(confusion, pairs)
        return Description(
            message=(
                "The model confuses classes although it has learned the others. It "
                f"takes {text}."
            ),
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
                "The labels of this evaluation number the classes differently from "
                "those of training: the model distinguishes the classes, but takes "
                f"{text}."
            ),
            value=float(taken / confusion[classes].sum()),
            threshold=self.learned,
            advice=NUMBERS,
        )


def _some(confusion: Ints, pairs: list[tuple[int, int]]) -> str:
    """Return the first few pairs of label and prediction, in words."""
    counts = confusion.sum(axis=1)
    text = ", ".join(
        f"class {i} for {j} ({percent(100 * confusion[i, j] / counts[i])} of "
        f"{plural(int(counts[i]), 'sample')})"
        for i, j in pairs[:SHOWN]
    )
    return f"{text} and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else text


def _of_others(counts: Ints) -> Ints:
    """Return, label x prediction, the sum over all other classes."""
    others: Ints = counts.sum() - counts[:, np.newaxis] - counts[np.newaxis, :]
    np.fill_diagonal(others, counts.sum() - counts)
    return others
