"""StepOutlier: single steps that take far longer than the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent, plural
from tdbg.errors import ConfigurationError
from tdbg.modes import TRAIN, ModeKeys
from tdbg.rules.builtin.time.phase_words import words_in
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    TimeRule,
    check_optional,
    gain_severity,
    shorter,
)
from tdbg.rules.profile import ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number, mode_of
from tdbg.rules.table import Bools, Floats
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase
from tdbg.stats.estimates import slow_limit

__all__ = ["StepOutlier"]

# smdebug's values, where only one of the two is given, and over how many steps.
N_OUTLIERS, STDDEV = 10, 3.0
SMDEBUG_STEPS = 1000


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutlier(TimeRule):
    """Report single steps that take far longer than the others.

    A step is slow if it takes longer than ``max(median + 6 * 1.4826 * MAD, 1.5 *
    median)`` of the last steps.

    Args:
        threshold: What slow steps take longer than usual ones, in percent of the time
            of all.
        num_steps: How many last usual steps are compared.
        mode: SageMaker Debugger's; only TRAIN, or None for the same.
        n_outliers: SageMaker Debugger's: so many steps may be slow; 10 there.
        stddev: SageMaker Debugger's: a step is slow so many standard deviations above
            the mean; 3 there.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.PACE

    threshold: float = 10.0
    num_steps: int = 200
    mode: ModeKeys | str | None = None
    n_outliers: float | None = None
    stddev: float | None = None

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "num_steps", least=20, whole=True)
        check_optional(self, "n_outliers", least=0.0)
        check_optional(self, "stddev", above=0.0)
        if mode_of(self, "mode") not in (None, TRAIN):
            msg = f"{self.name}.mode is {self.mode!r}; give TRAIN or None"
            raise ConfigurationError(msg)

    @property
    def lookback_steps(self) -> int:
        """The steps that are compared."""
        return self.num_steps if self._is_default else SMDEBUG_STEPS

    @property
    def first_verdict(self) -> str:
        """Return how many steps are compared."""
        return f"{plural(self.num_steps, 'usual step')}"

    @property
    def _is_default(self) -> bool:
        return self.n_outliers is None and self.stddev is None

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the last steps by what the slow ones cost."""
        steps, is_new = profile.steps_until(i, self.lookback_steps)
        least = self.num_steps if self._is_default else 100
        if len(steps) < least or not is_new.any():
            return {}
        duration = steps["duration_ns"].astype(np.float64)
        if not self._is_default:
            return {TRAINING: self._by_deviations(duration)}
        median = float(np.median(duration))
        is_slow = duration > slow_limit(duration)
        cost = float((duration[is_slow] - median).sum() / duration.sum())
        is_bad = 100 * cost > self.threshold

        def describe() -> Description:
            words = words_in(profile.bins[i])
            return self._describe(steps, is_slow, median, cost, words)

        severity = gain_severity(cost) if is_bad else None
        return {TRAINING: Sign(severity=severity, describe=describe)}

    def _describe(
        self,
        steps: Rows,
        is_slow: Bools,
        median: float,
        cost: float,
        words: Mapping[Phase, str],
    ) -> Description:
        slow = float(np.median(steps["duration_ns"][is_slow]))
        phase, share = _common(steps, is_slow)
        return Description(
            message=(
                f"{plural(int(is_slow.sum()), 'step')} in {len(steps):,} take "
                f"{number(slow / 1e6)} ms instead of {number(median / 1e6)} ms, which "
                f"costs {percent(100 * cost)} of the time."
            ),
            value=100 * cost,
            threshold=self.threshold,
            gain=cost * share,
            advice=(
                f"Most of the extra time ({percent(100 * share)}) is "
                f"{words[phase]}. Without it you have up to "
                f"{shorter(cost * share)}."
            ),
        )

    def _by_deviations(self, duration: Floats) -> Sign:
        """Judge by the formula of SageMaker Debugger."""
        deviations = STDDEV if self.stddev is None else self.stddev
        most = N_OUTLIERS if self.n_outliers is None else self.n_outliers
        limit = float(duration.mean() + deviations * duration.std())
        n = int((duration > limit).sum())

        def describe() -> Description:
            return Description(
                message=(
                    f"{plural(n, 'step')} in {len(duration):,} take longer than "
                    f"{number(limit / 1e6)} ms, {number(deviations)} standard "
                    "deviations above the mean."
                ),
                value=float(n),
                threshold=float(most),
                advice="Compare these steps with the others on the time axis.",
            )

        severity = Severity.WARNING if n > most else None
        return Sign(severity=severity, describe=describe)


def _common(steps: Rows, is_slow: Bools) -> tuple[Phase, float]:
    """Return the phase with most of the extra time of slow steps, and its share."""
    extra = {
        phase: float(steps[column][is_slow].mean() - np.median(steps[column][~is_slow]))
        for phase, column in PHASE_COLUMNS.items()
    }
    phase = max(extra, key=lambda each: extra[each])
    total = sum(value for value in extra.values() if value > 0)
    return phase, extra[phase] / total if total > 0 else 0.0
