"""Straggler: a rank for which all others wait.

All ranks leave a collective operation together, so whoever waits least in it came last.
That needs no clock that ranks share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.phase_words import PHASE_WORDS
from tdbg.rules.builtin.time.rank_rule import RankRule
from tdbg.rules.builtin.time.ranks import Ranks, ranks_of
from tdbg.rules.builtin.time.time_rule import Sign, gain_severity, shorter
from tdbg.rules.profile import Bin, ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.table import Floats
from tdbg.rules.window import Description
from tdbg.run.findings import Stage
from tdbg.run.profile_tables import Phase

__all__ = ["Straggler"]

# Operations that no rank leaves before all have come.
_OF_ALL = frozenset(
    {
        *("all_reduce", "ddp_all_reduce", "all_gather", "reduce_scatter"),
        *("all_to_all", "barrier"),
    }
)
# Fewer steps than this say nothing of ranks.
ENOUGH_STEPS = 5


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler(RankRule):
    """Report a rank for which all others wait.

    Its own work, the step without communication, takes longer than that of the others,
    and in most steps it is the last.  It is the rank that waits least itself.  Where
    the waits in each collective operation are known, these say who comes last.

    Args:
        threshold: How much longer than the median of ranks its work takes, in percent.
        last: Share of the steps in which it is the last, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.COMMUNICATION
    phases = frozenset({Phase.COMMUNICATION})

    threshold: float = 10.0
    last: float = 80.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0)
        check_number(self, "last", above=0.0, most=100.0)

    @property
    def first_verdict(self) -> str:
        """Return that communication must have been measured."""
        return "10 s of steps that all ranks have in common, with communication"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge each rank by its own work."""
        ranks, arrivals = ranks_of(profile.bins[i]), arrivals_of(profile.bins[i])
        if ranks is None or not ranks.phases[Phase.COMMUNICATION].any():
            return {}
        found = {}
        for at, worker in enumerate(ranks.workers):
            others = [k for k in range(len(ranks.workers)) if k != at]
            usual = float(np.median(ranks.own[others]))
            late, last = float(ranks.own[at]) - usual, ranks.last_share(at)
            waits = ""
            if arrivals is not None:
                late = min(late, arrivals.late_ns(at))
                last = min(last, arrivals.last_share(at))
                waits = _waits(arrivals, at)
            is_slow = late > usual * self.threshold / 100
            is_last = 100 * last >= self.last
            gain = max(0.0, late / ranks.step_ns)
            found[f"worker {worker}"] = Sign(
                severity=gain_severity(gain) if is_slow and is_last else None,
                describe=_describer(self, ranks, at, gain, waits),
            )
        return found


def _waits(arrivals: Arrivals, at: int) -> str:
    """Return how long others wait for a rank: a sentence that begins with a space."""
    return (
        f" In {percent(100 * arrivals.last_share(at))} of the steps it comes last to "
        "the operations in which all ranks meet, and the others wait "
        f"{number(arrivals.late_ns(at) / 1e6)} ms for it."
    )


def _describer(
    rule: Straggler, ranks: Ranks, at: int, gain: float, waits: str
) -> Callable[[], Description]:
    def describe() -> Description:
        others = [k for k in range(len(ranks.workers)) if k != at]
        own, usual = float(ranks.own[at]), float(np.median(ranks.own[others]))
        phase = ranks.differing_phase(at, others)
        uneven = ""
        if ranks.samples[at] > 1.05 * float(np.median(ranks.samples[others])) > 0:
            uneven = (
                f" Its batches hold {number(ranks.samples[at])} samples, those of the "
                f"others {number(float(np.median(ranks.samples[others])))}."
            )
        return Description(
            message=(
                f"All ranks wait for rank {ranks.workers[at]}: its own work in a step "
                f"takes {number(own / 1e6)} ms, that of the others "
                f"{number(usual / 1e6)} ms, and it is the last in "
                f"{percent(100 * ranks.last_share(at))} of the steps.{waits}{uneven}"
            ),
            value=100 * (own / usual - 1),
            threshold=rule.threshold,
            gain=gain,
            advice=(
                f"Most of the difference is {PHASE_WORDS[phase]}. Compare its host and "
                "device with the others (clocks, temperature, other programs), and "
                f"give all ranks equal batches. That gives up to {shorter(gain)}."
            ),
        )

    return describe


# ---- who comes last ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The usual steps of a bin in which all ranks met.

    Attributes:
        workers: Numbers of the ranks.
        waited_ns: Ranks x steps: how long each waited for others, in all operations of
            the step.
    """

    workers: tuple[int, ...]
    waited_ns: Floats

    def last_share(self, rank: int) -> float:
        """Return in which share of the steps a rank waits least: the others wait."""
        is_last = self.waited_ns.argmin(axis=0) == rank
        differ = self.waited_ns.max(axis=0) > self.waited_ns.min(axis=0)
        return float((is_last & differ).mean())

    def late_ns(self, rank: int) -> float:
        """Return how long the others wait for a rank in a step: the median."""
        others = np.delete(self.waited_ns, rank, axis=0)
        return float(np.median(np.median(others, axis=0) - self.waited_ns[rank]))


def arrivals_of(each: Bin) -> Arrivals | None:
    """Return what a bin shows of its ranks' arrivals; None: too little."""
    return each.derived("arrivals", lambda: _arrivals(each))


def _arrivals(each: Bin) -> Arrivals | None:
    workers = np.unique(each.usual_steps["worker"])
    rows = _usable(each)
    if len(workers) < max(2, each.n_workers) or not len(rows):
        return None
    keys = np.stack([rows["group"].astype(np.int64), rows["sequence"]], axis=1)
    known, at = np.unique(keys, axis=0, return_inverse=True)
    of_worker = np.searchsorted(workers, rows["worker"])
    shape = len(known), len(workers)
    waited, steps, kinds = (np.full(shape, -1, np.int64) for _ in range(3))
    place = at.ravel(), of_worker
    waited[place], steps[place] = rows["exposed_ns"], rows["global_step"]
    kinds[place] = rows["kind"]
    # Ranks that counted otherwise do not mean the same operation.
    is_same = (waited >= 0).all(axis=1)
    is_same &= (steps == steps[:, :1]).all(axis=1) & (kinds == kinds[:, :1]).all(axis=1)
    numbers, of_step = np.unique(steps[is_same, 0], return_inverse=True)
    if len(numbers) < ENOUGH_STEPS:
        return None
    found = np.zeros((len(workers), len(numbers)))
    for rank in range(len(workers)):
        np.add.at(found[rank], of_step, waited[is_same, rank])
    return Arrivals(tuple(workers.tolist()), found)


def _usable(each: Bin) -> Rows:
    """Return the operations of usual steps whose waits the hosts saw."""
    rows, usual = each.tables["collective"], each.usual_steps
    of_all = [i for i, kind in enumerate(each.collective_kinds) if kind in _OF_ALL]
    keep = (rows["exposed_ns"] >= 0) & np.isin(rows["kind"], of_all)
    keep &= np.isin(rows["global_step"], usual["global_step"])
    found: Rows = rows[keep & np.isin(rows["worker"], usual["worker"])]
    return found
