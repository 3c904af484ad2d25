"""What pictures of a run are drawn from: series of numbers, and maps of layers.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import Role
from tdbg.drawing.heat_map import Cells
from tdbg.drawing.series import Series
from tdbg.errors import TensorUnavailable
from tdbg.modes import ModeKeys
from tdbg.trial.forward_order import in_forward_order
from tdbg.trial.selection import mode_key

if TYPE_CHECKING:
    from tdbg.trial.trial import Trial

__all__ = ["is_number", "layer_cells", "loss_series", "series_of"]

Floats = NDArray[np.float64]
# What a step of a layer's map is made of; of a mean, which may be negative, there is
# no logarithm.
MAP_FIELDS = ("l2", "rms", "std", "abs_max", "zero_share")


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
    """A statistic of a tensor, or a scalar, over global steps.

    Args:
        trial: The run.
        name: The tensor or scalar.
        field: A field of ``Trial.envelope``; None: the value of what has one element,
            and ``rms`` of everything else.
        mode: Only steps of this mode.
        start: First global step.
        stop: Global step before which to end.
        columns: At most so many columns; none of the rows is left out.

    Raises:
        TensorUnavailable: If there is nothing of that name.
        ConfigurationError: If there is no such field.
    """
    tensor = trial.tensor(name)
    chosen = field or ("mean" if is_number(trial, name) else "rms")
    if tensor.role == "scalar":
        found = trial.scalars(start=start, end=stop)
        if name in found:
            steps, values = found[name].steps, found[name].values
            if mode is not None:
                table = trial.step_table()
                of_mode = table["step"][table["mode"] == mode_key(mode).value]
                keep = np.isin(steps, of_mode)
                steps, values = steps[keep], values[keep]
            return Series.of_points(name, steps, values, columns)
    envelope = trial.envelope(
        [tensor.name], mode=mode, start=start, stop=stop, columns=columns, fields=chosen
    )
    return envelope.series(0, chosen, name)


def loss_series(trial: Trial, columns: int) -> list[Series]:
    """The losses, those of each mode apart."""
    names = [
        each.name
        for each in trial.describe(trial.tensor_names(collection="losses"))
        if each.role == Role.LOSS.name.lower()
    ]
    modes = trial.modes()
    found = []
    for name in names:
        for mode in modes:
            series = series_of(trial, name, "mean", mode=mode, columns=columns)
            if len(series):
                label = f"{name} ({mode.name})" if len(modes) > 1 else name
                found.append(series.named(label))
    return found


def layer_cells(
    trial: Trial,
    tensors: str | Sequence[str],
    field: str,
    *,
    mode: ModeKeys | str | None = None,
    start: int | None = None,
    stop: int | None = None,
    rows: int,
    columns: int,
) -> Cells:
    """The map of tensors over steps: in each cell the greatest value of its rows.

    A cell without rows has the colour of the one before it, up to the usual distance of
    recorded steps: where every tenth step is captured that is no gap.

    Args:
        trial: The run.
        tensors: A collection, or names.
        field: A field of ``Trial.envelope``.
        mode: Only steps of this mode.
        start: First global step.
        stop: Global step before which to end.
        rows: At most so many rows: neighbours of more tensors share one.
        columns: At most so many columns.

    Raises:
        QueryError: If there is no such collection.
        TensorUnavailable: If a name is unknown, or nothing has statistics.
        ConfigurationError: If there is no such field.
    """
    if isinstance(tensors, str):
        names = trial.tensor_names(collection=tensors)
        what = f"of the collection {tensors!r}"
    else:
        names, what = list(tensors), "of these names"
    names = in_forward_order(trial, names)
    found = trial.envelope(
        names, mode=mode, start=start, stop=stop, columns=columns, fields=field
    )
    recorded = [i for i in range(len(found.names)) if found.rows[i].any()]
    if not recorded:
        msg = f"no tensor {what} has statistics in these steps"
        raise TensorUnavailable(msg)
    high = found.high[field][recorded].astype(np.float64)
    bad = found.bad[recorded] > 0
    high = _filled(high, found.rows[recorded] > 0)
    groups = [
        part.tolist()
        for part in np.array_split(
            np.arange(len(recorded)), min(max(1, rows), len(recorded))
        )
    ]
    labels = _without_common([found.names[i] for i in recorded])
    return Cells(
        [
            labels[g[0]] if len(g) == 1 else f"{labels[g[0]]} … {labels[g[-1]]}"
            for g in groups
        ],
        found.edges,
        np.vstack([np.fmax.reduce(high[group]) for group in groups]),
        np.vstack([bad[group].any(axis=0) for group in groups]),
    )


def _filled(values: Floats, there: NDArray[np.bool_]) -> Floats:
    """Values with those of columns without rows taken from the ones before."""
    filled = np.flatnonzero(there.any(axis=0))
    distances = np.sort(np.diff(filled))
    usual = int(distances[int(0.9 * len(distances))]) if len(distances) else 1
    columns = np.arange(values.shape[1])
    newest = np.maximum.accumulate(np.where(there, columns, -1), axis=1)
    carried = np.take_along_axis(values, np.maximum(newest, 0), axis=1)
    return np.where((newest >= 0) & (columns - newest < usual), carried, np.nan)


def _without_common(names: Sequence[str]) -> list[str]:
    """Names without the beginning that all have in common: ``gradient/``."""
    prefix = names[0].partition("/")[0] + "/"
    if not all(name.startswith(prefix) for name in names):
        return list(names)
    return [name.removeprefix(prefix) for name in names]
