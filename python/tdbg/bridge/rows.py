"""The numbers of a run, a row for each step, under the names that trackers show.

Thread safety: none; one thread reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tdbg.export import STEPS, ExportPlan, Pass, Selection, StepWindow
from tdbg.modes import ModeKeys
from tdbg.trial import Trial

__all__ = ["StepRow", "StepRowReader"]

_MODES = {mode.value: mode.name.lower() for mode in ModeKeys}
_SCALAR = "scalar/"


@dataclass(frozen=True, slots=True)
class StepRow:
    """What one step of the training told.

    Attributes:
        global_step: The step over all modes; grows from row to row.
        step: The step that charts have as their axis.
        wall: When the step ended, in seconds since 1970.
        values: Numbers by name, such as ``train/loss``.
    """

    global_step: int
    step: int
    wall: float
    values: Mapping[str, float]


class StepRowReader:
    """Reads the rows of a run that are complete.

    Args:
        trial: The run.
        selection: Which tensors, which statistics, and which steps.

    Raises:
        QueryError: If there is no such collection.
    """

    def __init__(self, trial: Trial, selection: Selection) -> None:
        self._trial = trial
        self._selection = selection
        self._column = STEPS[selection.steps]
        ExportPlan.of(trial, selection)

    @property
    def axis(self) -> str:
        """The name of the steps that ``StepRow.step`` has: ``training_step``, ..."""
        return "global_step" if self._column == "step" else self._column

    def read(self, start: int) -> Iterator[StepRow]:
        """Yield the complete steps from the global step *start* on that tell something.

        Raises:
            StorageError: If the run cannot be read.
        """
        trial = self._trial
        with trial.no_refresh():
            table = trial.step_table(start)
            table = table[table["step"] <= trial.last_complete_step]
            if not len(table):
                return
            first, last = int(table["step"][0]), int(table["step"][-1])
            found = Pass.of(trial, self._selection, first, last + 1)
            for at in range(0, len(table), found.width):
                steps = table[at : at + found.width]
                window = StepWindow(trial, found, steps)
                for each in steps:
                    step = int(each["step"])
                    mode = _MODES.get(int(each["mode"]), "global")
                    scalars = [(n, v) for n, v, _ in found.scalars_of(step)]
                    values = {
                        f"{mode}/{name.removeprefix(_SCALAR)}": value
                        for name, value in (*scalars, *window.numbers(step))
                    }
                    if values:
                        wall = float(each["wall_ns"]) / 1e9
                        yield StepRow(step, int(each[self._column]), wall, values)
