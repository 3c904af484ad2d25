"""MaxInitializationTime: trainings whose first step comes late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number
from tdbg.modes import ModeKeys
from tdbg.rules.builtin.time.time_rule import TRAINING, Sign, TimeRule
from tdbg.rules.profile import ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import OK, Description, Evaluation, Idle
from tdbg.run.findings import Severity
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase

__all__ = ["MaxInitializationTime"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxInitializationTime(TimeRule):
    """Report trainings whose first step comes late.

    Args:
        threshold: Minutes until the end of the first step.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING,)
    bad_bins = 1

    threshold: float = 20.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0)

    @property
    def first_verdict(self) -> str:
        """Return that a step must have ended."""
        return "a step of training"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the first bin by the time from the start of the run to it."""
        each = profile.bins[i]
        if each.number != 0 or not len(each.steps):
            return {}
        first = each.steps[0]
        minutes = each.start_seconds / 60 + float(first["time"] - each.start_ns) / 60e9
        compiled = float(first[PHASE_COLUMNS[Phase.COMPILE]]) / 60e9
        is_bad = minutes - compiled > self.threshold
        severity = Severity.WARNING if is_bad else None
        return {
            TRAINING: Sign(
                severity=severity,
                describe=lambda: self._describe(minutes, compiled),
            )
        }

    def on_idle(self, idle: Idle) -> Iterator[Evaluation]:
        """Judge a training that has had no step yet."""
        if idle.ended or idle.last_step >= 0:
            return
        minutes = idle.seconds / 60
        level = int(Severity.WARNING) if minutes > self.threshold else OK
        yield Evaluation.of_one(
            TRAINING,
            np.zeros(1, np.int64),
            ModeKeys.TRAIN,
            np.array([level]),
            lambda _: self._describe(minutes, 0.0),
        )

    def _describe(self, minutes: float, compiled: float) -> Description:
        more = ""
        if compiled > 0.1:
            more = f" The compiler took {number(compiled)} minutes of that."
        return Description(
            message=f"The first step took {number(minutes)} minutes to come.{more}",
            value=minutes,
            threshold=self.threshold,
            advice=(
                "Look at what happens before it (tdbg stacks shows it while it lasts): "
                "imports from a network file system, data that is prepared at each "
                "start, a large model that every rank loads, workers that start."
            ),
        )
