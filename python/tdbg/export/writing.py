"""Writes the steps of a run into the files of an export, each once and in order.

Thread safety: none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg import _core
from tdbg.errors import QueryError, StorageError
from tdbg.export.events import Messages, record
from tdbg.export.folder import ExportFolder
from tdbg.export.reading import Moments, Pass, Window
from tdbg.export.report import ExportReport
from tdbg.export.selection import Selection
from tdbg.histogram import Histogram
from tdbg.modes import ModeKeys
from tdbg.trial import Trial

__all__ = ["Writing"]

_MODES = {mode.value: mode.name for mode in ModeKeys}
# What the extremes of integers are held as, by kind; of all others float64.
_CLASSES: dict[str, Any] = {"b": np.uint64, "u": np.uint64, "i": np.int64}


class Writing:
    """An export under way.

    Args:
        trial: The run.
        folder: Where it goes.
        selection: What of it.
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
        """Write what the run has by now, and was not written yet.

        Args:
            deadline: Ends there, by the monotonic clock, between two steps.
            progress: Called with the steps that are done and all of them.

        Returns:
            Whether anything was written, or this is the first time.

        Raises:
            QueryError: If the collection that was asked for does not exist.
            StorageError: If the run cannot be read or the files not be written.
        """
        trial = self._trial
        trial.refresh()
        with trial.no_refresh():
            is_first = self._n_attempts is None
            n_attempts = len(trial.attempts())
            if n_attempts != self._n_attempts:
                # What a resumed training repeats was written already.
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
        """What was written so far."""
        return ExportReport(
            run=self._trial.path,
            out=str(self._folder.out),
            files=self._folder.files,
            steps=self._n_steps,
            last_step=self._next - 1 if self._n_steps else -1,
            scalars=self._n_scalars,
            histograms=self._n_histograms,
            unreadable=self._n_unreadable,
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
        """Write these steps; how many there was time for."""
        first, last = int(table["step"][0]), int(table["step"][-1])
        found = Pass.of(self._trial, self._selection, first, last + 1)
        done = 0
        for at in range(0, len(table), found.width):
            steps = table[at : at + found.width]
            window = Window(self._trial, found, steps)
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

    def _write_step(self, found: Pass, window: Window, row: np.void) -> None:
        step, wall = int(row["step"]), float(row["wall_ns"]) / 1e9
        mode = _MODES.get(int(row["mode"]), ModeKeys.GLOBAL.name)
        shown = step if self._selection.steps == "global" else int(row["mode_step"])
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
        self, window: Window, step: int, name: str, is_stored: bool
    ) -> tuple[Histogram, Moments] | None:
        """None for what cannot be read, or counted."""
        if name in self._not_counted:
            return None
        tensor = self._trial.tensor(name)
        try:
            if not is_stored:
                value = tensor.value(step)
                return Histogram.of(value), _moments(value)
            histogram, moments = tensor.histogram(step), window.moments(step, name)
            if moments is None:
                row = tensor.stats(step)
                moments = float(row.min), float(row.max), row.mean, row.l2
        except (QueryError, StorageError):
            self._n_unreadable += 1
            return None
        except TypeError:  # Of complex numbers and text there are no statistics.
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
    row = _core.reduce(value)
    kind = _CLASSES.get(value.dtype.kind, np.float64)
    low, high = (float(row[name].view(kind)) for name in ("min", "max"))
    return low, high, float(row["mean"]), float(row["l2"])
