"""ExposedCommunication: ranks that wait for each other, and none is slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import percent
from tdbg.rules.builtin.time.breakdown import breakdown_of
from tdbg.rules.builtin.time.rank_rule import RankRule
from tdbg.rules.builtin.time.ranks import ranks_of
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    gain_severity,
    shorter,
)
from tdbg.rules.profile import ProfileWindow
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Description
from tdbg.run.findings import Stage
from tdbg.run.profile_tables import Phase

__all__ = ["ExposedCommunication"]

# Ranks whose own work differs by more than this share of a step wait for one of them.
EQUAL = 0.1


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedCommunication(RankRule):
    """Report communication that no computation hides.

    Args:
        threshold: Share of a step's time in which ranks wait for each other, in
            percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.COMMUNICATION
    phases = frozenset({Phase.COMMUNICATION})

    threshold: float = 20.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the wait that is left where no rank is slower than the others."""
        breakdown, ranks = breakdown_of(profile.bins[i]), ranks_of(profile.bins[i])
        if breakdown is None or ranks is None:
            return {}
        # What the fastest rank waits longer than the slowest is due to the slowest.
        share = float(np.min(ranks.phases[Phase.COMMUNICATION])) / ranks.step_ns
        spread = float(ranks.own.max() - ranks.own.min()) / ranks.step_ns
        is_bad = 100 * share >= self.threshold and spread <= EQUAL

        def describe() -> Description:
            return Description(
                message=(
                    f"All ranks wait for communication for {percent(100 * share)} of "
                    "the time of a step, and none of them is slower than the others."
                ),
                value=100 * share,
                threshold=self.threshold,
                gain=share,
                advice=(
                    "Synchronize less often (gradient accumulation with no_sync()), "
                    "send less (mixed precision, gradient compression), overlap more "
                    "(bucket_cap_mb), or use a faster network or fewer ranks. Without "
                    f"the wait you have up to {shorter(share)}."
                ),
            )

        severity = gain_severity(share) if is_bad else None
        return {TRAINING: Sign(severity=severity, describe=describe)}
