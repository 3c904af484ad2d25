"""What comes between steps now and then: checkpoints and evaluations.

A share is only known over whole periods: from the end of one pause to the end of
another.  So there must be two.

Thread safety: immutable values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.rules.profile import Bin
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase

__all__ = ["Pauses", "pauses_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """The pauses of one kind in some bins, of the first worker.

    Attributes:
        n: How many there are.
        longest_ns: How long the longest took.
        usual_ns: How long most of them take, so that a busy disk does not count.
        every_ns: Time from one to the next; 0 if there is only one.
        steps: How many steps lie between two of them.
    """

    n: int
    longest_ns: int
    usual_ns: float
    every_ns: float
    steps: float

    @property
    def share(self) -> float:
        """The share of the time that they take; 0 if there is only one."""
        return self.usual_ns / self.every_ns if self.every_ns > 0 else 0.0


def pauses_in(bins: Sequence[Bin], phase: Phase) -> Pauses:
    """Return the pauses of a phase in consecutive bins."""
    column = PHASE_COLUMNS[phase]
    # Columns, not rows: a window of bins has many wide ones.
    keep = [each.has_begun & (each.steps["worker"] == 0) for each in bins]
    length, times = (
        np.concatenate(
            [each.steps[name][k] for each, k in zip(bins, keep, strict=True)]
        )
        for name in (column, "time")
    )
    at = np.flatnonzero(length > 0)
    if not len(at):
        return Pauses(n=0, longest_ns=0, usual_ns=0.0, every_ns=0.0, steps=0.0)
    length, times = length[at], times[at]
    n = len(at)
    return Pauses(
        n=n,
        longest_ns=int(length.max()),
        usual_ns=float(np.median(length)),
        every_ns=float(times[-1] - times[0]) / (n - 1) if n > 1 else 0.0,
        steps=float(at[-1] - at[0]) / (n - 1) if n > 1 else 0.0,
    )
