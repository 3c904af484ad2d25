"""RecompilationStorm: models that are compiled again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import percent, plural
from tdbg.rules.builtin.time.breakdown import is_enough
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
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import Phase

__all__ = ["RecompilationStorm"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RecompilationStorm(TimeRule):
    """Report models that are compiled again and again after the beginning.

    Args:
        threshold: Share of the time in the compiler, in percent.
        compilations: So many steps in 100 that compile are too many, at any cost.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.HOST
    phases = frozenset({Phase.COMPILE})
    # A minute: there may be few steps in 10 s.
    reach = 5

    threshold: float = 5.0
    compilations: float = 3.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "compilations", above=0.0, most=100.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the compilations of the last minute."""
        bins = profile.bins[max(0, i - self.reach) : i + 1]
        steps = np.concatenate([each.steps[each.has_begun] for each in bins])
        total = int(steps["duration_ns"].sum())
        if not is_enough(steps) or total <= 0:
            return {}
        share = float(steps["compile_ns"].sum()) / total
        n_compiled = int((steps["compile_ns"] > 0).sum())
        is_storm = n_compiled >= max(3, len(steps) * self.compilations / 100)
        severity = gain_severity(share) if 100 * share >= self.threshold else None
        if is_storm and severity is None:
            severity = Severity.INFO
        if n_compiled < 3:
            severity = None

        def describe() -> Description:
            events = [e for each in bins for e in each.events.get("compilation", ())]
            reasons = [str(e["reason"]) for e in events if e.get("reason")]
            why = f" The last reason was: {reasons[-1]}" if reasons else ""
            return Description(
                message=(
                    f"The model is compiled again and again: at {n_compiled:,} of the "
                    f"last {plural(len(steps), 'step')}, which takes "
                    f"{percent(100 * share)} of the time.{why}"
                ),
                value=100 * share,
                threshold=self.threshold,
                gain=share,
                advice=lambda words: (
                    "Give the model few different shapes: pad batches to some lengths, "
                    f"drop the last incomplete batch{words.changing_shapes} "
                    f"Without it you have up to {shorter(share)}."
                ),
            )

        return {TRAINING: Sign(severity=severity, describe=describe)}
