"""How a job went: its phases, its beginning, the slow steps, and the throughput.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.run.profile_tables import PHASE_COLUMNS, Phase
from tdbg.stats.estimates import slow_limit
from tdbg.view.time.breakdown import PhaseBreakdown
from tdbg.view.time.phases import COMPUTING, NAMES

__all__ = [
    "AFTER",
    "STARTUP",
    "JobPhase",
    "SlowStep",
    "Throughput",
    "after_warm_up",
    "job_phases",
    "slow_steps",
    "throughput_of",
]

MOST_SLOW = 20
# So many steps of a training are not like the rest of it.
WARM_STEPS = 20
#: Names of the parts of a job that are no phase of a step.
STARTUP, AFTER = "start-up", "after the last step"


def after_warm_up(steps: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which steps come after the first 20 of their rank.

    The first steps import, compile, fill caches, start workers and measure how much
    capture may cost.  At most the first half of the steps of a rank is left out.

    Args:
        steps: Rows of the table ``step`` of training, by time, with ``worker``.
    """
    is_steady = np.ones(len(steps), bool)
    for worker in np.unique(steps["worker"]).tolist():
        own = np.flatnonzero(steps["worker"] == worker)
        is_steady[own[: min(WARM_STEPS, len(own) // 2)]] = False
    return is_steady


@dataclass(frozen=True, slots=True)
class JobPhase:
    """A part of the time of a job.

    Attributes:
        name: What it is.
        seconds: How long it took; of several ranks, the mean.
        share: Its share of the job, 0 to 1.
        is_productive: Whether the model computed in it.
    """

    name: str
    seconds: float
    share: float
    is_productive: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)


def job_phases(
    steps: PhaseBreakdown, before_s: float, loop_s: float, after_s: float
) -> tuple[JobPhase, ...]:
    """Return the phases of a job, which add up to it.

    Args:
        steps: Where the time of its training steps went.
        before_s: Seconds from its start to the first step.
        loop_s: Seconds from the start of its first step to the end of its last.
        after_s: Seconds from there to its end.
    """
    whole = max(before_s + loop_s + after_s, 1e-9)
    computing = steps.share_of(*COMPUTING)
    parts = [(STARTUP, before_s, False), ("computing", loop_s * computing, True)]
    parts += [
        (each.name, loop_s * each.share, False)
        for each in steps.phases
        if each.phase not in COMPUTING
    ]
    parts.append((AFTER, after_s, False))
    return tuple(
        JobPhase(name, seconds, seconds / whole, is_productive)
        for name, seconds, is_productive in parts
        if seconds > 0
    )


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A step that took much longer than others.

    Attributes:
        step: Which training step.
        worker: Of which rank.
        duration_ns: How long it took.
        phase: The phase that took most more than usual.
        excess_ns: How much more.
    """

    step: int
    worker: int
    duration_ns: int
    phase: Phase
    excess_ns: float

    @property
    def phase_name(self) -> str:
        """The name that users know, of the phase."""
        return NAMES[self.phase]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {**asdict(self), "phase": self.phase_name}


def slow_steps(
    rows: NDArray[np.void], places: NDArray[np.int64], most: int = MOST_SLOW
) -> tuple[int, tuple[SlowStep, ...]]:
    """Return how many steps were slow, and the slowest.

    Args:
        rows: Rows of the table ``step``, with the column ``worker``.
        places: The training step of each.
        most: At most so many are named.
    """
    if not len(rows):
        return 0, ()
    limit = slow_limit(rows["duration_ns"].astype(np.float64))
    slow = np.flatnonzero(rows["duration_ns"] > limit)
    order = slow[np.argsort(-rows["duration_ns"][slow], kind="stable")][:most]
    usual = {each: np.median(rows[column]) for each, column in PHASE_COLUMNS.items()}
    found = []
    for i in order.tolist():
        row = rows[i]
        excess = {p: float(row[c] - usual[p]) for p, c in PHASE_COLUMNS.items()}
        phase = max(excess, key=excess.__getitem__)
        duration = int(row["duration_ns"])
        step, worker = int(places[i]), int(row["worker"])
        found.append(SlowStep(step, worker, duration, phase, excess[phase]))
    return len(slow), tuple(found)


@dataclass(frozen=True, slots=True)
class Throughput:
    """How much a training gets through, all ranks together.

    Attributes:
        steps_per_s: Training steps a second.
        samples_per_s: Samples a second; None: no batch said how many it has.
        tokens_per_s: Tokens a second; None likewise.
    """

    steps_per_s: float
    samples_per_s: float | None
    tokens_per_s: float | None

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)


def throughput_of(rows: NDArray[np.void]) -> Throughput:
    """Return the throughput of step rows, of one rank or more, at least one row."""
    n_workers = len(np.unique(rows["worker"]))
    seconds = max(float(rows["duration_ns"].sum()) / 1e9 / n_workers, 1e-9)
    totals = []
    for column in ("samples", "tokens"):
        known = rows[column] >= 0
        # A step that says nothing is taken for one like the others.
        mean = float(rows[column][known].mean()) if known.any() else None
        totals.append(None if not mean else mean * len(rows) / seconds)
    return Throughput(len(rows) / n_workers / seconds, totals[0], totals[1])
