"""UnshuffledData: batches that come in the order of their classes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import number, percent
from tdbg.modes import TRAINING
from tdbg.rules.columns import kind_of
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.training_facts import NO_CLASSES, TrainingFacts
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Floats,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity, Stage

__all__ = ["UnshuffledData"]

Ints = NDArray[np.intp]

CLASSIFIERS = frozenset(
    {Kind.CROSS_ENTROPY, Kind.CROSS_ENTROPY_OF_PROBABILITIES, Kind.NLL}
)
# Last batches that a verdict combines with as many first ones; and the least number.
BATCHES, MIN_BATCHES = 50, 10
# After these, the rule gives a verdict once in this many rows.
EVERY = 10
# Least number of samples in a batch: the mean of fewer scatters, so the rule combines
# smaller batches with the next ones.
MIN_SAMPLES = 8
# The rule divides the batches into this many stretches of at least this many batches.
# Sorted batches have few classes in every stretch.  Where the mix of classes changes
# for good (a rare class, a curriculum), the stretches before or after have all
# classes.
STRETCHES, MIN_STRETCH = 4, 5
ROUNDING = 1e-12
# Two classes may alternate on purpose (real and fake, source and target); in sorted
# data, a class stays for this share of all batches.
STAYS = 0.7
# The order does harm if the loss exceeds that of a guess by this factor when the class
# changes, at the median of at least so many changes; where the classes come in the
# order of their numbers, any excess and fewer changes are enough.
HARM, HARM_IN_ORDER = 1.25, 1.0
MIN_CHANGES, MIN_CHANGES_IN_ORDER = 3, 2
# Means of labels that are further apart are those of other classes.
CHANGED = 0.5


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UnshuffledData(Rule):
    """Report classifiers whose batches come in the order of their classes.

    The finding is a warning if the order does harm: whenever the class changes, the
    loss is higher than that of a guess, since the model has forgotten this class.

    Args:
        between_percent: Batches are not random if at least this percentage of the
            labels' variance is between batches, in every stretch of the training.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.SETUP

    between_percent: float = 50.0

    def __post_init__(self) -> None:
        check_number(self, "between_percent", above=0.0, most=100.0)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of labels and losses, and how many samples the model is given."""
        return (
            *with_beginning(Needs(collections=frozenset({"labels"}))),
            Needs(collections=frozenset({"losses"})),
            Needs(collections=frozenset({"model_inputs"}), first_steps=1),
        )

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return f"labels of a classifier at {MIN_BATCHES} recorded steps of training"

    @property
    def lookback(self) -> int:
        """The last batches."""
        return BATCHES - 1

    @property
    def head_rows(self) -> int:
        """The first batches, and losses."""
        return BATCHES

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that there are no classes, if so."""
        if training.is_regression:
            return NO_CLASSES
        return Rule.inapplicable(self, training)

    def selects(self, tensor: TensorInfo) -> bool:
        """Select labels, losses, and inputs of the model, which count samples."""
        return tensor.role in ("label", "loss", "model_input")

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the labels of each classifier."""
        for table in window.tables(*TRAINING):
            model_info = window.model_info_at(int(table.steps[-1]))
            for i, name in enumerate(table.names):
                is_judged = table.roles[i] == "label" and "int" in table.dtypes[i]
                is_judged &= name.endswith("_input_1")
                if is_judged and kind_of(model_info, name) in CLASSIFIERS:
                    yield self._judge(table, i)

    def _judge(self, table: Table, i: int) -> Evaluation:
        # A label below zero tells the loss to skip a sample.
        known = table.known[i] & (table["min"][i] >= 0)
        rows = np.flatnonzero(known)
        n_first = int(np.searchsorted(table.ordinal[i, rows], BATCHES, side="right"))
        per_sample = _labels_of_a_sample(table, i)
        severities = np.full(len(table.steps) - table.start, UNKNOWN, dtype=np.int8)
        between = np.full(len(table.steps), np.nan)
        peaks = np.full(len(table.steps), np.nan)
        for at, j in enumerate(rows.tolist()):
            # A single later batch adds little.
            is_due = table.ordinal[i, j] <= BATCHES or table.ordinal[i, j] % EVERY == 0
            if j < table.start or not is_due:
                continue
            last = max(n_first, at + 1 - BATCHES)
            batches = rows[np.r_[: min(n_first, at + 1), last : at + 1]]
            parts = _parts(table["count"][i, batches] / per_sample)
            if len(parts) >= MIN_BATCHES:
                between[j] = _between(table, i, batches, parts)
                if 100.0 * between[j] < self.between_percent:
                    severities[j - table.start] = OK
                    continue
                guess = _loss_of_a_guess(table, i, batches)
                is_sorted = _come_in_order(table, i, batches)
                peaks[j] = _loss_at_changes(table, i, batches, is_sorted)
                harms = peaks[j] > (HARM_IN_ORDER if is_sorted else HARM) * guess
                severities[j - table.start] = (
                    Severity.WARNING if harms else Severity.INFO
                )

        def describe(j: int) -> Description:
            at = j + table.start
            harms = severities[j] == Severity.WARNING
            return self._describe(
                100.0 * float(between[at]), float(peaks[at]) if harms else None
            )

        return table.judge_one(table.names[i], severities, describe)

    def _describe(self, share: float, peak: float | None) -> Description:
        if peak is None:
            return Description(
                message=(
                    f"Batches have few of the classes each: {percent(share)} of the "
                    "labels' variance is between batches. The loss shows no harm: when "
                    "the classes change, it does not exceed that of a guess."
                ),
                value=share,
                threshold=self.between_percent,
                since=0,
                advice=lambda words: (
                    "If the order is meant (a stream, a curriculum, one task a batch), "
                    f"do nothing. Otherwise, shuffle the training data "
                    f"({words.shuffling}, or permute all samples in each epoch)."
                ),
            )
        return Description(
            message=(
                f"The data is not shuffled: {percent(share)} of the labels' variance "
                "is between batches, throughout the training. Each batch has only a "
                "few of the classes. When the classes change, the loss rises to "
                f"{number(peak, 3)}, which is more than that of a guess."
            ),
            value=share,
            threshold=self.between_percent,
            since=0,
            advice=lambda words: (
                f"Shuffle the training data ({words.shuffling}, or permute all samples "
                "in each epoch). In this order, the model forgets each class while it "
                "learns the next."
            ),
        )


def _loss_of_a_guess(table: Table, i: int, batches: Ints) -> float:
    """Return the loss of a model that knows nothing; NaN without losses.

    It is the cross-entropy of equal chances for all classes so far or, before all of
    them have come, the first loss.
    """
    at = _loss_of(table, i)
    if at is None:
        return math.nan
    lowest, highest = table["min"][i, batches].min(), table["max"][i, batches].max()
    first = table["mean"][at, table.known[at] & (table.ordinal[at] == 1)]
    return max([math.log(float(highest - lowest) + 1.0), *map(float, first)])


def _loss_of(table: Table, i: int) -> int | None:
    """Return the row of the loss that is given these labels."""
    name = table.names[i].removesuffix("_input_1") + "_output_0"
    return table.names.index(name) if name in table.names else None


def _changes(table: Table, i: int, rows: Ints) -> tuple[Ints, Floats]:
    """Return after which of these batches the classes change, and by how much.

    Batches that are not close, as the first and the last ones, are of no one change.
    """
    steps = np.diff(table.steps[rows])
    by = np.diff(table["mean"][i, rows])
    at = np.flatnonzero((np.abs(by) >= CHANGED) & (steps <= 2 * np.median(steps)))
    return at, by[at]


def _come_in_order(table: Table, i: int, rows: Ints) -> bool:
    """Return whether classes come by their numbers, and again in the next epoch."""
    at, by = _changes(table, i, rows)
    means = table["mean"][i, rows]
    falls = at[by < 0]
    ends = (means[falls] > means.max() - 1.0) & (means[falls + 1] < means.min() + 1.0)
    return bool(ends.all()) and int((by > 0).sum()) >= MIN_CHANGES_IN_ORDER


def _loss_at_changes(table: Table, i: int, rows: Ints, is_sorted: bool) -> float:
    """Return the median of the highest losses around changes of the classes.

    The first half of all changes does not count: the model has learned little by then.
    NaN: there are too few changes, or no losses.

    Args:
        table: Holds the labels and the loss.
        i: Row of the labels.
        rows: Columns of the batches.
        is_sorted: Whether classes come by their numbers.
    """
    at = _loss_of(table, i)
    if at is None:
        return math.nan
    loss = np.where(table.known[at], table["mean"][at], np.nan)
    peaks = []
    for k in _changes(table, i, rows)[0].tolist():
        losses = loss[rows[k] + 1 : rows[k + 1] + 1]
        if not np.isnan(losses).all():
            peaks.append(float(np.nanmax(losses)))
    later = peaks[len(peaks) // 2 :]
    least = MIN_CHANGES_IN_ORDER if is_sorted else MIN_CHANGES
    return float(np.median(later)) if len(later) >= least else math.nan


def _labels_of_a_sample(table: Table, i: int) -> float:
    """Return how many labels a sample has, such as one for each pixel or token.

    The first dimension counts samples: that of the labels or, where the program
    flattened these, that of an input of the same step.
    """
    n_labels = math.prod(table.shapes[i])
    begins = np.flatnonzero(table.ordinal[i] == 1)
    given = [i] + [
        k
        for k, role in enumerate(table.roles)
        if role == "model_input" and table.present[k, begins].any()
    ]
    n_samples = [shape[0] for k in given if (shape := table.shapes[k]) and shape[0]]
    return max((n_labels / n for n in n_samples if n_labels % n == 0), default=1.0)


def _parts(samples: Floats) -> Ints:
    """Return the first batch of each part that has enough samples."""
    if samples.min(initial=np.inf) >= MIN_SAMPLES:
        return np.arange(len(samples))
    part = (np.cumsum(samples) - samples) // MIN_SAMPLES
    return np.flatnonzero(np.diff(part, prepend=-1.0))


def _between(table: Table, i: int, batches: Ints, parts: Ints) -> float:
    """Return the share of the labels' variance that is between batches, from 0 to 1.

    The stretch of batches with the least share counts.  The share is 0 where two
    classes alternate.

    Args:
        table: Holds the labels.
        i: Row of the labels.
        batches: Columns of the batches.
        parts: Index of the first batch of each part.
    """
    counts, means = table["count"][i, batches], table["mean"][i, batches]
    sums, squares = counts * means, table["m2"][i, batches] + counts * means**2
    n, sums, squares = (np.add.reduceat(x, parts) for x in (counts, sums, squares))
    mean: Floats = sums / n
    total = float(squares.sum() - sums.sum() ** 2 / n.sum())
    if total <= ROUNDING * float(squares.sum()):
        return 0.0
    classes = table["max"][i, batches].max() - table["min"][i, batches].min() + 1
    if classes <= 2:
        stays = np.abs(np.diff(mean)) < 0.5
        if stays.mean() < STAYS:
            return 0.0
    length = max(MIN_STRETCH, len(parts) // STRETCHES)
    # The remaining batches belong to the last stretch.
    stretches = np.arange(0, len(parts) - length + 1, length)
    within = np.add.reduceat(squares - sums * mean, stretches)
    widest = float((within / np.add.reduceat(n, stretches)).max())
    return max(0.0, 1.0 - widest * float(n.sum()) / total)
