"""Reads a run for an export, many steps at a time, and writes it step by step.

Thread safety: none; one thread exports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg._core import reduce
from tdbg.errors import QueryError, StorageError
from tdbg.export.event_files import ExportFolder, Messages, record
from tdbg.export.selection import (
    STEPS,
    ExportPlan,
    ExportReport,
    Selection,
    statistic_column,
)
from tdbg.modes import GLOBAL, ModeKeys
from tdbg.stats.histogram import Histogram
from tdbg.trial import Statistics, Trial

__all__ = ["Moments", "Pass", "StepWindow", "Writing"]


# Rows that are read at once: about 11 MB of columns.
_ROWS = 1 << 16
_MOST_STEPS = 4096

_SCALARS = np.dtype([("step", "i8"), ("name", "i8"), ("value", "f8"), ("wall", "i8")])

# Minimum, maximum, mean and l2 norm of the finite elements.
Moments = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Pass:
    """A range of steps that is exported in one pass, with its scalars in memory.

    Attributes:
        plan: What is exported.
        statistics: The statistics of tensors that are exported.
        names: Names of the tensors whose rows are read; losses come first.
        scalar_names: Names of the scalars.
        scalars: Values of the scalars, by step; ``name`` is an index of
            *scalar_names*.
        histograms: By name, the steps of its histograms, ascending, and whether each
            histogram is stored (or else made of raw values).
    """

    plan: ExportPlan
    statistics: tuple[str, ...]
    names: list[str]
    scalar_names: list[str]
    scalars: NDArray[np.void]
    histograms: dict[str, tuple[NDArray[np.int64], NDArray[np.bool_]]]

    @classmethod
    def of(cls, trial: Trial, selection: Selection, start: int, stop: int) -> Pass:
        """The pass over the global steps from *start* to before *stop*."""
        plan = ExportPlan.of(trial, selection)
        statistics = tuple(selection.statistics)
        histograms = {}
        if selection.histograms != "none":
            for name in plan.tags:
                with_values = selection.histograms == "all" and name not in plan.refused
                steps = _histogram_steps(trial, name, with_values, start, stop)
                if len(steps[0]):
                    histograms[name] = steps
        names, scalars = _scalars(trial, plan.names, start, stop)
        requested = [*plan.losses, *(plan.tags if statistics else histograms)]
        return cls(plan, statistics, requested, names, scalars, histograms)

    @property
    def width(self) -> int:
        """The largest number of steps of a window."""
        return max(1, min(_MOST_STEPS, _ROWS // max(1, len(self.names))))

    def scalars_of(self, step: int) -> list[tuple[str, float, float]]:
        """The name, value and time (seconds since 1970) of each scalar of a step."""
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
    stored = np.array(tensor.steps(GLOBAL, "histograms"), np.int64)
    steps = stored
    if with_values:
        steps = np.union1d(stored, np.array(tensor.steps(GLOBAL, "values"), np.int64))
    low, high = np.searchsorted(steps, (start, stop))
    steps = steps[low:high]
    return steps, np.isin(steps, stored, assume_unique=True)


class StepWindow:
    """The statistics of a few steps of a pass.

    Args:
        trial: The run.
        found: The pass.
        steps: The rows of these steps in the step table.
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
        """The losses and statistics of a step, by tag."""
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
        """The tensors with a histogram at a step, and whether it is stored."""
        return self._histograms.get(step, ())

    def moments(self, step: int, name: str) -> Moments | None:
        """The moments in the row of a tensor; None if there is no row."""
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


_MODES = {mode.value: mode.name for mode in ModeKeys}
# By kind, the types in which rows hold the extremes of integers; otherwise float64.
_CLASSES: dict[str, Any] = {"b": np.uint64, "u": np.uint64, "i": np.int64}


class Writing:
    """Writes a run into a folder, as far as the run has come.

    Args:
        trial: The run.
        folder: The folder.
        selection: What is exported.
        messages: The messages of TensorBoard.

    Attributes:
        has_all: Whether the training has ended and everything is written.
    """

    def __init__(
        self,
        trial: Trial,
        folder: ExportFolder,
        selection: Selection,
        messages: Messages,
    ) -> None:
        self._trial = trial
        self._folder = folder
        self._selection = selection
        self._messages = messages
        self._n_attempts: int | None = None
        self._restart()

    def advance(
        self,
        deadline: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> bool:
        """Write the steps that the run has got since the last call.

        Args:
            deadline: Time of the monotonic clock at which to stop, between two steps.
            progress: Called with the numbers of steps done and of all steps.

        Returns:
            Whether anything was written, or this is the first call.

        Raises:
            QueryError: If the collection of the selection does not exist.
            StorageError: If the run cannot be read or a file cannot be written.
        """
        trial = self._trial
        trial.refresh()
        with trial.no_refresh():
            is_first = self._n_attempts is None
            n_attempts = len(trial.attempts())
            if n_attempts != self._n_attempts:
                # The resumed training repeats steps that were written already.
                self._folder.restart()
                self._restart()
                self._n_attempts = n_attempts
            ended = trial.loaded_all_steps
            table = trial.step_table(self._next)
            table = table[table["step"] <= trial.last_complete_step]
            done = self._write(table, deadline, progress) if len(table) else 0
            self.has_all = ended and done == len(table)
        return is_first or done > 0

    def report(self) -> ExportReport:
        """Return what was written so far."""
        return ExportReport(
            run=self._trial.path,
            out=str(self._folder.out),
            files=self._folder.files,
            steps=self._n_steps,
            last_step=self._next - 1 if self._n_steps else -1,
            scalars=self._n_scalars,
            histograms=self._n_histograms,
            unreadable=self._n_unreadable,
            lost_records=self._trial.lost_records().to_json(),
            complete=self.has_all,
        )

    def _restart(self) -> None:
        self._next = 0
        self.has_all = False
        self._n_steps = self._n_scalars = self._n_histograms = 0
        self._n_unreadable = 0
        self._not_counted: set[str] = set()

    def _write(
        self,
        table: NDArray[np.void],
        deadline: float | None,
        progress: Callable[[int, int], None] | None,
    ) -> int:
        """Write these steps; return how many of them, as time may run out."""
        first, last = int(table["step"][0]), int(table["step"][-1])
        found = Pass.of(self._trial, self._selection, first, last + 1)
        done = 0
        for at in range(0, len(table), found.width):
            steps = table[at : at + found.width]
            window = StepWindow(self._trial, found, steps)
            for row in steps:
                self._write_step(found, window, row)
                self._next = int(row["step"]) + 1
                self._n_steps += 1
                done += 1
                if deadline is not None and time.monotonic() >= deadline:
                    return done
            if progress is not None:
                progress(done, len(table))
        return done

    def _write_step(self, found: Pass, window: StepWindow, row: np.void) -> None:
        step, wall = int(row["step"]), float(row["wall_ns"]) / 1e9
        mode = _MODES.get(int(row["mode"]), ModeKeys.GLOBAL.name)
        shown = int(row[STEPS[self._selection.steps]])
        make = self._messages
        for name, value, when in found.scalars_of(step):
            self._put(mode, make.scalars(shown, when, [(name, value)]))
            self._n_scalars += 1
        numbers = window.numbers(step)
        if numbers:
            self._put(mode, make.scalars(shown, wall, numbers))
            self._n_scalars += len(numbers)
        for name, is_stored in window.with_histograms(step):
            counted = self._histogram(window, step, name, is_stored)
            if counted is not None and counted[0].finite:
                tag = found.plan.tags[name]
                self._put(mode, make.histogram(shown, wall, tag, *counted))
                self._n_histograms += 1

    def _histogram(
        self, window: StepWindow, step: int, name: str, is_stored: bool
    ) -> tuple[Histogram, Moments] | None:
        """Read or make a histogram; None if that is impossible."""
        if name in self._not_counted:
            return None
        tensor = self._trial.tensor(name)
        try:
            if not is_stored:
                value = tensor.value(step, GLOBAL)
                return Histogram.of(value), _moments(value)
            histogram = tensor.histogram(step, GLOBAL)
            moments = window.moments(step, name)
            if moments is None:
                row = tensor.stats(step, GLOBAL)
                moments = float(row.min), float(row.max), row.mean, row.l2
        except (QueryError, StorageError):
            self._n_unreadable += 1
            return None
        except TypeError:  # Complex numbers and text have no statistics.
            self._not_counted.add(name)
            return None
        return histogram, moments

    def _put(self, mode: str, event: Any) -> None:
        file = self._folder.file(mode)
        if file is None:
            file = self._folder.begin(mode)
            file.append(record(self._messages.header(self._folder.created)))
        file.append(record(event))


def _moments(value: NDArray[Any]) -> Moments:
    row = reduce(value)
    kind = _CLASSES.get(value.dtype.kind, np.float64)
    low, high = (float(row[name].view(kind)) for name in ("min", "max"))
    return low, high, float(row["mean"]), float(row["l2"])
