"""SaturatedActivation: layers of tanh or sigmoid that are mostly saturated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tdbg.config.class_kinds import function_of
from tdbg.config.kinds import Kind
from tdbg.config.quantities import exact, percent, plural
from tdbg.rules.builtin.activations.unit_rule import UnitRule
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import OK, UNKNOWN, Description, Evaluation, UnitTable, Window
from tdbg.run.findings import Evidence, Severity, Stage
from tdbg.run.model_info import owner_of

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = ["SaturatedActivation"]

SATURATING = frozenset({Kind.TANH, Kind.SIGMOID, Kind.HARD_TANH, Kind.HARD_SIGMOID})


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SaturatedActivation(UnitRule):
    """Report layers of tanh or sigmoid that are mostly saturated.

    The derivative of a saturated unit is next to nothing, so that little of the
    gradient passes.  The rule skips activations behind a model's last weights, where
    saturation means a confident prediction.

    Args:
        threshold_activity: A unit is saturated if less than this percentage of its
            values is in the range where the derivative is not next to nothing.
        threshold_layer: The rule reports a layer with more than this percentage of
            saturated units.
        threshold_values: It also reports a layer in which more than this percentage of
            all values is saturated, in whichever units.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.UNITS

    modules = SATURATING

    threshold_activity: float = 10.0
    threshold_layer: float = 50.0
    threshold_values: float = 70.0

    def __post_init__(self) -> None:
        check_number(self, "threshold_activity", above=0.0, most=100.0)
        check_number(self, "threshold_values", above=0.0, most=100.0)
        UnitRule.__post_init__(self)

    def applies(self, model_info: ModelInfo | None, name: str) -> bool:
        """Return whether tanh or sigmoid made the output, with weights after it."""
        if model_info is None or model_info.kind_of(name) not in SATURATING:
            return False
        return not _is_last(model_info, name)

    def judge(self, table: UnitTable, window: Window) -> Evaluation:  # noqa: ARG002
        """Judge a layer by its share of units that are nearly always saturated."""
        recent = self.recent(table, table.out_of_range)
        inside = 1.0 - recent.part / np.maximum(recent.count, 1.0)
        share = recent.percent(inside < self.threshold_activity / 100.0)
        values = np.full(len(share), np.nan)
        total = np.maximum(recent.count.sum(axis=1), 1.0)
        values[recent.at] = 100.0 * recent.part.sum(axis=1) / total
        of_units = share > self.threshold_layer
        severities = np.full(len(share), OK, dtype=np.int8)
        severities[of_units | (values > self.threshold_values)] = Severity.WARNING
        severities[np.isnan(share)] = UNKNOWN
        n_units = table.active.shape[1]

        def describe(j: int) -> Description:
            n_saturated = round(share[j] * n_units / 100.0)
            return Description(
                message=(
                    f"{percent(values[j])} of this layer's values are saturated over "
                    f"the last {plural(int(recent.taken[j]), 'recorded step')}, so "
                    f"hardly any gradient passes. In {n_saturated:,} of "
                    f"{plural(n_units, 'unit')} ({percent(share[j])}), more than "
                    f"{exact(100 - self.threshold_activity)}% of the values are "
                    "saturated."
                ),
                value=float(share[j] if of_units[j] else values[j]),
                evidence=Evidence("abs_max"),
                threshold=self.threshold_layer
                if of_units[j]
                else self.threshold_values,
                advice=(
                    "The inputs of this activation are too large. Normalize the "
                    "model's inputs, initialize by Glorot (Xavier), lower the learning "
                    "rate, put a normalization before the activation, or use ReLU or "
                    "GELU."
                ),
            )

        return table.judge(severities, describe)


def _is_last(model_info: ModelInfo, name: str) -> bool:
    """Return whether no weights follow this module, in the order of the model."""
    path = name.rpartition("_output_")[0]
    order = {module: i for i, module in enumerate(model_info.modules)}
    found = function_of(path)
    if path not in order and found is not None:
        # A function comes after everything in the module that gives it its name.
        path = found[0]
        within = (f"{path}.", f"{path}/")
        inside = [i for each, i in order.items() if each.startswith(within)]
        own = max(inside, default=order.get(path, len(order)))
    else:
        own = order.get(path, len(order))
    owners = map(owner_of, model_info.parameters)
    return not any(order.get(owner, -1) > own for owner in owners)
