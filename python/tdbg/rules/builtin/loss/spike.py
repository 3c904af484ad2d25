"""LossSpike: losses that jump up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tdbg.modes import TRAINING
from tdbg.rules.builtin.loss.loss_series import LossRule, losses_of
from tdbg.rules.builtin.loss.moving_goals import need_not_fall
from tdbg.rules.columns import median, median_and_deviation, streak_of_known
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Table,
    Window,
)
from tdbg.run.findings import Evidence, Severity, Stage

__all__ = ["LossSpike"]


# Rows whose median is the start of the loss.
N_START = 10


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpike(LossRule):
    """Report losses that jump far above what they had come to.

    Args:
        num_steps: Recorded steps before, whose median the loss is compared with.
        deviations: It must be above it by so many robust standard deviations
            (1.4826 times the median absolute deviation),
        of_way: by this share of the way that the loss had come down from its start,
        of_level: by this share of that median itself,
        of_tails: and, at the last step that patience asks for, by so many standard
            deviations of the steps before the first, which single high losses widen.
        patience: Recorded steps in a row at which this must hold.
        at_once: One step is enough where the loss is so many times the highest of
            those steps and of the first ones.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.LEARNING

    num_steps: int = 50
    deviations: float = 8.0
    of_way: float = 0.5
    of_level: float = 0.5
    of_tails: float = 5.0
    patience: int = 2
    at_once: float = 5.0

    def __post_init__(self) -> None:
        # With fewer, the start of the loss would be unknown at the first verdicts.
        check_number(self, "num_steps", least=N_START, whole=True)
        check_number(self, "deviations", above=0.0)
        check_number(self, "of_way", least=0.0)
        check_number(self, "of_level", least=0.0)
        check_number(self, "of_tails", least=0.0)
        check_number(self, "at_once", above=1.0)
        check_number(self, "patience", least=1, most=self.num_steps // 2, whole=True)

    @property
    def first_verdict(self) -> str:
        """What its first verdict needs."""
        return f"a loss at more than {self.num_steps} recorded steps of training"

    @property
    def lookback(self) -> int:
        """The rows before each of those that ``patience`` needs."""
        return self.num_steps + self.patience

    @property
    def head_rows(self) -> int:
        """The first rows, at which the loss began."""
        return N_START

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each loss of training."""
        for table in window.tables(*TRAINING):
            for i, role in enumerate(table.roles):
                if role == "loss":
                    yield self._judge(window, table, i)

    def _judge(self, window: Window, table: Table, i: int) -> Evaluation:
        rows = np.flatnonzero(table.known[i])
        # NaN is unknown, as is every comparison with it.
        loss = losses_of(table, i)[rows]
        first = loss[table.ordinal[i, rows] <= N_START]
        start = float(median(first))
        level = np.full(len(rows), np.nan)
        excess = np.full(len(rows), np.nan)
        limit = np.full(len(rows), np.nan)
        tails = np.full(len(rows), np.nan)
        highest = np.full(len(rows), np.nan)
        n = self.num_steps
        if len(rows) > n:
            before = sliding_window_view(loss, n)[:-1]
            middle, deviation = median_and_deviation(before)
            level[n:] = middle
            highest[n:] = np.maximum(before.max(axis=1), first.max(initial=0.0))
            # Statistics of the rows before the first one that `patience` needs.
            wide = self.of_tails * before.std(axis=1)
            late = min(self.patience - 1, len(wide))
            tails[n + late :] = wide[: len(wide) - late]
            excess[n:] = loss[n:] - middle
            limit[n:] = np.maximum.reduce(
                (
                    self.deviations * deviation,
                    self.of_way * np.maximum(start - middle, 0.0),
                    self.of_level * np.abs(middle),
                )
            )
        high = excess > limit
        streak = streak_of_known(high, np.ones_like(high))
        severities = np.full(len(table.steps), UNKNOWN, dtype=np.int8)
        severities[rows] = np.where(np.isnan(excess), UNKNOWN, OK)
        # High, but not for long enough yet, or as high as single losses before: neither
        # a finding nor OK.
        severities[rows[high]] = UNKNOWN
        jumps = (streak >= self.patience) & (excess > tails)
        jumps |= high & (highest > 0) & (loss > self.at_once * highest)
        severities[rows[jumps]] = Severity.WARNING
        found = np.flatnonzero(severities > OK)
        free = need_not_fall(window, table, i, self.num_steps, found)
        severities[found[free]] = UNKNOWN

        def describe(j: int) -> Description:
            k = int(np.searchsorted(rows, j + table.start))
            return Description(
                message=(
                    f"the loss has jumped to {loss[k]:.4g} from {level[k]:.4g}, the "
                    f"median of {n} steps before; it began at {start:.4g}"
                ),
                value=float(excess[k]),
                threshold=float(np.fmax(limit[k], tails[k])),
                evidence=Evidence(
                    "mean", float(level[k] + np.fmax(limit[k], tails[k]))
                ),
                advice=(
                    "look at the batches of these steps; go back to a checkpoint "
                    "before and skip them, clip gradients, lower the learning rate or "
                    "warm it up longer, and with Adam lower beta2 (0.95) or raise "
                    "epsilon"
                ),
            )

        return table.judge_one(table.names[i], severities[table.start :], describe)
