"""UnshuffledData: batches that are drawn in the order of their classes, or repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs, with_beginning
from tdbg.modes import TRAINING
from tdbg.rules.columns import kind_of
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
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

CLASSIFIERS = frozenset({Kind.CROSS_ENTROPY, Kind.NLL})
# Batches that one verdict takes together, besides as many first ones; and the least.
BATCHES, MIN_BATCHES = 50, 10
# After these there is a verdict at every so many rows.
EVERY = 10
# Labels of a batch, at least: the mean of fewer scatters, so that smaller batches are
# taken together with the next ones.
MIN_LABELS = 8
ROUNDING = 1e-12
# Two classes may take turns on purpose (real and made up, source and target); those of
# sorted data stay for this share of all batches.
STAYS = 0.7


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UnshuffledData(Rule):
    """Report classifiers whose batches come in the order of their classes.

    Args:
        between_percent: The percentage of the variance of the labels that is between
            batches, from which on they are not drawn at random.

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
        """Rows of labels."""
        return with_beginning(Needs(collections=frozenset({"labels"})))

    @property
    def first_verdict(self) -> str:
        """What its first verdict needs."""
        return f"labels of a classifier at {MIN_BATCHES} recorded steps of training"

    @property
    def lookback(self) -> int:
        """The last batches."""
        return BATCHES - 1

    @property
    def head_rows(self) -> int:
        """The first batches."""
        return BATCHES

    def selects(self, tensor: TensorInfo) -> bool:
        """Select labels."""
        return tensor.role == "label"

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the labels of each classifier."""
        for table in window.tables(*TRAINING):
            model_info = window.model_info_at(int(table.steps[-1]))
            for i, name in enumerate(table.names):
                is_judged = "int" in table.dtypes[i] and name.endswith("_input_1")
                if is_judged and kind_of(model_info, name) in CLASSIFIERS:
                    yield self._judge(table, i)

    def _judge(self, table: Table, i: int) -> Evaluation:
        # A label below zero tells the loss to pass over a sample.
        known = table.known[i] & (table["min"][i] >= 0)
        rows = np.flatnonzero(known)
        severities = np.full(len(table.steps) - table.start, UNKNOWN, dtype=np.int8)
        between = np.full(len(table.steps), np.nan)
        for at, j in enumerate(rows.tolist()):
            # Later ones tell little that is new, each by itself.
            is_due = table.ordinal[i, j] <= BATCHES or table.ordinal[i, j] % EVERY == 0
            if j < table.start or not is_due:
                continue
            last = rows[max(0, at + 1 - BATCHES) : at + 1]
            first = rows[: at + 1][table.ordinal[i, rows[: at + 1]] <= BATCHES]
            batches = np.union1d(first, last)
            parts = _parts(table["count"][i, batches])
            if len(parts) >= MIN_BATCHES:
                between[j] = _between(table, i, batches, parts)
                is_bad = 100.0 * between[j] >= self.between_percent
                severities[j - table.start] = Severity.WARNING if is_bad else OK
        return table.judge_one(
            table.names[i],
            severities,
            lambda j: self._describe(100.0 * float(between[j + table.start])),
        )

    def _describe(self, percent: float) -> Description:
        return Description(
            message=(
                f"{percent:.0f} % of the variance of the labels is between batches: "
                "each batch has few of the classes, and the next ones have the same"
            ),
            value=percent,
            threshold=self.between_percent,
            since=0,
            advice=(
                "shuffle the training data (DataLoader(..., shuffle=True), or a "
                "permutation of all samples in each epoch): the model forgets each "
                "class while it learns the next"
            ),
        )


def _parts(counts: Floats) -> Ints:
    """The first of the batches of each part that has labels enough."""
    if counts.min(initial=np.inf) >= MIN_LABELS:
        return np.arange(len(counts))
    part = (np.cumsum(counts) - counts) // MIN_LABELS
    return np.flatnonzero(np.diff(part, prepend=-1.0))


def _between(table: Table, i: int, batches: Ints, parts: Ints) -> float:
    """The part of the variance of the labels that is between batches, from 0 to 1.

    0 also where two classes take turns.

    Args:
        table: Has the labels, in row *i*.
        i: The row.
        batches: Their columns.
        parts: The first ones of those that are taken together.
    """
    counts, means = table["count"][i, batches], table["mean"][i, batches]
    sums, squares = counts * means, table["m2"][i, batches] + counts * means**2
    n, sums, squares = (np.add.reduceat(x, parts) for x in (counts, sums, squares))
    mean: Floats = sums / n
    middle = float(sums.sum() / n.sum())
    apart = float((n * (mean - middle) ** 2).sum())
    total = float(squares.sum() - n.sum() * middle**2)
    if total <= ROUNDING * float(squares.sum()):
        return 0.0
    classes = table["max"][i, batches].max() - table["min"][i, batches].min() + 1
    if classes <= 2:
        stays = np.abs(np.diff(mean)) < 0.5
        if stays.mean() < STAYS:
            return 0.0
    return apart / total
