"""GcPauses: garbage collections that take a noticeable part of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tdbg.config.quantities import number, percent, plural
from tdbg.rules.builtin.time.breakdown import breakdown_of
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    TimeRule,
    gain_severity,
    shorter,
)
from tdbg.rules.profile import Bin, ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import Phase

__all__ = ["GcPauses"]

# A minute, in bins.
MINUTE = 6


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class GcPauses(TimeRule):
    """Report trainings that Python's garbage collector stops for long.

    Args:
        threshold: Share of a step's time in the collector, in percent.
        pause: Seconds of a single collection that are long, if they are also longer
            than two steps; more than one a minute is an info.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.HOST
    phases = frozenset({Phase.GC})
    reach = MINUTE - 1

    threshold: float = 3.0
    pause: float = 0.1

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "pause", above=0.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the share of the collector, and its long pauses of a minute."""
        each = profile.bins[i]
        breakdown = breakdown_of(each)
        if breakdown is None:
            return {}
        share = breakdown.share(Phase.GC)
        limit = max(self.pause * 1e9, 2 * breakdown.step_ns)
        bins = profile.bins[max(0, i - self.reach) : i + 1]
        long = [ns for ns in _pauses(bins) if ns > limit]
        severity = gain_severity(share) if 100 * share >= self.threshold else None
        if severity is None and len(long) > 1:
            severity = Severity.INFO

        def describe() -> Description:
            pauses = ""
            if long:
                pauses = (
                    f" {plural(len(long), 'pause')} in the last minute lasted up to "
                    f"{number(max(long) / 1e6)} ms."
                )
            return Description(
                message=(
                    "Python's garbage collector takes "
                    f"{percent(100 * share)} of the time of a step.{pauses}"
                ),
                value=100 * share,
                threshold=self.threshold,
                gain=share,
                advice=(
                    "Call gc.collect() and gc.freeze() after set-up, so that what you "
                    "loaded is not searched again; or gc.disable(), and gc.collect(1) "
                    "every few hundred steps, at the same step on all ranks. That "
                    f"gives up to {shorter(share)}."
                ),
            )

        return {TRAINING: Sign(severity=severity, describe=describe)}


def _pauses(bins: Sequence[Bin]) -> list[float]:
    """Return how long the collections that were reported took, in ns."""
    return [
        float(event.get("duration_ns") or 0)
        for each in bins
        for event in each.events.get("gc", ())
    ]
