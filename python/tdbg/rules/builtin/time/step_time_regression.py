"""StepTimeRegression: steps that take longer from some step on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tdbg.config.quantities import number, percent, plural
from tdbg.rules.builtin.time.phase_words import words_in
from tdbg.rules.builtin.time.time_rule import (
    TRAINING,
    Sign,
    TimeRule,
    shorter,
)
from tdbg.rules.profile import ProfileWindow, Rows
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.table import Floats
from tdbg.rules.window import Description
from tdbg.run.findings import Severity, Stage
from tdbg.run.profile_tables import PHASE_COLUMNS, Phase
from tdbg.stats.estimates import spread

__all__ = ["StepTimeRegression"]

# Where a change is looked for: at every so many steps.
STRIDE = 25
# Of so many steps the medians are taken that show the scatter.
OF_MEDIANS = 10
# How many windows a change is remembered for.
MEMORY = 10


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeRegression(TimeRule):
    """Report steps that take longer from some step on.

    The medians of two windows that follow each other differ by more than ``max(10 %,
    4 * MAD of the medians of 10 steps)``, and half a window later it is still so.
    Where steps take less than 40 ms, means of some steps stand for steps, so that
    windows last for seconds: any machine is slower for a moment.

    Args:
        threshold: How much longer a step takes, in percent.
        warning: How much longer it takes for a warning, in percent.
        num_steps: How many steps each of the two windows has.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.PACE
    bad_bins = 1
    # Bins of which all steps count.
    reach = 3

    threshold: float = 10.0
    warning: float = 20.0
    num_steps: int = 100

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0)
        check_number(self, "warning", above=0.0)
        check_number(self, "num_steps", least=50, whole=True)

    @property
    def lookback_steps(self) -> int:
        """The steps after which a change is the new usual."""
        return MEMORY * self.num_steps

    @property
    def first_verdict(self) -> str:
        """Return that two windows must have passed, and half of one more."""
        return f"{plural(5 * self.num_steps // 2, 'usual step')}"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Look for a change among the last steps that is still there."""
        steps, is_new = profile.steps_until(i, self._n_steps(profile, i))
        if 2 * len(steps) < 5 * self.num_steps or not is_new.any():
            return {}
        together = max(1, len(steps) // self.lookback_steps)
        steps = steps[len(steps) % together :]
        found = self._change(steps["duration_ns"].reshape(-1, together).mean(axis=1))
        if found is None:
            return {TRAINING: Sign(severity=None, describe=_nothing)}
        at, before, now = found
        at, n = at * together, self.num_steps * together
        gain = 1.0 - before / now
        grown = _growth_of_batches(steps, at, n)
        # Larger batches take longer, and are no fault.
        is_explained = grown is not None and grown > 0.5 * (now / before - 1.0)
        is_clear = 100 * (now / before - 1.0) >= self.warning and not is_explained
        severity = Severity.WARNING if is_clear else Severity.INFO

        def describe() -> Description:
            phase, share = _risen(steps, at, n)
            risen = words_in(profile.bins[i])[phase]
            more = ""
            if grown is not None and grown >= 0.01:
                more = f" Batches hold {percent(100 * grown)} more."
            return Description(
                message=(
                    f"Since step {profile_step(steps, at)} a step takes "
                    f"{number(now / 1e6)} ms instead of {number(before / 1e6)} ms, "
                    f"{percent(100 * (now / before - 1))} longer.{more}"
                ),
                value=100 * (now / before - 1),
                threshold=self.threshold,
                gain=gain,
                since=int(steps["global_step"][at]),
                advice=(
                    f"Most of the extra time ({percent(100 * share)}) is "
                    f"{risen}. Look at what happened at that step; as before, you have "
                    f"{shorter(gain)}."
                ),
            )

        return {TRAINING: Sign(severity=severity, describe=describe)}

    def _n_steps(self, profile: ProfileWindow, i: int) -> int:
        """Return how many steps are looked at: those of some bins, and no fewer."""
        bins = profile.bins[max(0, i - self.reach) : i + 1]
        recent = sum(int((each.usual_steps["worker"] == 0).sum()) for each in bins)
        return max(self.lookback_steps, recent)

    def _change(self, duration: Floats) -> tuple[int, float, float] | None:
        """Return the oldest change that lasts, with the medians before it and now."""
        n = self.num_steps
        now = float(np.median(duration[-(n // 2) :]))
        for at in range(n, len(duration) - 3 * n // 2 + 1, STRIDE):
            first, second = duration[at - n : at], duration[at : at + n]
            medians = np.median(
                first[: n // OF_MEDIANS * OF_MEDIANS].reshape(-1, OF_MEDIANS), axis=1
            )
            before = float(np.median(first))
            limit = before + max(before * self.threshold / 100, 4 * spread(medians))
            if min(float(np.median(second)), now) > limit:
                return _begin(duration, at, n, (before + now) / 2), before, now
        return None


def _nothing() -> Description:
    raise AssertionError


def profile_step(steps: Rows, at: int) -> str:
    """Return the number of a step of training, for messages."""
    return f"{int(steps['mode_step'][at]):,}"


def _begin(duration: Floats, at: int, n: int, middle: float) -> int:
    """Return the step near *at* at which the durations change best."""
    window = duration[at - n : at + n] > middle
    slow_before = np.concatenate([[0], np.cumsum(window)])
    fast_after = np.concatenate([np.cumsum(~window[::-1])[::-1], [0]])
    return at - n + int(np.argmin(slow_before + fast_after))


def _growth_of_batches(steps: Rows, at: int, n: int) -> float | None:
    """Return by how much batches have grown since a step; None: not known."""
    for column in ("tokens", "samples"):
        before = steps[column][max(0, at - n) : at]
        now = steps[column][-(n // 2) :]
        if len(before) and (before > 0).all() and (now > 0).all():
            return float(np.median(now) / np.median(before)) - 1.0
    return None


def _risen(steps: Rows, at: int, n: int) -> tuple[Phase, float]:
    """Return the phase that has risen most since a step, and its share of the rise."""
    now, before = steps[-(n // 2) :], steps[max(0, at - n) : at]
    rise = {
        phase: float(now[column].mean() - before[column].mean())
        for phase, column in PHASE_COLUMNS.items()
    }
    phase = max(rise, key=lambda each: rise[each])
    total = sum(value for value in rise.values() if value > 0)
    return phase, rise[phase] / total if total > 0 else 0.0
