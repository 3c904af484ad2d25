"""The numbers of steps beside each row of a table.

Thread safety: values; ``StepNumbers.of`` runs with the trial's lock held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.trial.run import RunState
from tdbg.trial.tables.batch import Scope, Values, Words

__all__ = ["STEP_COLUMNS", "StepNumbers"]

#: The columns that tell which step a row is of.
STEP_COLUMNS = ("step", "mode", "mode_step", "global_step")
# Names of modes, by their numbers from 1 on.
MODE_WORDS = tuple(mode.name for mode in ModeKeys)


def words_of_modes(numbers: NDArray[Any]) -> Words:
    """Return modes by their numbers; one of a later tdbg has no word."""
    codes = numbers.astype(np.int32) - 1
    codes[(codes < 0) | (codes >= len(MODE_WORDS))] = -1
    return Words(codes, MODE_WORDS)


@dataclass(frozen=True, slots=True, eq=False)
class StepNumbers:
    """All numbers of the recorded steps of a scope, in the order of global steps.

    Attributes:
        steps: int64: global steps, ascending.
        training_steps: int64: where each stands in the training.
        modes: The number of its mode.
        mode_steps: int64: its number in that mode.
    """

    steps: NDArray[np.int64]
    training_steps: NDArray[np.int64]
    modes: NDArray[Any]
    mode_steps: NDArray[np.int64]

    @classmethod
    def of(cls, run: RunState, scope: Scope) -> StepNumbers:
        """Return those of a run."""
        table = run.table
        steps, modes = table.steps, table.column("mode")
        first = 0 if scope.start is None else int(np.searchsorted(steps, scope.start))
        stop = len(steps) if scope.end is None else np.searchsorted(steps, scope.end)
        at = np.arange(first, stop)
        if scope.mode is not ModeKeys.GLOBAL:
            at = at[modes[at] == scope.mode.value]
        return cls(
            steps[at].astype(np.int64),
            table.training_steps[at].astype(np.int64),
            modes[at],
            table.column("mode_step")[at].astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.steps)

    def column(self, name: str, at: NDArray[Any] | slice) -> Values:
        """Return one of ``STEP_COLUMNS`` of the steps at these places."""
        if name == "mode":
            return words_of_modes(self.modes[at])
        numbers = {
            "step": self.training_steps,
            "mode_step": self.mode_steps,
            "global_step": self.steps,
        }
        return numbers[name][at]
