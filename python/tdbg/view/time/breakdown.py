"""Where the time of steps goes: shares of phases, and phases over the steps.

Thread safety: pure functions over values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import conjoin
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase
from tdbg.view.time.bins import BinColumns, Integers, binned
from tdbg.view.time.phases import (
    NAMES,
    ORDER,
    duration_text,
    names_of,
    percent_text,
)

__all__ = [
    "Bands",
    "PhaseBreakdown",
    "PhaseShare",
    "bands_of",
    "breakdown_of",
    "remarks_of",
    "sentence_of",
]

# Phases with a smaller share are together "the rest" in a sentence.
LEAST_NAMED = 0.05
MOST_NAMED = 4
# Beyond these shares, phases are odd: other code of a step, and one of both passes.
MOST_OTHER, MOST_ONE_WAY = 0.25, 0.7


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """A phase of some steps.

    Attributes:
        phase: Which one.
        name: The name that users know.
        share: Its share of the summed time of the steps, 0 to 1.
        total_ns: Its time in all of the steps.
        median_ns: Its time in a step: the median over the steps.
        p95_ns: That which 95 of 100 steps do not exceed.
    """

    phase: Phase
    name: str
    share: float
    total_ns: int
    median_ns: float
    p95_ns: float

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {
            "phase": self.phase.name.lower(),
            "name": self.name,
            "share": self.share,
            "total_ns": self.total_ns,
            "median_ns": self.median_ns,
            "p95_ns": self.p95_ns,
        }


@dataclass(frozen=True, slots=True)
class PhaseBreakdown:
    """Where the time of some steps went.

    Attributes:
        title: Which steps these are.
        n_steps: How many; a step of two ranks counts twice.
        total_ns: How long they took together.
        median_ns: How long a step took: the median.
        p95_ns: What 95 of 100 steps do not exceed.
        phases: The phases that took any time, in the order of ``phases.ORDER``.
    """

    title: str
    n_steps: int
    total_ns: int
    median_ns: float
    p95_ns: float
    phases: tuple[PhaseShare, ...]

    def share_of(self, *phases: Phase) -> float:
        """Return the share of some phases together."""
        return sum(each.share for each in self.phases if each.phase in phases)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return {
            "title": self.title,
            "n_steps": self.n_steps,
            "total_ns": self.total_ns,
            "median_ns": self.median_ns,
            "p95_ns": self.p95_ns,
            "phases": [each.to_json() for each in self.phases],
        }


def breakdown_of(rows: NDArray[np.void], title: str = "") -> PhaseBreakdown:
    """Return where the time of step rows went.

    Args:
        rows: Rows of the table ``step``, at least one.
        title: Which steps these are.
    """
    duration = rows["duration_ns"]
    total = int(duration.sum())
    spent = {phase: int(rows[PHASE_COLUMNS[phase]].sum()) for phase in ORDER}
    spent = {phase: time for phase, time in spent.items() if time > 0}
    names = names_of(spent)
    phases = []
    for phase, time in spent.items():
        median, p95 = np.percentile(rows[PHASE_COLUMNS[phase]], [50, 95])
        share = time / max(total, 1)
        phases.append(
            PhaseShare(phase, names[phase], share, time, float(median), float(p95))
        )
    median, p95 = np.percentile(duration, [50, 95])
    return PhaseBreakdown(
        title, len(rows), total, float(median), float(p95), tuple(phases)
    )


def sentence_of(breakdown: PhaseBreakdown) -> str:
    """Return the largest shares in words.

    Example:
        >>> sentence_of(breakdown)
        '62 % data wait, 21 % forward, 10 % backward and 7 % the rest; a step takes \
33.4 ms'
    """
    ranked = sorted(breakdown.phases, key=lambda each: -each.share)
    named = [each for each in ranked if each.share >= LEAST_NAMED][:MOST_NAMED]
    parts = [f"{percent_text(each.share)} {each.name}" for each in named]
    # What is written adds up to 100.
    rest = 100 - sum(round(100 * each.share) for each in named)
    if named and rest > 0:
        parts.append(f"{rest} % the rest")
    if not parts:
        return "no time was measured"
    return f"{conjoin(parts)}; a step takes {duration_text(breakdown.median_ns)}"


def remarks_of(breakdown: PhaseBreakdown) -> tuple[str, ...]:
    """Return what is odd about the shares, in words; nothing that a rule judges."""
    found = []
    other = breakdown.share_of(Phase.OTHER)
    if other > MOST_OTHER:
        found.append(
            f"{percent_text(other)} of a step is code between the phases that tdbg can "
            "tell. The lines of Python show which"
        )
    ways = {p: breakdown.share_of(p) for p in (Phase.FORWARD, Phase.BACKWARD)}
    both = sum(ways.values())
    for phase, share in ways.items():
        if both > LEAST_NAMED and share > MOST_ONE_WAY * both and share < both:
            found.append(
                f"{NAMES[phase].capitalize()} takes {percent_text(share / both)} of "
                "the time of both passes"
            )
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Bands:
    """The phases of the steps over an axis: bands that are stacked.

    Attributes:
        phases: Those that took any time, the lowest band first.
        mean_ns: What a step of each column spends in each phase; NaN where there is
            no step.  Shape (phases, columns).
        durations: How long the steps of each column took, in ns.
    """

    phases: tuple[Phase, ...]
    mean_ns: NDArray[np.float64]
    durations: BinColumns

    @property
    def names(self) -> list[str]:
        """The names that users know, of the phases."""
        names = names_of(self.phases)
        return [names[each] for each in self.phases]


def bands_of(
    rows: NDArray[np.void],
    places: Integers,
    edges: Integers,
    phases: Sequence[Phase] | None = None,
) -> Bands:
    """Return the phases of step rows over columns of an axis.

    Args:
        rows: Rows of the table ``step``.
        places: Where each lies on the axis.
        edges: Bounds of the columns, as of ``BinColumns``.
        phases: Those to show; None: all that took any time in these rows.
    """
    if phases is None:
        phases = [p for p in ORDER if len(rows) and rows[PHASE_COLUMNS[p]].any()]
    table = np.stack(
        [rows["duration_ns"], *(rows[PHASE_COLUMNS[each]] for each in phases)], axis=1
    )
    found = binned(places, table, edges)
    durations = BinColumns(
        edges, found.low[0], found.high[0], found.mean[0], found.rows
    )
    return Bands(tuple(phases), found.mean[1:], durations)
