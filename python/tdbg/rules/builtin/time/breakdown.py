"""Where the time of a bin's steps goes: sums over its usual steps.

Thread safety: immutable values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.rules.profile import Bin, Rows
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase

__all__ = [
    "ENOUGH_NS",
    "ENOUGH_STEPS",
    "Breakdown",
    "breakdown_of",
    "is_enough",
    "share_of_most_ranks",
]

# What a bin must hold to be judged: so many steps, or so much time in steps.
ENOUGH_STEPS = 5
ENOUGH_NS = 8 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The usual steps of a bin, of all workers.

    Attributes:
        n_steps: How many there are.
        step_ns: Their median duration.
        total_ns: Their summed duration.
        shares: The share of each phase in that sum.
    """

    n_steps: int
    step_ns: float
    total_ns: int
    shares: Mapping[Phase, float]

    def share(self, *phases: Phase) -> float:
        """Return the share of some phases together."""
        return sum(self.shares[phase] for phase in phases)


def is_enough(steps: Rows) -> bool:
    """Return whether so many steps can be judged."""
    n_workers = max(1, len(np.unique(steps["worker"])))
    return (
        len(steps) >= ENOUGH_STEPS * n_workers
        or int(steps["duration_ns"].sum()) >= ENOUGH_NS * n_workers
    )


def breakdown_of(each: Bin) -> Breakdown | None:
    """Return where the time of a bin's usual steps goes; None if they are too few."""
    return each.derived("breakdown", lambda: _breakdown(each.usual_steps))


def share_of_most_ranks(each: Bin, phase: Phase) -> float:
    """Return the median over ranks of a phase's share of their usual steps.

    What one rank does alone, others wait for: ``Straggler`` says so.
    """
    steps = each.usual_steps
    shares = []
    for worker in np.unique(steps["worker"]):
        own = steps[steps["worker"] == worker]
        part, whole = own[PHASE_COLUMNS[phase]].sum(), own["duration_ns"].sum()
        shares.append(float(part) / max(1.0, float(whole)))
    return float(np.median(shares))


def _breakdown(steps: Rows) -> Breakdown | None:
    total = int(steps["duration_ns"].sum())
    if total <= 0 or not is_enough(steps):
        return None
    return Breakdown(
        n_steps=len(steps),
        step_ns=float(np.median(steps["duration_ns"])),
        total_ns=total,
        shares={
            phase: float(steps[column].sum()) / total
            for phase, column in PHASE_COLUMNS.items()
        },
    )
