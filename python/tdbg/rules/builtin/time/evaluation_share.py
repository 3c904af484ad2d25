"""EvaluationShare: trainings that evaluate for much of their time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tdbg.config.quantities import number, percent, plural
from tdbg.rules.builtin.time.pauses import pauses_in
from tdbg.rules.builtin.time.time_rule import TRAINING, Sign, TimeRule, shorter
from tdbg.rules.profile import ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import Phase

__all__ = ["EvaluationShare"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationShare(TimeRule):
    """Report trainings that evaluate for much of their time.

    Args:
        threshold: Share of the time that evaluations take, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO,)
    stage = Stage.HOST
    phases = frozenset({Phase.EVALUATION})
    # Ten minutes: evaluations are rare.
    reach = 59
    bad_bins = 1

    threshold: float = 30.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the evaluations of the last ten minutes."""
        bins = profile.bins[max(0, i - self.reach) : i + 1]
        if not any(each.has_begun.any() for each in bins):
            return {}
        found = pauses_in(bins, Phase.EVALUATION)
        is_bad = 100 * found.share >= self.threshold and found.n > 2

        def describe() -> Description:
            return Description(
                message=(
                    f"Evaluation takes {percent(100 * found.share)} of the time: "
                    f"{number(found.usual_ns / 1e9)} s every "
                    f"{plural(round(found.steps), 'step')}."
                ),
                value=100 * found.share,
                threshold=self.threshold,
                gain=found.share / 2,
                advice=(
                    "Evaluate half as often, or on part of the data: "
                    f"{shorter(found.share / 2)} on average."
                ),
            )

        severity = Severity.INFO if is_bad else None
        return {TRAINING: Sign(severity=severity, describe=describe)}
