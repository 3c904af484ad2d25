"""The points where two runs diverge: the first step at which each tensor differs.

Thread safety: values, and functions that hold a trial's lock inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.compare.axis import Axis
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.trial import Envelope, Trial

__all__ = ["Divergence", "DivergencePoint", "divergence"]

# Cells of a part that is compared at once: 60 MB while it is.
PART_CELLS = 1 << 20
FIELDS = ("rms", "mean")
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DivergencePoint:
    """The first place where a tensor or scalar of two runs differs.

    Attributes:
        name: The tensor or scalar.
        place: Its place on the axis: a global step, or a training step.
        deviation: The difference relative to the larger value; infinite if only one of
            them has a NaN or Inf.
    """

    name: str
    place: int
    deviation: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The comparison of all tensors and scalars that two runs share.

    Attributes:
        points: One for each tensor or scalar that differs, the earliest first; those at
            one place are in the order of a step of the first run.
        n_names: Number of tensors and scalars that were compared.
        n_places: Number of places that both runs recorded, in the mode with the most.
    """

    points: tuple[DivergencePoint, ...]
    n_names: int
    n_places: int


def divergence(
    first: Trial,
    second: Trial,
    *,
    axis: Axis = Axis.STEP,
    tolerance: float = 0.0,
    check: Callable[[], None] | None = None,
) -> Divergence:
    """Find where the tensors and scalars that both runs have first differ.

    At each place that both runs recorded, this compares the least and greatest rms of
    the rows and their mean, in float32.  Differences are relative to the larger rms.
    Values that differ by less than float32 resolves are the same.

    Args:
        first: A run.
        second: Another one.
        axis: ``Axis.STEP`` or ``Axis.GLOBAL``.
        tolerance: The relative difference to ignore: 0.01 for 1 %.
        check: Called between parts, as by ``Trial.envelope``.

    Raises:
        ConfigurationError: If *axis* is time, which matches no steps, or *tolerance* is
            negative.

    Example:
        found = divergence(tdbg.create_trial("runs/a"), tdbg.create_trial("runs/b"))
        if found.points:
            print("the runs diverge at step", found.points[0].place)
    """
    if axis.is_time:
        msg = "runs diverge at a step: align them by step, not by time"
        raise ConfigurationError(msg)
    if not tolerance >= 0:
        msg = f"a tolerance must be 0 or more, not {tolerance!r}"
        raise ConfigurationError(msg)
    with first.no_refresh(), second.no_refresh():
        modes = [mode for mode in first.modes() if mode in second.modes()]
        # A step of training is not compared with one of evaluation at its place.
        pairs = [_Pair(first, second, axis, mode) for mode in modes]
    found: dict[str, DivergencePoint] = {}
    for pair in pairs:
        of_mode = _of_tensors(pair, tolerance, check) | _of_scalars(pair, tolerance)
        for name, point in of_mode.items():
            if name not in found or point.place < found[name].place:
                found[name] = point
    points = sorted(
        found.values(), key=lambda each: (each.place, _position(first, each.name))
    )
    names = {name for pair in pairs for name in (*pair.names, *pair.scalars)}
    n_places = max((len(pair.places) for pair in pairs), default=0)
    return Divergence(tuple(points), len(names), n_places)


class _Pair:
    """Two runs, and what both of them have in a mode."""

    def __init__(self, first: Trial, second: Trial, axis: Axis, mode: ModeKeys) -> None:
        self.trials = first, second
        self.axis, self.mode = axis, mode
        one, other = (
            table[table["mode"] == mode.value]
            for table in (first.step_table(), second.step_table())
        )
        self.tables = one, other
        self.places = np.intersect1d(axis.places(one), axis.places(other))
        self.series = first.scalars(), second.scalars()
        self.scalars = sorted(self.series[0].keys() & self.series[1])
        # No aliases: rows of both runs are of the same names.
        shared = set(first.tensor_names()) & set(second.tensor_names())
        self.names = sorted(shared - self.series[0].keys() - self.series[1].keys())

    def parts(self) -> Iterator[NDArray[np.int64]]:
        """The shared places, some at a time."""
        size = max(16, PART_CELLS // max(1, len(self.names)))
        for i in range(0, len(self.places), size):
            yield self.places[i : i + size]


def _position(trial: Trial, name: str) -> tuple[int, str]:
    """Where a step has the tensor; scalars come first: they may be causes."""
    return (trial.tensor(name).position if trial.has_tensor(name) else -1), name


def _of_tensors(
    pair: _Pair, tolerance: float, check: Callable[[], None] | None
) -> dict[str, DivergencePoint]:
    found: dict[str, DivergencePoint] = {}
    names = pair.names
    for places in pair.parts():
        if not names:
            break
        # Each place is a column, and what only one of them has is between two.
        marks = np.ravel(np.column_stack((places, places + 1)))
        read = [
            trial.envelope(
                names,
                mode=pair.mode,
                edges=pair.axis.edges(table, marks),
                fields=FIELDS,
                check=check,
            )
            for trial, table in zip(pair.trials, pair.tables, strict=True)
        ]
        deviation = _deviation(*read)[:, ::2]
        differs = deviation > tolerance
        for i in np.flatnonzero(differs.any(axis=1)).tolist():
            at = int(differs[i].argmax())
            found[names[i]] = DivergencePoint(
                names[i], int(places[at]), float(deviation[i, at])
            )
        names = [name for name in names if name not in found]
    return found


def _deviation(one: Envelope, other: Envelope) -> Floats:
    """Return the deviation of cells, (names, columns); 0 where one has no rows."""
    size = np.fmax(one.high["rms"], other.high["rms"]).astype(np.float64)
    parts = [
        _difference(one.low["rms"], other.low["rms"]),
        _difference(one.high["rms"], other.high["rms"]),
        _difference(one.mean["mean"], other.mean["mean"]),
    ]
    most = np.fmax.reduce(parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Nothing but NaN in one of them: no size, and an infinite deviation.
        found = np.where(most > 0, most / np.where(size > 0, size, 0.0), 0.0)
    found[(one.bad > 0) != (other.bad > 0)] = np.inf
    found[(one.rows == 0) | (other.rows == 0)] = 0.0
    return found


def _difference(one: NDArray[np.float32], other: NDArray[np.float32]) -> Floats:
    """Return absolute differences: 0 for two NaN, infinite for a number and a NaN."""
    found = np.abs(one.astype(np.float64) - other)
    found[np.isnan(one) & np.isnan(other)] = 0.0
    found[np.isnan(found)] = np.inf
    return found


def _of_scalars(pair: _Pair, tolerance: float) -> dict[str, DivergencePoint]:
    found = {}
    for name in pair.scalars:
        read = [
            _placed(pair.axis, table, series[name].steps, series[name].values)
            for table, series in zip(pair.tables, pair.series, strict=True)
        ]
        (places, values), (others, other_values) = read
        both, i, j = np.intersect1d(places, others, return_indices=True)
        one, other = values[i], other_values[j]
        is_same = (one == other) | (np.isnan(one) & np.isnan(other))
        size = np.maximum(np.abs(one), np.abs(other))
        with np.errstate(invalid="ignore", divide="ignore"):
            deviation = np.where(is_same, 0.0, np.abs(one - other) / size)
        deviation = np.where(np.isnan(deviation), np.inf, deviation)
        if (deviation > tolerance).any():
            at = int((deviation > tolerance).argmax())
            found[name] = DivergencePoint(name, int(both[at]), float(deviation[at]))
    return found


def _placed(
    axis: Axis,
    table: NDArray[np.void],
    steps: NDArray[np.int64],
    values: NDArray[np.float64],
) -> tuple[NDArray[np.int64], Floats]:
    """Values by the places of their steps, the last of each; of ended steps only."""
    at = np.searchsorted(table["step"], steps)
    at = np.minimum(at, max(0, len(table) - 1))
    keep = table["step"][at] == steps if len(table) else np.zeros(len(steps), bool)
    places = axis.places(table)[at[keep]]
    _, last = np.unique(places[::-1], return_index=True)
    order = len(places) - 1 - last
    return places[order], np.asarray(values, np.float64)[keep][order]
