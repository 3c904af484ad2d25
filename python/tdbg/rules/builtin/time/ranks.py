"""What a bin shows of the ranks of a training: who works longest, and who waits.

A synchronous training takes equally long steps on all ranks.  They differ in their own
work: the step without waiting for the others.  The slowest rank waits least.

Thread safety: immutable values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.rules.profile import Bin, Rows
from tdbg.rules.table import Floats
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase
from tdbg.run.told_phases import world_size_of

__all__ = ["Ranks", "ranks_of"]

# Fewer common steps than this say nothing of ranks.
ENOUGH_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The usual steps that all ranks have in common in a bin.

    Attributes:
        workers: Numbers of the ranks.
        own_ns: Ranks x steps: the time of a step without communication.
        work_ns: The same, and without waiting for data.
        step_ns: Median duration of a step.
        phases: The medians of each phase, by rank.
        samples: The median number of samples in a batch of each rank; -1: unknown.
    """

    workers: tuple[int, ...]
    own_ns: Floats
    work_ns: Floats
    step_ns: float
    phases: dict[Phase, Floats]
    samples: Floats

    @property
    def own(self) -> Floats:
        """The median of each rank's own work, in ns."""
        medians: Floats = np.median(self.own_ns, axis=1)
        return medians

    def last_share(self, rank: int) -> float:
        """Return in which share of the steps a rank has most work."""
        return float((self.own_ns.argmax(axis=0) == rank).mean())

    def differing_phase(self, rank: int, others: Sequence[int], *waits: Phase) -> Phase:
        """Return the phase in which a rank exceeds the median of others most.

        Communication is none of its own, nor is any of *waits*.
        """
        excess = {
            phase: float(values[rank] - np.median(values[list(others)]))
            for phase, values in self.phases.items()
            if phase not in (Phase.COMMUNICATION, *waits)
        }
        return max(excess, key=lambda phase: excess[phase])


def ranks_of(each: Bin) -> Ranks | None:
    """Return what a bin shows of its ranks.

    None if there is one, if some of them wrote nothing, or if there are too few steps.
    """
    return each.derived("ranks", lambda: _ranks(each))


def _ranks(each: Bin) -> Ranks | None:
    steps = each.usual_steps
    workers = np.unique(steps["worker"]).tolist()
    n_ranks = max(2, each.n_workers, world_size_of(each.configuration))
    if len(workers) < n_ranks:
        return None
    by_worker = [steps[steps["worker"] == worker] for worker in workers]
    common = by_worker[0]["global_step"]
    for rows in by_worker[1:]:
        common = np.intersect1d(common, rows["global_step"])
    if len(common) < ENOUGH_STEPS:
        return None
    table = [rows[np.isin(rows["global_step"], common)] for rows in by_worker]
    if any(len(rows) != len(common) for rows in table):
        return None
    duration = np.array([rows["duration_ns"] for rows in table], np.float64)
    waited = _of_phase(table, Phase.COMMUNICATION)
    return Ranks(
        workers=tuple(workers),
        own_ns=duration - waited,
        work_ns=duration - waited - _of_phase(table, Phase.DATA_WAIT),
        step_ns=float(np.median(duration)),
        phases={
            phase: np.array([float(np.median(rows[column])) for rows in table])
            for phase, column in PHASE_COLUMNS.items()
        },
        samples=np.array([float(np.median(rows["samples"])) for rows in table]),
    )


def _of_phase(table: Sequence[Rows], phase: Phase) -> Floats:
    """Return the time of a phase: ranks x steps."""
    return np.array([rows[PHASE_COLUMNS[phase]] for rows in table], np.float64)
