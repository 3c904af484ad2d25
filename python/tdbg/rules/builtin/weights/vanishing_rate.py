"""VanishingLearningRate: learning rates that have fallen to next to nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tdbg.config.needs import Needs
from tdbg.config.quantities import number, plural
from tdbg.modes import TRAINING
from tdbg.rules.builtin.weights.zero_learning_rate import RATE
from tdbg.rules.columns import streak_of_known
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.table import streak_spans
from tdbg.rules.training_facts import NO_LAYERS, TrainingFacts
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
    rows_of_lasting,
)
from tdbg.run.findings import Evidence, Stage

__all__ = ["VanishingLearningRate"]

# Number of first rows that give the largest rate: warm-ups begin low.
FIRST = 200
# A schedule may end at nothing.  It has ended too soon if this share of all steps so
# far came after its end, within these bounds.
SHARE = 0.1
LEAST_STEPS, MOST_STEPS = 20, 190


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class VanishingLearningRate(Rule):
    """Report learning rates that fell to next to nothing long ago.

    Args:
        remaining: Share of the largest rate that counts as nothing.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.RATE

    remaining: float = 1e-7

    def __post_init__(self) -> None:
        check_number(self, "remaining", above=0.0, most=0.1)

    @property
    def needs(self) -> Needs:
        """Scalars of optimizers."""
        return Needs(collections=frozenset({"scalars"}))

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that trees have no optimizer, if so."""
        return NO_LAYERS if training.has_trees else ""

    @property
    def lookback(self) -> int:
        """The rows since the end of the schedule."""
        return rows_of_lasting(LEAST_STEPS, MOST_STEPS)

    @property
    def head_rows(self) -> int:
        """The rows that give the largest rate."""
        return FIRST

    def selects(self, tensor: TensorInfo) -> bool:
        """Select the learning rates of parameter groups."""
        return RATE.match(tensor.name) is not None

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Compare each rate with its largest value so far."""
        for table in window.tables(*TRAINING):
            yield self._judge(window, table)

    def _judge(self, window: Window, table: Table) -> Evaluation:
        known = table.known
        rates = np.where(known, table["mean"], 0.0)
        at_first = np.where(table.ordinal <= FIRST, rates, 0.0)
        largest = np.maximum.accumulate(at_first, axis=1)
        # ZeroLearningRate reports what is exactly zero.
        is_tiny = known & (rates > 0) & (rates <= self.remaining * largest)
        streak = streak_of_known(is_tiny, known)
        enough = np.clip(SHARE * table.steps, LEAST_STEPS, MOST_STEPS)
        vanished = is_tiny & (streak_spans(table.steps, streak) >= enough)
        severities = np.where(known & ~is_tiny, OK, UNKNOWN).astype(np.int8)
        severities[vanished] = max(self.severities)

        def describe(i: int, j: int) -> Description:
            # The step at which the fall began.
            is_high = known[i, : j + 1] & (rates[i, : j + 1] > largest[i, j] / 2)
            peak = int(np.flatnonzero(is_high)[-1])
            end = int(np.argmax(is_tiny[i]))
            at = [int(table.steps[k]) for k in (peak, end, j)]
            found = self._describe(
                rate=float(rates[i, j]),
                largest=float(largest[i, j]),
                steps=[window.training_step(step) for step in at],
            )
            return replace(found, since=at[0])

        return table.judge(severities, describe, known & (vanished | ~is_tiny))

    def _describe(
        self, *, rate: float, largest: float, steps: Sequence[int]
    ) -> Description:
        peak, end, now = steps
        n_steps = end - peak
        return Description(
            message=(
                f"The learning rate fell from {number(largest)} to {number(rate, 2)} "
                f"within {plural(now - peak, 'step')}, and the training continues. For "
                f"{plural(now - end, 'step')}, it has changed almost nothing."
            ),
            value=rate / largest,
            threshold=self.remaining,
            evidence=Evidence("mean", self.remaining * largest),
            advice=(
                f"The schedule ends after about {plural(n_steps, 'step')}. If its "
                "length or decay is in epochs, step it once an epoch instead of once a "
                "batch. Otherwise, give it the number of steps of the whole training."
            ),
        )
