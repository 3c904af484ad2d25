"""CheckpointStall: checkpoints that take a noticeable part of the time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tdbg.config.quantities import number, percent, plural
from tdbg.rules.builtin.time.pauses import Pauses, pauses_in
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    TimeRule,
    check_optional,
    gain_severity,
    shorter,
)
from tdbg.rules.profile import ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import Phase

__all__ = ["CheckpointStall"]

NANOSECONDS = 1e9


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStall(TimeRule):
    """Report checkpoints that the training waits for too long.

    Args:
        threshold: Share of the time that checkpoints take, in percent.
        longest: Seconds of a single checkpoint that are too long.
        hours_between_failures: How often the machine fails, if you know it: the advice
            then names the interval after Young, ``sqrt(2 * save time * this)``.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.HOST
    phases = frozenset({Phase.CHECKPOINT})
    # Ten minutes: checkpoints are rare.
    reach = 59

    threshold: float = 5.0
    longest: float = 60.0
    hours_between_failures: float | None = None

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "longest", above=0.0)
        check_optional(self, "hours_between_failures", above=0.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the checkpoints of the last ten minutes."""
        bins = profile.bins[max(0, i - self.reach) : i + 1]
        if not any(each.has_begun.any() for each in bins):
            return {}
        found = pauses_in(bins, Phase.CHECKPOINT)
        severity = None
        if 100 * found.share >= self.threshold and found.n > 2:
            severity = gain_severity(found.share)
        if found.longest_ns > self.longest * NANOSECONDS:
            severity = Severity.WARNING

        def describe() -> Description:
            return self._describe(found)

        return {TRAINING: Sign(severity=severity, describe=describe)}

    def _describe(self, found: Pauses) -> Description:
        seconds = found.usual_ns / NANOSECONDS
        often, gain = "", ""
        if found.n > 1:
            often = (
                f" One every {plural(round(found.steps), 'step')} takes "
                f"{percent(100 * found.share)} of the time."
            )
            gain = f" That gives up to {shorter(found.share)}."
        is_long = found.longest_ns > self.longest * NANOSECONDS
        return Description(
            message=(
                f"The training stands still for {number(seconds)} s to save a "
                f"checkpoint.{often}"
            ),
            value=found.longest_ns / NANOSECONDS if is_long else 100 * found.share,
            threshold=self.longest if is_long else self.threshold,
            gain=found.share if found.n > 1 else None,
            advice=lambda words: (
                f"Save in the background ({words.background_saving}), or less often: "
                f"{self._interval(found)}.{gain}"
            ),
        )

    def _interval(self, found: Pauses) -> str:
        seconds = found.usual_ns / NANOSECONDS
        if self.hours_between_failures is not None:
            best = math.sqrt(2 * seconds * self.hours_between_failures * 3600)
            return f"every {number(best / 60, 2)} minutes, by how often machines fail"
        if not found.steps:
            return "by how much work you can afford to lose"
        rarer = max(2, math.ceil(found.share / 0.02))
        return f"every {round(found.steps * rarer):,} steps they take 2%"
