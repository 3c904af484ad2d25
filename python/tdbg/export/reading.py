"""What an export needs of a run: read for many steps at once, asked for by step.

Thread safety: values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.export.selection import Plan, Selection, statistic_column
from tdbg.trial import Statistics, Trial

__all__ = ["Moments", "Pass", "Window"]

# Rows that are read at once: some 11 MB of columns.
_ROWS = 1 << 16
_MOST_STEPS = 4096

_SCALARS = np.dtype([("step", "i8"), ("name", "i8"), ("value", "f8"), ("wall", "i8")])

# Minimum, maximum, mean and l2 norm of the finite elements.
Moments = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Pass:
    """What is known of all steps that are written in one go.

    Attributes:
        plan: What is exported.
        statistics: The statistics of tensors that are.
        names: Tensors whose rows are needed: losses first.
        scalar_names: Names of the scalars.
        scalars: Their values, by step and name.
        histograms: Steps of the histograms by name, ascending, and whether each of
            them is stored.
    """

    plan: Plan
    statistics: tuple[str, ...]
    names: list[str]
    scalar_names: list[str]
    scalars: NDArray[np.void]
    histograms: dict[str, tuple[NDArray[np.int64], NDArray[np.bool_]]]

    @classmethod
    def of(cls, trial: Trial, selection: Selection, start: int, stop: int) -> Pass:
        """Of the global steps from *start* to before *stop*."""
        plan = Plan.of(trial, selection)
        statistics = tuple(selection.statistics)
        histograms = {}
        if selection.histograms != "none":
            for name in plan.tags:
                with_values = selection.histograms == "all" and name not in plan.refused
                steps = _histogram_steps(trial, name, with_values, start, stop)
                if len(steps[0]):
                    histograms[name] = steps
        names, scalars = _scalars(trial, plan.names, start, stop)
        wanted = [*plan.losses, *(plan.tags if statistics else histograms)]
        return cls(plan, statistics, wanted, names, scalars, histograms)

    @property
    def width(self) -> int:
        """How many steps a window may have."""
        return max(1, min(_MOST_STEPS, _ROWS // max(1, len(self.names))))

    def scalars_of(self, step: int) -> list[tuple[str, float, float]]:
        """Name, value and time in seconds of each scalar of a step."""
        low, high = np.searchsorted(self.scalars["step"], (step, step + 1))
        return [
            (self.scalar_names[int(number)], float(value), float(wall) / 1e9)
            for _, number, value, wall in self.scalars[low:high]
        ]


def _scalars(
    trial: Trial, names: frozenset[str], start: int, stop: int
) -> tuple[list[str], NDArray[np.void]]:
    found = [series for name, series in trial.scalars().items() if name in names]
    parts = [np.empty(0, _SCALARS)]
    for number, series in enumerate(found):
        chosen = (series.steps >= start) & (series.steps < stop)
        part = np.empty(int(chosen.sum()), _SCALARS)
        part["step"], part["name"] = series.steps[chosen], number
        part["value"], part["wall"] = series.values[chosen], series.wall_ns[chosen]
        parts.append(part)
    rows = np.concatenate(parts)
    rows = rows[np.argsort(rows["step"], kind="stable")]
    return [series.name for series in found], rows


def _histogram_steps(
    trial: Trial, name: str, with_values: bool, start: int, stop: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    tensor = trial.tensor(name)
    stored = np.array(tensor.steps(what="histograms"), np.int64)
    steps = stored
    if with_values:
        steps = np.union1d(stored, np.array(tensor.steps(what="values"), np.int64))
    low, high = np.searchsorted(steps, (start, stop))
    steps = steps[low:high]
    return steps, np.isin(steps, stored, assume_unique=True)


class Window:
    """The rows of a few steps.

    Args:
        trial: The run.
        found: The pass that it is part of.
        steps: The steps, of the step table.
    """

    def __init__(self, trial: Trial, found: Pass, steps: NDArray[np.void]) -> None:
        start, stop = int(steps["step"][0]), int(steps["step"][-1]) + 1
        self._plan = found.plan
        self._names = found.names
        self._rows = {name: row for row, name in enumerate(found.names)}
        self._table: Statistics | None = None
        self._columns: dict[int, int] = {}
        self._extra: list[tuple[str, NDArray[Any]]] = []
        if found.names:
            table = self._table = trial.statistics(found.names, start=start, end=stop)
            self._columns = {int(step): at for at, step in enumerate(table.steps)}
            self._losses = table.reduction("mean")
            self._extra = [
                (name, statistic_column(table, name)) for name in found.statistics
            ]
        self._histograms: dict[int, list[tuple[str, bool]]] = {}
        for name, (its, stored) in found.histograms.items():
            low, high = np.searchsorted(its, (start, stop))
            for at in range(low, high):
                here = self._histograms.setdefault(int(its[at]), [])
                here.append((name, bool(stored[at])))

    def numbers(self, step: int) -> list[tuple[str, float]]:
        """Losses and statistics of a step, by tag."""
        column = self._columns.get(step)
        if self._table is None or column is None:
            return []
        n_losses = len(self._plan.losses)
        numbers = []
        for row in np.flatnonzero(self._table.present[:, column]).tolist():
            name = self._names[row]
            if row < n_losses:
                numbers.append((name, float(self._losses[row, column])))
                continue
            tag = self._plan.tags[name]
            for statistic, values in self._extra:
                numbers.append((f"{tag}/{statistic}", float(values[row, column])))
        return numbers

    def with_histograms(self, step: int) -> Sequence[tuple[str, bool]]:
        """Tensors with histograms at a step, and whether those are stored."""
        return self._histograms.get(step, ())

    def moments(self, step: int, name: str) -> Moments | None:
        """Of the row of a tensor; None if there is none."""
        column, row = self._columns.get(step), self._rows.get(name)
        table = self._table
        if table is None or column is None or row is None:
            return None
        if not table.present[row, column]:
            return None
        low, high, mean, l2 = (
            float(values[row, column])
            for values in (table.min, table.max, table.mean, table.l2)
        )
        return low, high, mean, l2
