"""ZeroLearningRate: learning rates that are zero."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tdbg.config.needs import Needs
from tdbg.config.quantities import affected, number, plural
from tdbg.modes import TRAINING
from tdbg.rules.columns import streak_of_known
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.table import min_span, streak_spans
from tdbg.rules.training_facts import NO_LAYERS, TrainingFacts
from tdbg.rules.window import (
    OK,
    Advice,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
    rows_of_lasting,
)
from tdbg.run.findings import Severity, Stage

if TYPE_CHECKING:
    from tdbg.rules.vocabulary import Vocabulary

__all__ = ["ZeroLearningRate"]

# Steps for which all rates must be zero to be an error: some schedules start at zero
# and step once an epoch.  20 rows at the usual interval span this many.
ZERO_FOR = 190
RATE = re.compile(r"^scalar/optimizer(_\d+)?/.*/lr$")


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroLearningRate(Rule):
    """Report learning rates that are zero.

    Args:
        patience: Consecutive recorded steps at which a rate must be zero: a schedule
            may start or turn at zero.
        error_patience: Number of these at which all rates at zero are an error.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING, Severity.ERROR)
    stage = Stage.RATE

    patience: int = 3
    error_patience: int = 20

    def __post_init__(self) -> None:
        check_number(self, "patience", least=1, whole=True)
        check_number(self, "error_patience", least=self.patience, whole=True)

    @property
    def needs(self) -> Needs:
        """Scalars of optimizers."""
        return Needs(collections=frozenset({"scalars"}))

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that trees have no optimizer, if so."""
        return NO_LAYERS if training.has_trees else ""

    @property
    def lookback(self) -> int:
        """The rows that ``patience`` needs."""
        return rows_of_lasting(self.error_patience, ZERO_FOR)

    def selects(self, tensor: TensorInfo) -> bool:
        """Select the learning rates of parameter groups."""
        return RATE.match(tensor.name) is not None

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each rate by its streak of zeros, and all rates together."""
        for table in window.tables(*TRAINING):
            yield self._judge(table)

    def _judge(self, table: Table) -> Evaluation:
        known = table.known
        zero = known & (table["mean"] == 0)
        # A skipped step says nothing about the rate.
        streak = streak_of_known(zero, known)
        all_zero = np.where(known, zero, True).all(axis=0) & zero.any(axis=0)
        lasted = streak_spans(table.steps, streak)
        lasting = (streak >= self.patience) & (lasted >= min_span(self.patience))
        severities = np.where(lasting, int(Severity.WARNING), OK)
        severe = streak >= self.error_patience
        severe &= lasted >= min_span(self.error_patience, ZERO_FOR)
        severe &= all_zero[np.newaxis, :]
        severities[severe] = Severity.ERROR

        def describe(i: int, j: int) -> Description:
            return self._describe(
                n_zero=int(np.count_nonzero(zero[:, j])),
                n_rates=int(np.count_nonzero(known[:, j])),
                largest=float(np.max(table["mean"][known[:, j], j])),
                patience=min(int(streak[i, j]), self.error_patience),
                since=int(table.steps[j] - lasted[i, j]) + 1,
            )

        return table.judge(severities, describe, known & (lasting | ~zero))

    def _describe(
        self, *, n_zero: int, n_rates: int, largest: float, patience: int, since: int
    ) -> Description:
        message = (
            "The learning rate is zero: it was 0 at "
            f"{plural(patience, 'recorded step')} in a row. "
            f"{affected(n_zero, n_rates, 'parameter group')}"
        )
        advice: Advice
        if n_zero == n_rates:
            advice = (
                "No parameter changes any more. Check whether the schedule has ended, "
                "whether you step it too often (per batch instead of per epoch), and "
                "whether you set a rate at all."
            )
        else:

            def advice(words: Vocabulary) -> str:
                return (
                    f"Other groups have rates of up to {number(largest)}. If you want "
                    f"to freeze these parameters, {words.freezing} to save the cost of "
                    "their gradients. Otherwise, set a rate for this group."
                )

        return Description(
            message=message, value=0.0, threshold=0.0, advice=advice, since=since
        )
