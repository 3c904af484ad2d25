"""DeadRelu: layers whose ReLUs have mostly died."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tdbg.config.kinds import Kind
from tdbg.config.quantities import exact, percent, plural
from tdbg.rules.builtin.activations.unit_rule import UnitRule
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Bools,
    Description,
    Evaluation,
    Floats,
    UnitTable,
    Window,
)
from tdbg.run.findings import Evidence, Severity, Stage

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = ["DeadRelu"]

# Significance level: probability of this many dead units at the allowed share.
BY_CHANCE = 0.05
# Least share of the dead units that were dead at first, if no update killed them.
NEARLY_ALL = 0.9


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRelu(UnitRule):
    """Report layers whose ReLUs are mostly never active.

    Args:
        threshold_inactivity: A unit is dead if it is active for less than this
            percentage of its inputs.
        threshold_layer: The rule reports a layer with surely more than this percentage
            of dead units (binomial test, 5%), or with no other units.
        warning_layer: Percentage of dead units above which the finding is a warning
            instead of an info.
        error_layer: Percentage of units that were never active at which it is an error.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING, Severity.ERROR)
    stage = Stage.UNITS
    modules = frozenset({Kind.RELU})

    threshold_inactivity: float = 1.0
    threshold_layer: float = 50.0
    warning_layer: float = 80.0
    error_layer: float = 100.0

    def __post_init__(self) -> None:
        check_number(self, "threshold_inactivity", above=0.0, most=100.0)
        UnitRule.__post_init__(self)
        check_number(self, "warning_layer", least=0.0, most=100.0)
        check_number(self, "error_layer", least=self.threshold_layer, most=100.0)

    def applies(self, model_info: ModelInfo | None, name: str) -> bool:
        """Return whether a ReLU made the output, or the model is unknown."""
        if model_info is None or model_info.module_of(name) is None:
            return True
        return model_info.kind_of(name) == Kind.RELU

    def judge(self, table: UnitTable, window: Window) -> Evaluation:
        """Judge a layer by its share of units that are hardly ever active."""
        recent = self.recent(table, table.active)
        dead = recent.percent(recent.part < recent.count * self._share)
        gone = recent.percent(recent.part == 0)
        n_units = table.active.shape[1]
        severities = np.full(len(dead), OK, dtype=np.int8)
        reported = (dead > self.threshold_layer) & self._is_surely(dead, n_units)
        severities[reported] = Severity.INFO
        severities[reported & (dead > self.warning_layer)] = Severity.WARNING
        severe = (dead > self.threshold_layer) & (gone >= self.error_layer)
        severities[severe] = Severity.ERROR
        severities[np.isnan(dead)] = UNKNOWN

        def describe(j: int) -> Description:
            is_dead = recent.row(recent.part < recent.count * self._share, j)
            first = self._first(window, table, j)
            were_dead = first is not None and self._were_dead(table, first, is_dead)
            advice = _BORN_DEAD if were_dead else _DIED
            n_dead = round(dead[j] * n_units / 100.0)
            n_gone = round(gone[j] * n_units / 100.0)
            return Description(
                message=(
                    f"{n_dead:,} of {plural(n_units, 'unit')} ({percent(dead[j])}) are "
                    f"dead: they were active for less than "
                    f"{exact(self.threshold_inactivity)}% of their inputs over the "
                    f"last {plural(int(recent.taken[j]), 'recorded step')}, and "
                    f"{n_gone:,} of them never."
                ),
                value=float(dead[j]),
                threshold=max(self.threshold_layer, self.warning_layer)
                if severities[j] == Severity.WARNING
                else self.threshold_layer,
                evidence=Evidence("zero_share"),
                advice=_OF_SOME + advice if severities[j] == Severity.INFO else advice,
            )

        return table.judge(severities, describe)

    @property
    def _share(self) -> float:
        return self.threshold_inactivity / 100.0

    def _first(self, window: Window, table: UnitTable, j: int) -> int | None:
        """Return the row before the first update; None: it is too far back."""
        row = max(0, table.start + j - self.lookback)
        is_first = window.training_step(int(table.steps[row])) == 0
        return row if is_first and table.usable[row] else None

    def _were_dead(self, table: UnitTable, row: int, units: Bools) -> bool:
        """Return whether nearly all of some units were dead in a row."""
        was_dead = table.active[row] < table.count[row] * self._share
        return bool(was_dead[units].mean() >= NEARLY_ALL)

    def _is_surely(self, dead: Floats, n_units: int) -> Bools:
        """Return whether more units are dead than chance explains.

        Under initial weights, chance decides which units are dead, so their number in a
        narrow layer scatters: 7 of 12 are common where half is expected.
        """
        counts = np.rint(np.nan_to_num(dead) * n_units / 100.0)
        surely: Bools = counts >= _least_beyond(n_units, self.threshold_layer / 100.0)
        return surely


_NO_GRADIENT = "Units that are dead for all data get no gradient and do not recover. "
_DIED = _NO_GRADIENT + (
    "Restart with a lower learning rate, initialize biases at zero and weights by He, "
    "normalize before the activation, or use LeakyReLU or GELU."
)
_BORN_DEAD = _NO_GRADIENT + (
    "They were dead at the first step, before any update of this run, so the learning "
    "rate is not the cause. Initialize weights by He, so that about half of them are "
    "positive, and biases at zero; normalize the inputs, or normalize before the "
    "activation; or use LeakyReLU or GELU."
)
_OF_SOME = "As long as the loss falls, the other units do the work. If it does not: "


@lru_cache(maxsize=256)
def _least_beyond(n: int, share: float) -> int:
    """Return the least number of hits in *n* draws whose probability is at most 5%.

    The result is at most *n*, even if no number is that rare in so few draws.

    Args:
        n: Number of draws.
        share: Chance of a hit in each draw.
    """
    if share in {0.0, 1.0}:
        return n if share else min(n, 1)
    rates = (math.log(share), math.log1p(-share))
    whole = math.lgamma(n + 1)
    chance = 0.0
    for k in range(n, -1, -1):
        ways = whole - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        chance += math.exp(ways + k * rates[0] + (n - k) * rates[1])
        if chance > BY_CHANCE:
            return min(n, k + 1)
    return 0
