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
)
from tdbg.run.findings import Evidence, Severity, Stage

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = ["DeadRelu"]

# Significance level: probability of this many dead units at the allowed share.
BY_CHANCE = 0.05


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
    error_layer: float = 90.0

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

    def judge(self, table: UnitTable) -> Evaluation:
        """Judge a layer by its share of units that are hardly ever active."""
        recent = self.recent(table, table.active)
        share = recent.part / np.maximum(recent.count, 1.0)
        dead = recent.percent(share < self.threshold_inactivity / 100.0)
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
                advice=_OF_SOME + _ADVICE
                if severities[j] == Severity.INFO
                else _ADVICE,
            )

        return table.judge(severities, describe)

    def _is_surely(self, dead: Floats, n_units: int) -> Bools:
        """Return whether more units are dead than chance explains.

        Under initial weights, chance decides which units are dead, so their number in a
        narrow layer scatters: 7 of 12 are common where half is expected.
        """
        counts = np.rint(np.nan_to_num(dead) * n_units / 100.0)
        surely: Bools = counts >= _least_beyond(n_units, self.threshold_layer / 100.0)
        return surely


_ADVICE = (
    "Units that are dead for all data get no gradient and do not recover. Restart with "
    "a lower learning rate, initialize biases at zero and weights by He, normalize "
    "before the activation, or use LeakyReLU or GELU."
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
