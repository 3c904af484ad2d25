"""SaturatedActivation: layers of tanh or sigmoid that are mostly saturated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.class_kinds import function_of
from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs
from tdbg.config.quantities import exact, percent, plural
from tdbg.modes import TRAINING
from tdbg.rules.builtin.activations.unit_rule import UnitRule, needs_of_units
from tdbg.rules.builtin.loss.loss_series import FIRST, losses_of
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Bools,
    Description,
    Evaluation,
    Floats,
    TensorInfo,
    UnitTable,
    Window,
)
from tdbg.run.findings import Evidence, Severity, Stage
from tdbg.run.model_info import owner_of

if TYPE_CHECKING:
    from tdbg.rules.training_facts import TrainingFacts
    from tdbg.run.model_info import ModelInfo

__all__ = ["SaturatedActivation"]

# A layer has begun sound if the mean of its derivatives was this part of the largest
# one, and a loss has fallen if it is this share below its start.
SOUND, FALLEN = 0.5, 0.1
SATURATING = frozenset({Kind.TANH, Kind.SIGMOID, Kind.HARD_TANH, Kind.HARD_SIGMOID})


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SaturatedActivation(UnitRule):
    """Report layers of tanh or sigmoid that are mostly saturated.

    The derivative of a saturated unit is next to nothing, so that little of the
    gradient passes.  The rule skips activations behind a model's last weights, where
    saturation means a confident prediction.  A layer that began sound and became so
    while the loss fell is an info: the training has made it so.

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

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.UNITS

    modules = SATURATING

    threshold_activity: float = 10.0
    threshold_layer: float = 50.0
    threshold_values: float = 70.0

    def __post_init__(self) -> None:
        check_number(self, "threshold_activity", above=0.0, most=100.0)
        check_number(self, "threshold_values", above=0.0, most=100.0)
        UnitRule.__post_init__(self)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Unit summaries and the first row of outputs of ``modules``, and losses."""
        first = Needs(
            collections=frozenset({"outputs"}), modules=self.modules, first_steps=1
        )
        losses = Needs(collections=frozenset({"losses"}))
        return *needs_of_units(self.modules), first, losses

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that no module saturates, if so; losses are only witnesses."""
        return training.lacks(needs_of_units(self.modules))

    @property
    def head_rows(self) -> int:
        """The first rows of the outputs and of the losses."""
        return FIRST

    def selects(self, tensor: TensorInfo) -> bool:
        """Select unit summaries of outputs, their rows, and losses."""
        is_witness = tensor.role in {"loss", "output"}
        return is_witness or UnitRule.selects(self, tensor)

    def applies(self, model_info: ModelInfo | None, name: str) -> bool:
        """Return whether tanh or sigmoid made the output, with weights after it."""
        if model_info is None or model_info.kind_of(name) not in SATURATING:
            return False
        return not _is_last(model_info, name)

    def judge(self, table: UnitTable, window: Window) -> Evaluation:
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
        info = window.model_info_at(int(table.steps[-1]))
        kind = None if info is None else info.kind_of(table.name)
        found = (severities == Severity.WARNING).any()
        if found and self._began_sound(table.name, kind, window):
            is_learned = _loss_has_fallen(window, table.steps[table.start :])
            severities[(severities == Severity.WARNING) & is_learned] = Severity.INFO
        n_units = table.active.shape[1]

        def describe(j: int) -> Description:
            n_saturated = round(share[j] * n_units / 100.0)
            is_note = severities[j] == Severity.INFO
            return Description(
                message=(
                    f"{percent(values[j])} of this layer's values are saturated over "
                    f"the last {plural(int(recent.taken[j]), 'recorded step')}, so "
                    f"hardly any gradient passes. In {n_saturated:,} of "
                    f"{plural(n_units, 'unit')} ({percent(share[j])}), more than "
                    f"{exact(100 - self.threshold_activity)}% of the values are "
                    f"saturated.{_LEARNED if is_note else ''}"
                ),
                value=float(share[j] if of_units[j] else values[j]),
                evidence=Evidence("abs_max"),
                threshold=self.threshold_layer
                if of_units[j]
                else self.threshold_values,
                advice=(
                    f"{_IF_NOT if is_note else ''}"
                    "The inputs of this activation are too large. Normalize the "
                    "model's inputs, initialize by Glorot (Xavier), lower the learning "
                    "rate, put a normalization before the activation, or use ReLU or "
                    "GELU."
                ),
            )

        return table.judge(severities, describe)

    def _began_sound(self, name: str, kind: str | None, window: Window) -> bool:
        """Return whether the function's mean derivative was large at first."""
        for table in window.tables(*TRAINING):
            if name in table.names and kind in (Kind.TANH, Kind.SIGMOID):
                i = table.names.index(name)
                first = table.known[i] & (table.ordinal[i] == 1)
                mean = table["mean"][i, first]
                square = table["l2"][i, first] ** 2 / table["count"][i, first]
                slope = 1.0 - square if kind == Kind.TANH else 4.0 * (mean - square)
                return len(slope) > 0 and bool(slope[0] >= SOUND)
        return False


_LEARNED = " It was not so at first, and the loss has fallen since."
_IF_NOT = "As long as the loss falls, the layer does its work. If it does not: "


def _loss_has_fallen(window: Window, steps: NDArray[np.int64]) -> Bools:
    """Find the steps at which a loss of training is well below its start."""
    result = np.zeros(len(steps), dtype=bool)
    for table in window.tables(*TRAINING):
        for i, role in enumerate(table.roles):
            if role == "loss":
                result |= _has_fallen(table.steps, losses_of(table, i), steps)
    return result


def _has_fallen(
    recorded: NDArray[np.int64], loss: Floats, steps: NDArray[np.int64]
) -> Bools:
    known = np.isfinite(loss)
    recorded, loss = recorded[known], loss[known]
    result = np.zeros(len(steps), dtype=bool)
    if len(loss) < 2 * FIRST:
        return result
    start = float(np.median(loss[:FIRST]))
    ends = np.searchsorted(recorded, steps, "right")
    for k, end in enumerate(ends.tolist()):
        if end >= 2 * FIRST:
            now = float(np.median(loss[end - FIRST : end]))
            result[k] = now < start - FALLEN * abs(start)
    return result


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
