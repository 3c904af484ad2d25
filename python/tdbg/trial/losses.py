"""The losses of a training, as NumPy arrays.

Thread safety: values, and a function that holds the trial's lock inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import CollectionKeys
from tdbg.modes import ModeKeys

if TYPE_CHECKING:
    from tdbg.trial.trial import Trial

__all__ = ["LossSeries", "losses"]


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


def losses(trial: Trial, mode: ModeKeys) -> list[LossSeries]:
    """Return the losses of one mode by name, or of all modes if it is GLOBAL."""
    with trial.no_refresh():
        if mode is ModeKeys.GLOBAL:
            return [each for m in trial.modes() for each in _of_mode(trial, m)]
        return _of_mode(trial, mode)


def _of_mode(trial: Trial, mode: ModeKeys) -> list[LossSeries]:
    names = trial.tensor_names(mode=mode, collection=CollectionKeys.LOSSES.value)
    rows = trial.statistics(names, mode=mode)
    values = rows.reduction("mean")
    table = trial.step_table()
    mode_steps = table["mode_step"][np.searchsorted(table["step"], rows.steps)]
    return [
        LossSeries(
            name, mode, rows.steps[here], mode_steps[here].astype(np.int64), value[here]
        )
        for name, here, value in zip(rows.names, rows.present, values, strict=True)
        if here.any()
    ]
