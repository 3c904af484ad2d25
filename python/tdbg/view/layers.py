"""Layers in the order of the forward pass, and their map over the steps.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.collections import Role
from tdbg.config.tensor_names import PREFIXES, parameter_in
from tdbg.errors import TensorUnavailable
from tdbg.modes import ModeKeys
from tdbg.trial import Trial
from tdbg.view.coverage import interval_of

__all__ = ["MAP_FIELDS", "Cells", "filled", "in_forward_order", "layer_cells"]

Floats = NDArray[np.float64]
# Statistics that a map can show: a mean may be negative and has no logarithm.
MAP_FIELDS = ("l2", "rms", "std", "abs_max", "zero_share")


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """What a map shows.

    Attributes:
        names: Name of each row.
        edges: Bounds of the columns in training steps.  Shape (columns + 1,).
        values: float64 (rows, columns): positive numbers; NaN where there is none.
        bad: bool (rows, columns): where there is a NaN or an infinity.
    """

    names: Sequence[str]
    edges: NDArray[np.int64]
    values: Floats
    bad: NDArray[np.bool_]


def in_forward_order(trial: Trial, names: Iterable[str]) -> list[str]:
    """Names of tensors in the order of the forward pass.

    Parameters, and gradients and updates of parameters, stand in the order of the
    model, everything else behind them as it first came in a step.
    """
    info = trial.model_info()
    parameters = list(info[-1].parameters) if info else []
    place = {name: i for i, name in enumerate(parameters)}
    given = list(names)
    first = dict(zip(given, trial.positions(given), strict=True))

    def key(name: str) -> tuple[float, int]:
        return place.get(_parameter_of(name), math.inf), first[name]

    return sorted(given, key=key)


def _parameter_of(name: str) -> str:
    """The parameter that a gradient, an update or a state of an optimizer is of."""
    if name.startswith(PREFIXES[Role.OPTIMIZER_STATE]):
        return name.split("/", 2)[-1]
    return parameter_in(name)


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
    """Return the map of tensors over training steps: the greatest value in each cell.

    A cell without rows has the colour of the one before it, for as many steps as a
    recorded one stands for: where every tenth step is captured that is no gap.

    Args:
        trial: The run.
        tensors: A collection, or names.
        field: A field of ``Trial.envelope``.
        mode: Only steps of this mode.
        start: First training step.
        stop: Training step before which to end.
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
        names,
        mode=mode,
        start=start,
        stop=stop,
        columns=columns,
        fields=field,
        by="training",
    )
    recorded = [i for i in range(len(found.names)) if found.rows[i].any()]
    if not recorded:
        msg = f"no tensor {what} has statistics in these steps"
        raise TensorUnavailable(msg)
    high = found.high[field][recorded].astype(np.float64)
    bad = found.bad[recorded] > 0
    interval = interval_of(trial, trial.tensor(found.names[recorded[0]]).role)
    high = filled(high, found.rows[recorded] > 0, found.edges, interval)
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


def filled(
    values: Floats,
    there: NDArray[np.bool_],
    edges: NDArray[np.int64],
    interval: int | None,
) -> Floats:
    """Return values with those of columns without rows taken from the ones before.

    Args:
        values: Shape (rows, columns).
        there: Where there are some.  Shape (rows, columns).
        edges: Bounds of the columns in steps.  Shape (columns + 1,).
        interval: For how many steps a recorded one stands; None: for as many as most
            recorded columns are apart.
    """
    recorded = np.flatnonzero(there.any(axis=0))
    if interval is None:
        distances = np.sort(np.diff(edges[recorded]))
        interval = int(distances[int(0.9 * len(distances))]) if len(distances) else 1
    columns = np.arange(values.shape[1])
    newest = np.maximum.accumulate(np.where(there, columns, -1), axis=1)
    carried = np.take_along_axis(values, np.maximum(newest, 0), axis=1)
    # The last step of the column before may be the recorded one; what comes a little
    # late, as where evaluation lies between, was not left out.
    reach = interval + interval // 2
    stands = edges[columns] < edges[np.maximum(newest, 0) + 1] - 1 + reach
    return np.where((newest >= 0) & stands, carried, np.nan)


def _without_common(names: Sequence[str]) -> list[str]:
    """Names without the beginning that all have in common: ``gradient/``."""
    prefix = names[0].partition("/")[0] + "/"
    if not all(name.startswith(prefix) for name in names):
        return list(names)
    return [name.removeprefix(prefix) for name in names]
