"""The losses of a training, as NumPy arrays.

Thread safety: values, and a pure function.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.trial.statistics import Statistics

__all__ = ["LossSeries", "losses_of"]


@dataclass(frozen=True, slots=True, eq=False)
class LossSeries:
    """One loss in one mode, at each step that recorded it.

    Attributes:
        name: Name of the tensor, as ``trial.tensor`` takes it.
        mode: The mode of all its steps.
        steps: int64: global steps, ascending.
        mode_steps: int64: the same steps in the count of *mode*.
        values: float64: the mean of the loss's elements, over all workers and
            micro-batches of the step; NaN or infinite where an element is.
    """

    name: str
    mode: ModeKeys
    steps: NDArray[np.int64]
    mode_steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)


def losses_of(
    losses: Statistics, table: NDArray[np.void], mode: ModeKeys
) -> list[LossSeries]:
    """Return a series for each loss that a mode has, in the order of *losses*.

    Args:
        losses: The statistics of all losses at the steps of the mode.
        table: The step table, which has the mode's own count of steps.
        mode: The mode.
    """
    values = losses.reduction("mean")
    mode_steps = table["mode_step"][np.searchsorted(table["step"], losses.steps)]
    return [
        LossSeries(
            name,
            mode,
            losses.steps[here],
            mode_steps[here].astype(np.int64),
            value[here],
        )
        for name, here, value in zip(losses.names, losses.present, values, strict=True)
        if here.any()
    ]
