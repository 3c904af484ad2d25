"""Which curve is the loss, and its last value.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import TRAINING, ModeKeys
from tdbg.trial import Series, Trial, mode_key
from tdbg.view.tensors import loss_names

__all__ = [
    "LastLoss",
    "is_number",
    "last_loss",
    "last_value",
    "loss_series",
    "loss_text",
    "series_of",
]

# The last loss is looked for in so many of the newest steps, then in those before.
NEWEST_STEPS = 16
NOT_FINITE = ("nan", "positive_infinity", "negative_infinity")


@dataclass(frozen=True, slots=True)
class LastLoss:
    """The last loss of a run.

    Attributes:
        name: Name of its tensor.
        mode: The mode that it was measured in: training, if any loss was.
        step: The training step of the value; of evaluation, the number of training
            steps before it.
        mode_step: The same step in the count of the mode.
        global_step: The same step among those of all modes.
        value: The mean of its elements; NaN if one is not finite.
    """

    name: str
    mode: ModeKeys
    step: int
    mode_step: int
    global_step: int
    value: float

    @property
    def text(self) -> str:
        """The value as people read it: ``0.0874``, or ``NaN or Inf``."""
        return loss_text(self.value)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold; NaN and infinity are None."""
        return {
            "name": self.name,
            "mode": self.mode.name,
            "step": self.step,
            "mode_step": self.mode_step,
            "global_step": self.global_step,
            "value": self.value if math.isfinite(self.value) else None,
            "text": self.text,
        }


def loss_text(value: float) -> str:
    """Return a loss as people read it.

    Example:
        >>> loss_text(0.08736), loss_text(float("nan"))
        ('0.08736', 'NaN or Inf')
    """
    return f"{value:.4g}" if math.isfinite(value) else "NaN or Inf"


def last_loss(trial: Trial, table: NDArray[np.void] | None = None) -> LastLoss | None:
    """Return the last loss of training, or of evaluation if that is all there is.

    None if the run recorded no loss.

    Args:
        trial: The run.
        table: Its steps, as ``Trial.step_table`` returns them; None: they are read.
    """
    with trial.no_refresh():
        names = loss_names(trial)
        if not names:
            return None
        table = trial.step_table() if table is None else table
        for mode in sorted(ModeKeys, key=lambda mode: mode not in TRAINING):
            for name in names:
                found = last_value(trial, name, mode, table)
                if found is not None:
                    return found
    return None


def last_value(
    trial: Trial, name: str, mode: ModeKeys, table: NDArray[np.void]
) -> LastLoss | None:
    """Return the last value of a loss in a mode; None if it has none there.

    Args:
        trial: The run.
        name: Name of the loss.
        mode: The mode that it was measured in.
        table: The steps of the run, as ``Trial.step_table`` returns them.
    """
    # The newest steps are looked at first: a live run has it there.
    stop, width = len(table), NEWEST_STEPS
    while stop > 0:
        start = max(0, stop - width)
        of_mode = np.flatnonzero(table["mode"][start:stop] == mode.value) + start
        rows = trial.columns([name], table["step"][of_mode])
        there = np.flatnonzero(rows.present[0])
        if len(there):
            at = int(there[-1])
            bad = sum(float(rows.column(each)[0, at]) for each in NOT_FINITE)
            value = math.nan if bad else float(rows.column("mean")[0, at])
            row = table[of_mode[at]]
            numbers = ("training_step", "mode_step", "step")
            step, own, of_all = (int(row[each]) for each in numbers)
            return LastLoss(name, mode, step, own, of_all, value)
        stop, width = start, width * 16
    return None


def is_number(trial: Trial, name: str) -> bool:
    """Whether a tensor has one element, or is a scalar: a loss, a metric."""
    tensor = trial.tensor(name)
    return tensor.role == "scalar" or int(np.prod(tensor.first_shape)) == 1


def series_of(
    trial: Trial,
    name: str,
    field: str | None = None,
    *,
    mode: ModeKeys | str | None = None,
    start: int | None = None,
    stop: int | None = None,
    columns: int,
) -> Series:
    """Return a statistic of a tensor, or a scalar, over training steps.

    Args:
        trial: The run.
        name: The tensor or scalar.
        field: A field of ``Trial.envelope``; None: the value of what has one element,
            and ``rms`` of everything else.
        mode: Only steps of this mode.
        start: First training step.
        stop: Training step before which to end.
        columns: At most so many columns; none of the rows is left out.

    Raises:
        TensorUnavailable: If there is nothing of that name.
        ConfigurationError: If there is no such field.
    """
    tensor = trial.tensor(name)
    chosen = field or ("mean" if is_number(trial, name) else "rms")
    if tensor.role == "scalar":
        found = trial.scalars()
        if name in found:
            steps, values = found[name].steps, found[name].values
            if mode is not None:
                table = trial.step_table()
                of_mode = table["step"][table["mode"] == mode_key(mode).value]
                keep = np.isin(steps, of_mode)
                steps, values = steps[keep], values[keep]
            steps = np.array(trial.training_steps_at(steps.tolist()), np.int64)
            keep = np.full(len(steps), True)
            if start is not None:
                keep &= steps >= start
            if stop is not None:
                keep &= steps < stop
            return Series.of_points(name, steps[keep], values[keep], columns)
    envelope = trial.envelope(
        [tensor.name],
        mode=mode,
        start=start,
        stop=stop,
        columns=columns,
        fields=chosen,
        by="training",
    )
    return envelope.series(0, chosen, name)


def loss_series(trial: Trial, columns: int) -> list[Series]:
    """The losses, *the* loss first, and those of each mode apart."""
    modes = trial.modes()
    found = []
    for name in loss_names(trial):
        for mode in modes:
            series = series_of(trial, name, "mean", mode=mode, columns=columns)
            if len(series):
                label = f"{name} ({mode.name})" if len(modes) > 1 else name
                found.append(series.named(label))
    return found
