"""A run as every face shows it, and as a row of a table of runs.

Thread safety: values; ``view_of`` holds the trial's lock inside.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import TdbgError
from tdbg.importers import is_converted
from tdbg.trial import Trial, create_trial
from tdbg.view.curves import LastLoss, last_loss
from tdbg.view.head import Head, head_of
from tdbg.view.problems import Diagnosis, diagnosis_of_run
from tdbg.view.verdict import Verdict, verdict_of

__all__ = ["UNREADABLE", "RunRow", "RunView", "not_read", "row_of", "view_of"]


#: State of a run that cannot be read.
UNREADABLE = "unreadable"
# Of what smdebug wrote, before somebody has opened it.
NOT_READ = "smdebug, not read yet"


@dataclass(frozen=True, slots=True)
class RunView:
    """How a run is.

    Attributes:
        head: The run in numbers.
        diagnosis: What the rules said about it.
        verdict: How it is, in a sentence.
        loss: The last loss, or None.
    """

    head: Head
    diagnosis: Diagnosis
    verdict: Verdict
    loss: LastLoss | None

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold: what every face shows of a run."""
        return {
            **self.head.to_json(),
            "verdict": self.verdict.to_json(),
            "problems": [each.to_json() for each in self.diagnosis.problems],
            "counts": self.diagnosis.counts,
            "last_loss": None if self.loss is None else self.loss.to_json(),
        }


def view_of(
    trial: Trial,
    diagnosis: Diagnosis | None = None,
    *,
    table: NDArray[np.void] | None = None,
) -> RunView:
    """Return how a run is now.

    Args:
        trial: The run.
        diagnosis: What rules said about it; None: what the run holds.
        table: Its steps, as ``Trial.step_table`` returns them; None: they are read.

    Raises:
        TdbgError: If the run cannot be read.

    Example:
        print(view_of(tdbg.create_trial("runs/digits")).verdict.sentence)
    """
    with trial.no_refresh():
        table = trial.step_table() if table is None else table
        head = head_of(trial, table)
        found = diagnosis_of_run(trial) if diagnosis is None else diagnosis
        return RunView(head, found, verdict_of(head, found), last_loss(trial, table))


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a table.

    Attributes:
        view: How it is; None if it cannot be read, or was not read yet.
        error: Why it was not read; empty if it was.
        state: Where there is no view, what stands in its place.
    """

    view: RunView | None
    error: str = ""
    state: str = UNREADABLE

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        if self.view is None:
            return {"state": self.state, "error": self.error}
        return self.view.to_json()


def not_read(how: str) -> RunRow:
    """Return the row of what smdebug wrote, before somebody opens it.

    Args:
        how: What reads it.
    """
    return RunRow(None, how, NOT_READ)


def row_of(path: str | os.PathLike[str]) -> RunRow:
    """Return a run as a row, even if it cannot be read.

    What smdebug wrote is read when somebody opens it, and not to list it: that takes a
    while, and as much disk again.
    """
    try:
        if not is_converted(path):
            return not_read(f"tdbg show {path} reads it")
        return RunRow(view_of(create_trial(path)))
    except TdbgError as error:
        return RunRow(None, str(error))
