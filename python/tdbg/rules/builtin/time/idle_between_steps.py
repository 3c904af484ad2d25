"""IdleBetweenSteps: one line of the program that takes the time between phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tdbg.config.quantities import percent
from tdbg.rules.builtin.time.breakdown import breakdown_of, share_of_most_ranks
from tdbg.rules.builtin.time.device import idle_share
from tdbg.rules.builtin.time.lines import top_line
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    TimeRule,
    gain_severity,
    shorter,
)
from tdbg.rules.profile import ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Stage
from tdbg.run.profile_tables import Phase

__all__ = ["IdleBetweenSteps"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class IdleBetweenSteps(TimeRule):
    """Report a line of the program that takes the time outside of all phases.

    Args:
        threshold: Share of a step's time that belongs to no phase, in percent.
        line: Share of the samples of that time that one line has, in percent.
        samples: How many samples of that time there must be.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.HOST
    phases = frozenset({Phase.OTHER})
    # Bins from which samples are taken together.
    reach = 5

    threshold: float = 10.0
    line: float = 50.0
    samples: int = 100

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "line", above=0.0, most=100.0)
        check_number(self, "samples", least=1, whole=True)

    @property
    def first_verdict(self) -> str:
        """Return that Python must have been sampled."""
        return "10 s of training with Python samples, after the first 20 steps and 10 s"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the time of no phase, and the line that has most of it."""
        each = profile.bins[i]
        breakdown = breakdown_of(each)
        if breakdown is None:
            return {}
        share, idle = share_of_most_ranks(each, Phase.OTHER), idle_share(each)
        line = top_line(profile.bins[max(0, i - self.reach) : i + 1], {Phase.OTHER})
        is_long = 100 * share >= self.threshold
        if is_long and (line is None or line.n_samples < self.samples or idle is None):
            return {}
        gain, where, part = 0.0, "", 0.0
        if line is not None and idle is not None:
            gain, where, part = min(share * line.share, idle), line.where, line.share
        is_bad = is_long and 100 * part >= self.line

        def describe() -> Description:
            return Description(
                message=(
                    f"{where} takes {percent(100 * share * part)} of the time: "
                    f"{percent(100 * share)} of a step belongs to no phase, and "
                    f"{percent(100 * part)} of its samples are in this line."
                ),
                value=100 * share,
                threshold=self.threshold,
                gain=gain,
                advice=(
                    "Do this less often, in another thread or process, or faster. "
                    f"Without it you have {shorter(gain)}."
                ),
            )

        severity = gain_severity(gain) if is_bad else None
        return {TRAINING: Sign(severity=severity, describe=describe)}
