"""Straggler: a rank for which all others wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent
from tdbg.rules.builtin.time.arrivals import Arrivals, arrivals_of
from tdbg.rules.builtin.time.phase_words import PHASE_WORDS
from tdbg.rules.builtin.time.rank_rule import RankRule
from tdbg.rules.builtin.time.ranks import Ranks, ranks_of
from tdbg.rules.builtin.time.time_rule import Sign, gain_severity, shorter
from tdbg.rules.profile import ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Stage
from tdbg.run.profile_tables import Phase

__all__ = ["Straggler"]


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
