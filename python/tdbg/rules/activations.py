"""Activations: ReLUs that have died."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.needs import Needs
from tdbg.rules._base import Rule, check_number, check_regex, finds
from tdbg.rules.registry import register
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Description,
    Judgement,
    TensorInfo,
    UnitTable,
    Window,
)

__all__ = ["DeadRelu"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRelu(Rule):
    """Report layers of ReLUs of which most are never active.

    Args:
        threshold_inactivity: A unit that is active for less than this percentage of
            the values it was given is dead.
        threshold_layer: A layer with more than this percentage of dead units is
            reported, as a warning.
        error_layer: From this percentage on, as an error.
        min_steps: Recorded steps to judge by, at least.
        min_samples: Values of each unit to judge by, at least; so many steps are
            taken together as are needed for it.
        max_steps: Recorded steps to judge by, at most.
        tensor_regex: Judge tensors of such names only.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    threshold_inactivity: float = 1.0
    threshold_layer: float = 50.0
    error_layer: float = 90.0
    min_steps: int = 3
    min_samples: int = 100
    max_steps: int = 20
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "threshold_inactivity", above=0.0, most=100.0)
        check_number(self, "threshold_layer", least=0.0, most=100.0)
        check_number(self, "error_layer", least=self.threshold_layer)
        check_number(self, "min_steps", least=1, whole=True)
        check_number(self, "min_samples", least=1, whole=True)
        check_number(self, "max_steps", least=self.min_steps, whole=True)
        check_regex(self, "tensor_regex")

    @property
    def needs(self) -> Needs:
        """The unit summaries of outputs."""
        return Needs(
            collections=frozenset({"outputs"}), statistics=False, unit_summaries=True
        )

    @property
    def look_back(self) -> int:
        """The batches that are taken together."""
        return self.max_steps - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Unit summaries."""
        if not tensor.name.startswith("unit/"):
            return False
        name = tensor.name.removeprefix("unit/")
        return self.tensor_regex is None or finds(self.tensor_regex, name)

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge every layer by its last batches of training."""
        for table in window.units(ModeKeys.TRAIN, ModeKeys.GLOBAL):
            yield self._judge(table)

    def _judge(self, table: UnitTable) -> Judgement:
        n_new = len(table.steps) - table.start
        dead = np.full(n_new, np.nan)
        taken = np.zeros(n_new, dtype=np.int64)
        for j in range(n_new):
            counts = self._last_batches(table, table.start + j)
            if counts is not None:
                active, count, taken[j] = counts
                share = active / np.maximum(count, 1.0)
                below = (share < self.threshold_inactivity / 100.0) & (count > 0)
                dead[j] = 100.0 * np.mean(below)
        levels = np.full(n_new, HEALTHY, dtype=np.int8)
        levels[dead > self.threshold_layer] = Severity.WARNING
        levels[(dead > self.threshold_layer) & (dead >= self.error_layer)] = (
            Severity.ERROR
        )
        levels[np.isnan(dead)] = UNKNOWN
        n_units = table.active.shape[1]

        def describe(_: int, j: int) -> Description:
            n_dead = round(dead[j] * n_units / 100.0)
            return Description(
                message=(
                    f"{n_dead} of {n_units} units ({dead[j]:.0f} %) are dead: active "
                    f"for less than {self.threshold_inactivity:g} % of their values "
                    f"over the last {taken[j]} recorded steps"
                ),
                value=float(dead[j]),
                threshold=self.threshold_layer,
                advice=(
                    "dead units get no gradient and do not come back: restart with a "
                    "lower learning rate, initialize biases at zero and weights by "
                    "He, normalize before the activation, or use LeakyReLU or GELU"
                ),
            )

        return Judgement(
            names=(table.name,),
            steps=table.steps[table.start :],
            mode=table.mode,
            levels=levels[np.newaxis, :],
            describe=describe,
        )

    def _last_batches(
        self, table: UnitTable, end: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], int] | None:
        """Active and all values of each unit over as few steps as are enough."""
        if not table.usable[end]:
            return None
        usable = np.flatnonzero(table.usable[: end + 1])[::-1][: self.max_steps]
        if len(usable) < self.min_steps:
            return None
        total = np.cumsum(table.count[usable].max(axis=1, initial=0), dtype=np.uint64)
        enough = np.flatnonzero(total >= self.min_samples)
        if not len(enough):
            return None
        n = max(int(enough[0]) + 1, self.min_steps)
        steps = usable[:n]
        active = table.active[steps].sum(axis=0, dtype=np.uint64)
        count = table.count[steps].sum(axis=0, dtype=np.uint64)
        return active.astype(np.float64), count.astype(np.float64), n
