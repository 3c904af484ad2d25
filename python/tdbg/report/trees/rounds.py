"""Numbers by round: each as it was recorded, never the mean of a chart's column.

Thread safety: values; ``rounds_of`` as the subject.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.report.subject import Subject
from tdbg.trial import Series

__all__ = ["Rounds", "rounds_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """A number at the rounds that recorded it.

    Two numbers of one training may have been recorded at different rounds: compare
    them by ``at``, never by the index.

    Attributes:
        name: Name of the number.
        rounds: int64 (n,): the rounds, ascending.
        values: float64 (n,): the number after each; NaN if it was not finite.
    """

    name: str
    rounds: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def last(self) -> float:
        """The value at the last recorded round; REQUIRES: there is one."""
        return float(self.values[-1])

    def at(self, number: float) -> float:
        """Return the newest value that was known at a round, or else the first.

        Example:
            training.at(validation.rounds[best])
        """
        i = np.searchsorted(self.rounds, number, side="right") - 1
        return float(self.values[max(int(i), 0)])

    def drawn(self, label: str | None = None) -> Series:
        """Return the columns of a chart."""
        return Series.of_points(label or self.name, self.rounds, self.values)


def rounds_of(subject: Subject, name: str) -> Rounds:
    """Return a number by round, in whichever mode it was recorded."""
    found = subject.read(name, subject.trial.statistics, [name])
    if found is None:
        return Rounds(name, np.empty(0, np.int64), np.empty(0))
    there = found.present[0]
    values = np.where(found.finite[0] > 0, found.mean[0], np.nan)[there]
    rounds = subject.mode_steps(found.steps[there])
    order = np.argsort(rounds, kind="stable")
    order = order[rounds[order] >= 0]
    return Rounds(name, rounds[order], np.asarray(values[order], np.float64))
