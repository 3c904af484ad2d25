"""Layers of ReLUs of which most have died."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tdbg.findings import Severity
from tdbg.rules._checks import check_number
from tdbg.rules.activations.units import OfUnits
from tdbg.rules.registry import register
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Bools,
    Description,
    Floats,
    Judgement,
    UnitTable,
)

if TYPE_CHECKING:
    from tdbg.facts import Facts

__all__ = ["DeadRelu"]

# How probable so many dead units may be if each were dead with the allowed share.
BY_CHANCE = 0.05
RELUS = frozenset({"ReLU", "ReLU6", "Threshold"})


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRelu(OfUnits):
    """Report layers of ReLUs of which most are never active.

    Args:
        threshold_inactivity: A unit that is active for less than this percentage of
            the values it was given is dead.
        threshold_layer: A layer with more than this percentage of dead units, surely
            (binomial test, 5 %) or all of them, is reported, as a warning.
        error_layer: As an error, if this percentage of units was never active.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING, Severity.ERROR)
    modules = RELUS

    threshold_inactivity: float = 1.0
    threshold_layer: float = 50.0
    error_layer: float = 90.0

    def __post_init__(self) -> None:
        check_number(self, "threshold_inactivity", above=0.0, most=100.0)
        OfUnits.__post_init__(self)
        check_number(self, "error_layer", least=self.threshold_layer, most=100.0)

    def applies(self, facts: Facts | None, name: str) -> bool:
        """Whether it is a ReLU's, or nothing is known of the model."""
        module = None if facts is None else facts.module_of(name)
        return module is None or module in RELUS

    def judge(self, table: UnitTable) -> Judgement:
        """Judge a layer by the share of its units that are hardly ever active."""
        recent = self.recent(table, table.active)
        share = recent.part / np.maximum(recent.count, 1.0)
        dead = recent.percent(share < self.threshold_inactivity / 100.0)
        gone = recent.percent(recent.part == 0)
        n_units = table.active.shape[1]
        levels = np.full(len(dead), HEALTHY, dtype=np.int8)
        levels[(dead > self.threshold_layer) & self._is_surely(dead, n_units)] = (
            Severity.WARNING
        )
        severe = (dead > self.threshold_layer) & (gone >= self.error_layer)
        levels[severe] = Severity.ERROR
        levels[np.isnan(dead)] = UNKNOWN

        def describe(j: int) -> Description:
            n_dead = round(dead[j] * n_units / 100.0)
            n_gone = round(gone[j] * n_units / 100.0)
            return Description(
                message=(
                    f"{n_dead} of {n_units} units ({dead[j]:.0f} %) are dead: active "
                    f"for less than {self.threshold_inactivity:g} % of their values "
                    f"over the last {recent.taken[j]} recorded steps, {n_gone} of them "
                    "never"
                ),
                value=float(dead[j]),
                threshold=self.threshold_layer,
                advice=(
                    "dead units get no gradient and do not come back: restart with a "
                    "lower learning rate, initialize biases at zero and weights by "
                    "He, normalize before the activation, or use LeakyReLU or GELU"
                ),
            )

        return table.judge(levels, describe)

    def _is_surely(self, dead: Floats, n_units: int) -> Bools:
        """Whether so many dead units are more than chance makes of as many.

        With initial weights it is chance whether a unit is dead, so their number in a
        narrow layer scatters: 7 of 12 happen easily where half of them is expected.
        """
        counts = np.rint(np.nan_to_num(dead) * n_units / 100.0)
        surely: Bools = counts >= _least_beyond(n_units, self.threshold_layer / 100.0)
        return surely


@lru_cache(maxsize=256)
def _least_beyond(n: int, share: float) -> int:
    """The fewest hits in *n* draws that chance makes in 5 % of cases or less.

    All of them at most: of few draws no number is so rare.

    Args:
        n: How many draws.
        share: The chance of a hit in each.
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
