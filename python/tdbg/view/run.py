"""A run as every face shows it.

Thread safety: values; ``view_of`` holds the trial's lock inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tdbg.trial import Trial
from tdbg.view.curves import LastLoss, last_loss
from tdbg.view.head import Head, head_of
from tdbg.view.problems import Diagnosis, diagnosis_of_run
from tdbg.view.verdict import Verdict, verdict_of

__all__ = ["RunView", "view_of"]


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
        """Return a dictionary that JSON can hold."""
        return {
            "head": self.head.to_json(),
            "verdict": self.verdict.to_json(),
            "problems": [each.to_json() for each in self.diagnosis.problems],
            "last_loss": None if self.loss is None else self.loss.to_json(),
        }


def view_of(trial: Trial, diagnosis: Diagnosis | None = None) -> RunView:
    """Return how a run is now.

    Args:
        trial: The run.
        diagnosis: What rules said about it; None: what the run holds.

    Raises:
        TdbgError: If the run cannot be read.

    Example:
        print(view_of(tdbg.create_trial("runs/digits")).verdict.sentence)
    """
    with trial.no_refresh():
        head = head_of(trial)
        found = diagnosis_of_run(trial) if diagnosis is None else diagnosis
        return RunView(head, found, verdict_of(head, found), last_loss(trial))
