"""UnshuffledData: batches that come in the order of their classes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import percent
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


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UnshuffledData(Rule):
    """Report classifiers whose batches come in the order of their classes.

    Args:
        between_percent: Batches are not random if at least this percentage of the
            labels' variance is between batches, in every stretch of the training.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    stage = Stage.SETUP

    between_percent: float = 50.0

    def __post_init__(self) -> None:
        check_number(self, "between_percent", above=0.0, most=100.0)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of labels, and how many samples the model is given."""
        return (
            *with_beginning(Needs(collections=frozenset({"labels"}))),
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
        """The first batches."""
        return BATCHES

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that there are no classes, if so."""
        if training.is_regression:
            return NO_CLASSES
        return Rule.inapplicable(self, training)

    def selects(self, tensor: TensorInfo) -> bool:
        """Select labels, and inputs of the model, which show the number of samples."""
        return tensor.role in ("label", "model_input")

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
                is_bad = 100.0 * between[j] >= self.between_percent
                severities[j - table.start] = Severity.WARNING if is_bad else OK
        return table.judge_one(
            table.names[i],
            severities,
            lambda j: self._describe(100.0 * float(between[j + table.start])),
        )

    def _describe(self, share: float) -> Description:
        return Description(
            message=(
                f"The data is not shuffled: {percent(share)} of the labels' variance "
                "is between batches, throughout the training. Each batch has only a "
                "few of the classes, and the next batches have the same ones."
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
