"""Classifiers: classes that are rare, and classes that are mistaken for others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.needs import Needs
from tdbg.rules._base import Rule, check_number, check_regex, finds
from tdbg.rules.data.batches import Pair, Stretch, pairs_of, stretches
from tdbg.rules.registry import register
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Description,
    Judgement,
    Table,
    TensorInfo,
    Window,
)

__all__ = ["ClassImbalance", "Confusion"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Labels and predictions are small; every fifth step tells the same as every one.
INTERVAL = 5
# Of a standard normal: how sure to be of a share before it is called too large.
CERTAINTY = 1.96
# A class of which so much more is recognized than before is still being learned, and
# so is everything if of all samples so much more is.
IMPROVEMENT = 0.1
IMPROVEMENT_OF_ALL = 0.02
# Classes and pairs that are named in a message.
SHOWN = 5


class _OfClassifiers(Rule):
    """What rules about labels and predictions have in common."""

    __slots__ = ()

    samples: int
    samples_per_class: int
    max_steps: int
    max_classes: int
    labels_regex: str | None
    predictions_regex: str | None

    def check(self) -> None:
        """Insist on sound parameters."""
        check_number(self, "samples", least=1, whole=True)
        check_number(self, "samples_per_class", least=1, whole=True)
        check_number(self, "max_steps", least=1, whole=True)
        check_number(self, "max_classes", least=2, whole=True)
        check_regex(self, "labels_regex")
        check_regex(self, "predictions_regex")

    @property
    def needs(self) -> Needs:
        """Values of labels and predictions, which are small, and rows to go by."""
        return Needs(
            collections=frozenset({"labels", "predictions"}),
            raw=True,
            interval=INTERVAL,
        )

    @property
    def look_back(self) -> int:
        """The batches that are taken together."""
        return self.max_steps

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
        levels = np.full((1, len(table.steps) - table.start), UNKNOWN, np.int8)
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
            levels[0, j] = Severity.WARNING if self.is_sick(stretch) else HEALTHY
        return Judgement(
            names=(table.names[pair.label],),
            steps=table.steps[table.start :],
            mode=table.mode,
            levels=levels,
            describe=lambda _, j: self.describe(found[j]),
        )

    @abstractmethod
    def is_sick(self, stretch: Stretch) -> bool:
        """Whether samples by label and prediction show the fault."""

    @abstractmethod
    def describe(self, stretch: Stretch) -> Description:
        """The fault in words."""


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassImbalance(_OfClassifiers):
    """Report classes that are rare in the data, or that are not learned at all.

    Args:
        threshold_imbalance: The most frequent class may have so many times the samples
            of the rarest one; one sample is added to both.
        threshold_misprediction: Share of a class's samples that may be taken for
            others, once the other classes are learned.
        learned: Share of right predictions of all other classes from which on these
            are learned.
        samples: Labels to judge by, at least.
        samples_per_class: Labels to judge by for each class, on average, at least.
        max_steps: Recorded steps to look at, at most.
        max_classes: With more classes nothing is said.
        labels_regex: Names of labels; None: the second input of each loss.
        predictions_regex: Names of predictions; None: the first input of each loss.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    threshold_imbalance: float = 10.0
    threshold_misprediction: float = 0.7
    learned: float = 0.7
    samples: int = 500
    samples_per_class: int = 20
    max_steps: int = 200
    max_classes: int = 1000
    labels_regex: str | None = None
    predictions_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "threshold_imbalance", above=1.0)
        check_number(self, "threshold_misprediction", above=0.0, most=1.0)
        check_number(self, "learned", above=0.0, most=1.0)
        self.check()

    def is_sick(self, stretch: Stretch) -> bool:
        """Whether a class is rare, or alone in not being learned."""
        counts = stretch.confusion.sum(axis=1)
        imbalance = (counts.max() + 1) / (counts.min() + 1)
        return bool(imbalance > self.threshold_imbalance or len(self._left(stretch)))

    def _left(self, stretch: Stretch) -> NDArray[np.intp]:
        """Classes that are not learned, and do not get better."""
        now, before = stretch.confusion, stretch.before
        if before is None or not stretch.has_predictions or _learns(now, before):
            return np.empty(0, np.intp)
        better = _recall(now) - _recall(before) > IMPROVEMENT
        bad = np.intersect1d(self._not_learned(now), self._not_learned(before))
        return bad[~better[bad]]

    def _not_learned(self, confusion: Ints) -> NDArray[np.intp]:
        counts = confusion.sum(axis=1)
        right = np.diagonal(confusion)
        others = (right.sum() - right) / np.maximum(counts.sum() - counts, 1)
        wrong = 1.0 - right / np.maximum(counts, 1)
        bad = (counts >= self.samples_per_class) & (others >= self.learned)
        return np.flatnonzero(bad & (wrong > self.threshold_misprediction))

    def describe(self, stretch: Stretch) -> Description:
        """How many samples each class has, and how many of them are mistaken."""
        confusion = stretch.confusion
        counts = confusion.sum(axis=1)
        most, least = int(counts.argmax()), int(counts.argmin())
        imbalance = (counts[most] + 1) / (counts[least] + 1)
        n = counts.sum()
        if imbalance > self.threshold_imbalance:
            rare = np.flatnonzero(
                (counts[most] + 1) > self.threshold_imbalance * (counts + 1)
            )
            mistaken = ""
            if stretch.has_predictions and counts[least]:
                wrong = 1 - confusion[least, least] / counts[least]
                mistaken = f"; {wrong:.0%} of class {least} are taken for other classes"
            return Description(
                message=(
                    f"of the last {n} samples {counts[most]} are of class {most} and "
                    f"{counts[least]} of class {least}, {imbalance:.0f} times less"
                    f"{mistaken}"
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
        bad = self._left(stretch)
        worst = max(bad, key=lambda i: 1 - confusion[i, i] / counts[i])
        wrong = float(1 - confusion[worst, worst] / counts[worst])
        return Description(
            message=(
                f"{wrong:.0%} of the {counts[worst]} samples of class {worst} are "
                f"taken for other classes, mostly for {_mostly(confusion, worst)}, "
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


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion(_OfClassifiers):
    """Report pairs of classes that stay mixed up when the others are told apart.

    A share counts by the lower end of its confidence interval (Wilson, 95 %).

    Args:
        max_off_diag: Share of a class's samples that may be taken for one other class.
        min_diag: Share of a class's samples that must be recognized.
        learned: Share of right predictions of all other classes from which on a class
            is compared with them.
        samples: Labels to judge by, at least.
        samples_per_class: Labels to judge by for each class, on average, at least.
        max_steps: Recorded steps to look at, at most.
        max_classes: With more classes nothing is said.
        labels_regex: Names of labels; None: the second input of each loss.
        predictions_regex: Names of predictions; None: the first input of each loss.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    max_off_diag: float = 0.25
    min_diag: float = 0.5
    learned: float = 0.8
    samples: int = 500
    samples_per_class: int = 30
    max_steps: int = 200
    max_classes: int = 100
    labels_regex: str | None = None
    predictions_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "max_off_diag", above=0.0, most=1.0)
        check_number(self, "min_diag", above=0.0, most=1.0)
        check_number(self, "learned", above=0.0, most=1.0)
        self.check()

    def is_sick(self, stretch: Stretch) -> bool:
        """Whether a class is alone in being mistaken."""
        return bool(self._left(stretch).any())

    def _left(self, stretch: Stretch) -> NDArray[np.bool_]:
        """Label x prediction: what is mixed up or missed, and does not get better."""
        now, before = stretch.confusion, stretch.before
        if before is None or not stretch.has_predictions or _learns(now, before):
            return np.zeros(now.shape, np.bool_)
        better = _recall(now) - _recall(before) > IMPROVEMENT
        return self._bad(now) & self._bad(before) & ~better[:, np.newaxis]

    def _bad(self, confusion: Ints) -> NDArray[np.bool_]:
        """Label x prediction: pairs that are mixed up, and missed classes."""
        counts = confusion.sum(axis=1)
        right = np.diagonal(confusion)
        taken = _at_least(confusion, counts[:, np.newaxis])
        np.fill_diagonal(taken, 0.0)
        missed = _at_least(counts - right, counts)
        bad = taken > self.max_off_diag
        bad |= np.diag(missed > 1.0 - self.min_diag)
        n = len(counts)
        for i, j in np.argwhere(bad):
            # All but the two of them, or but the one.
            others = np.ones(n, bool)
            others[[i, j]] = False
            total = counts[others].sum()
            known = total and right[others].sum() / total >= self.learned
            if not known:
                # With two classes there are no others to compare with.
                bad[i, j] = False
        return bad

    def describe(self, stretch: Stretch) -> Description:
        """Which pairs are mixed up."""
        confusion = stretch.confusion
        counts = confusion.sum(axis=1)
        share = confusion / np.maximum(counts, 1)[:, np.newaxis]
        bad = self._left(stretch)
        pairs = [(int(i), int(j)) for i, j in np.argwhere(bad) if i != j]
        pairs.sort(key=lambda pair: -share[pair])
        if not pairs:
            worst = int(np.argmin(np.where(np.diagonal(bad), np.diagonal(share), 2.0)))
            return Description(
                message=(
                    f"only {share[worst, worst]:.0%} of the {counts[worst]} samples of "
                    f"class {worst} are recognized, the others are taken for "
                    f"{_mostly(confusion, worst)}"
                ),
                value=float(share[worst, worst]),
                threshold=self.min_diag,
                advice=_CONFUSED,
            )
        told = ", ".join(
            f"{i} is taken for {j} ({share[i, j]:.0%} of {counts[i]})"
            for i, j in pairs[:SHOWN]
        )
        more = f" and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
        return Description(
            message=f"mixed up, though the other classes are told apart: {told}{more}",
            value=float(share[pairs[0]]),
            threshold=self.max_off_diag,
            advice=_CONFUSED,
        )


_CONFUSED = (
    "look at inputs of these classes: whether labels are swapped, whether the "
    "augmentation makes one look like the other (a mirrored 2, a turned 6), whether "
    "the resolution is enough; then add samples that tell them apart"
)


def _recall(confusion: Ints) -> Floats:
    """Share of each class that is recognized."""
    recall: Floats = np.diagonal(confusion) / np.maximum(confusion.sum(axis=1), 1)
    return recall


def _learns(now: Ints, before: Ints) -> bool:
    """Whether the model as a whole still gets better."""
    right = [np.trace(part) / max(1, int(part.sum())) for part in (now, before)]
    return bool(right[0] - right[1] > IMPROVEMENT_OF_ALL)


def _at_least(part: Ints, whole: Ints) -> Floats:
    """Lower end of the Wilson interval of a share; 0 of nothing."""
    n = np.maximum(whole, 1).astype(np.float64)
    share = part / n
    z2 = CERTAINTY**2
    middle = share + z2 / (2 * n)
    spread = CERTAINTY * np.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low: Floats = np.where(whole > 0, (middle - spread) / (1 + z2 / n), 0.0)
    return low


def _mostly(confusion: Ints, label: int) -> int:
    wrong = confusion[label].copy()
    wrong[label] = -1
    return int(wrong.argmax())


def _some(classes: NDArray[np.intp]) -> str:
    shown = ", ".join(map(str, classes[:SHOWN].tolist()))
    return f"{shown} and {len(classes) - SHOWN} more" if len(classes) > SHOWN else shown
