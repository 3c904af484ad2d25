"""Losses that do not fall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.modes import TRAINING, ModeKeys
from tdbg.rules._checks import check_number, check_regex, finds, mode_of
from tdbg.rules.loss.of_losses import OfLosses, in_game, milder
from tdbg.rules.loss.stretches import FIRST, Trend, trend_of
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

__all__ = ["LossNotDecreasing"]

# How sure to be, in standard errors.
CERTAINTY = 2.0


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LossNotDecreasing(OfLosses):
    """Report losses that do not fall, beyond the noise of their batches.

    The medians of two stretches of ``num_steps`` recorded steps, one after the other,
    are compared.  Nothing is reported while the difference could be noise, nor
    while the loss is well below where it began: what has fallen may be flat.

    Args:
        num_steps: Recorded steps in each of the two stretches.
        diff_percent: The loss must fall by at least this percentage from one stretch
            to the next.
        learned_percent: A loss that is this percentage below its first ones has
            learned, and is not reported for being flat.  100: always report.
        mode: The mode to judge, or its name; None: training.
        tensor_regex: Judge losses of such names only.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    num_steps: int = 50
    diff_percent: float = 1.0
    learned_percent: float = 50.0
    mode: ModeKeys | str | None = None
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "num_steps", least=2, whole=True)
        check_number(self, "diff_percent", least=0.0, most=100.0)
        check_number(self, "learned_percent", above=0.0, most=100.0)
        mode_of(self, "mode")
        check_regex(self, "tensor_regex")

    @property
    def look_back(self) -> int:
        """Both stretches."""
        return 2 * self.num_steps - 1

    @property
    def anchor(self) -> int:
        """Where the loss began."""
        return FIRST

    def selects(self, tensor: TensorInfo) -> bool:
        """Losses, of such names."""
        if not OfLosses.selects(self, tensor):
            return False
        return self.tensor_regex is None or finds(self.tensor_regex, tensor.name)

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge each loss by itself."""
        mode = mode_of(self, "mode")
        modes = TRAINING if mode is None else (mode,)
        for table in window.tables(*modes):
            game = in_game(window, table)
            for i in range(len(table.names)):
                judgement = self._judge(table, i, game)
                if judgement is not None:
                    yield judgement

    def _judge(self, table: Table, i: int, game: NDArray[np.bool_]) -> Judgement | None:
        trend = trend_of(table, i, self.num_steps)
        if trend is None:
            return None

        def describe(j: int) -> Description:
            return self._describe(
                float(trend.before[j]), float(trend.now[j]), trend.start
            )

        steps, levels = table.steps[trend.columns], self._levels(trend)
        judged = Judgement.of_one(table.names[i], steps, table.mode, levels, describe)
        return milder(judged, game[trend.columns], Severity.INFO)

    def _levels(self, trend: Trend) -> NDArray[np.int8]:
        before, now, error, start = trend.before, trend.now, trend.error, trend.start
        # Comparisons with NaN are false: what is not known stays so.
        wanted = self.diff_percent / 100.0 * np.abs(before)
        has_learned = now <= start - self.learned_percent / 100.0 * abs(start)
        # To be well again it must surely fall, so that noise ends no episode.
        falls = (before - now >= wanted) & (before - now > CERTAINTY * error)
        surely_not = before - now + CERTAINTY * error < wanted
        levels = np.full(len(now), UNKNOWN, dtype=np.int8)
        levels[surely_not] = Severity.WARNING
        levels[falls | has_learned] = HEALTHY
        return levels

    def _describe(self, before: float, now: float, start: float) -> Description:
        change = 100.0 * (before - now) / abs(before) if before else 0.0
        since = 100.0 * (start - now) / abs(start) if start else 0.0
        direction = "fell" if change > 0 else "rose"
        moved = f"{direction} by {abs(change):.2g} %" if change else "stayed the same"
        rising = now > start
        # Less than what is asked for could as well be noise, and names no cause.
        has_risen = now - start > self.diff_percent / 100.0 * abs(start)
        return Description(
            message=(
                f"the median loss of {self.num_steps} recorded steps {moved}, from "
                f"{before:.4g} to {now:.4g}, where a fall of {self.diff_percent:g} % "
                f"is asked for; {abs(since):.2g} % {'above' if rising else 'below'} "
                "where it began"
            ),
            value=change,
            threshold=self.diff_percent,
            advice=(
                "the loss rises: lower the learning rate, and check the sign of the "
                "loss and the labels"
                if has_risen
                else "the training does not learn: try a learning rate 10 times "
                "higher and 10 times lower, check that labels belong to their inputs "
                "and that the optimizer holds the parameters, and see whether it can "
                "learn a single batch by heart"
            ),
        )
