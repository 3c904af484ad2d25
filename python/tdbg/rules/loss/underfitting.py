"""Models that have learned what they can, and that is too little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.modes import TRAINING, ModeKeys
from tdbg.needs import BEGINNING, Needs, with_beginning
from tdbg.rules._checks import check_number
from tdbg.rules.loss.given import unexpected
from tdbg.rules.loss.of_losses import OfLosses, in_game, losses_of, milder
from tdbg.rules.loss.stretches import FIRST, Trend, trend_of
from tdbg.rules.medians import median
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

__all__ = ["Underfitting"]

# How sure to be, in standard errors.
CERTAINTY = 2.0


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Underfitting(OfLosses):
    """Report models whose losses of training and validation stay high, and flat.

    Or cannot but stay high: a cross-entropy is given probabilities for scores, a
    likelihood those of a softmax over the wrong axis, or a squared error all targets
    for each output.

    Args:
        num_steps: Recorded steps in each of the two stretches of training that are
            compared.
        flat_percent: A loss that falls by less than this percentage from one stretch
            to the next is flat.
        learned_percent: A loss that fell by this percentage of where it began, in
            training or in validation, is not high.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

    num_steps: int = 100
    flat_percent: float = 2.0
    learned_percent: float = 30.0

    def __post_init__(self) -> None:
        check_number(self, "num_steps", least=2, whole=True)
        check_number(self, "flat_percent", above=0.0, most=100.0)
        check_number(self, "learned_percent", above=0.0, most=100.0)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Losses; rows of what they are given, and values of it at first."""
        given = Needs(collections=frozenset({"predictions", "labels"}))
        predictions = Needs(
            collections=frozenset({"predictions"}),
            raw=True,
            interval=1,
            first_steps=BEGINNING,
        )
        # Of labels only the shape is asked for.
        labels = Needs(collections=frozenset({"labels"}), raw=True, first_steps=1)
        losses = Needs(collections=frozenset({"losses"}))
        return losses, *with_beginning(given), predictions, labels

    def selects(self, tensor: TensorInfo) -> bool:
        """Losses and what they are given."""
        return tensor.role in {"loss", "prediction", "label"}

    @property
    def look_back(self) -> int:
        """Both stretches."""
        return 2 * self.num_steps - 1

    @property
    def anchor(self) -> int:
        """Where the loss began."""
        return FIRST

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge each loss of training, with what validation says of it."""
        evaluated = window.table(ModeKeys.EVAL)
        for table in window.tables(*TRAINING):
            yield from unexpected(table)
            game = in_game(window, table)
            for i, name in enumerate(table.names):
                if table.roles[i] != "loss":
                    continue
                trend = trend_of(table, i, self.num_steps)
                if trend is not None:
                    steps = table.steps[trend.columns]
                    held = self._validation(evaluated, name, steps)
                    judged = self._judge(name, table.mode, steps, trend, held)
                    yield milder(judged, game[trend.columns], Severity.INFO)

    def _validation(
        self, table: Table | None, name: str, steps: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Median of the last losses of evaluation before each step; NaN: none."""
        result = np.full(len(steps), np.nan)
        if table is None or name not in table.names:
            return result
        i = table.names.index(name)
        rows = np.flatnonzero(table.known[i])
        loss = losses_of(table, i)[rows]
        ends = np.searchsorted(table.steps[rows], steps)
        medians: dict[int, float] = {}
        for k, end in enumerate(ends.tolist()):
            if end not in medians:
                recent = loss[max(0, end - self.num_steps) : end]
                medians[end] = float(median(recent))
            result[k] = medians[end]
        return result

    def _judge(
        self,
        name: str,
        mode: ModeKeys,
        steps: NDArray[np.int64],
        trend: Trend,
        held: NDArray[np.float64],
    ) -> Judgement:
        before, now, start = trend.before, trend.now, trend.start
        limit = start - self.learned_percent / 100.0 * abs(start)
        flat = self.flat_percent / 100.0 * np.abs(before)
        sure = CERTAINTY * trend.error
        surely_flat = (before - now + sure < flat) & (now - before < flat + sure)
        levels = np.full(len(steps), UNKNOWN, dtype=np.int8)
        # Before there are two stretches it is not known where the loss began.
        sound = (before - now > flat) | (now <= limit) | (held <= limit)
        levels[sound & ~np.isnan(now)] = HEALTHY
        high = (now > limit) & ~(held <= limit)
        levels[surely_flat & high] = Severity.WARNING

        def describe(j: int) -> Description:
            learned = 100.0 * (start - now[j]) / abs(start) if start else 0.0
            held_out = "" if np.isnan(held[j]) else f", and {held[j]:.4g} in validation"
            below = f"only {learned:.2g} % below" if learned > 0 else "not below"
            return Description(
                message=(
                    f"the loss is flat at {now[j]:.4g}{held_out}: {below} "
                    f"{start:.4g}, where it began"
                ),
                value=float(learned),
                threshold=self.learned_percent,
                advice=(
                    "the model cannot do better as it is: more layers or units, better "
                    "features, less weight decay and dropout, a higher learning rate; "
                    "see whether it can learn a single batch by heart, and what a "
                    "simple baseline reaches"
                ),
            )

        return Judgement.of_one(name, steps, mode, levels, describe)
