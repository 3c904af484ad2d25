"""ProfilerCost: trainings of whose time tdbg takes more than its budgets allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from tdbg.config.quantities import conjoin, percent
from tdbg.rules.builtin.time.breakdown import is_enough
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
from tdbg.run.json_values import is_integer, mapping_of

__all__ = ["ProfilerCost"]

# Budgets hold from then on: a minute, in bins.
FIRST_BIN = 6
# What the clock, the samples and the loaders' rows may cost beside any budget.
ALWAYS_ON = 0.01
# Parts below this share of the cost are not told.
LEAST_PART = 0.1

_EACH = "in every step"
_SOME = "in the steps that capture most"
_WINDOWS = "in windows of the profiler"
_ADVICE: Mapping[str, str] = {
    _EACH: (
        "Capture fewer collections, raise statistics_interval, or turn the profiler "
        "off (profiler=False)."
    ),
    _SOME: (
        "Raise statistics_interval and save_interval, capture fewer collections, or "
        "set a budget (budget=0.02)."
    ),
    _WINDOWS: (
        "Ask for fewer or shorter windows, without shapes and stacks, and leave out "
        "--over-budget."
    ),
}


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerCost(TimeRule):
    """Report trainings of whose time tdbg takes more than its budgets allow.

    The budgets are those of capture and of windows, and 1 % for what is always on.
    They hold after the first minute.

    Args:
        threshold: Share of the time that is worth an info where there is no budget of
            capture, in percent.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    stage = Stage.HOST
    # A minute: some steps capture much, and most of them little.
    reach = 5

    threshold: float = 5.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)

    @property
    def first_verdict(self) -> str:
        """Return that the first minute does not count."""
        return "10 s of training after the first minute"

    def signs(self, profile: ProfileWindow, i: int) -> Mapping[str, Sign]:
        """Judge the cost of the last minute."""
        bins = [
            each
            for each in profile.bins[max(0, i - self.reach) : i + 1]
            if each.number >= FIRST_BIN
        ]
        if not bins:
            return {}
        parts = _parts(bins)
        if not parts:
            return {}
        share, promised = sum(parts.values()), _promised(bins[-1].configuration)
        if promised is None:
            gain, limit = share, self.threshold / 100
            severity = Severity.INFO if share >= limit else None
        else:
            gain, limit = max(0.0, share - promised), promised
            severity = gain_severity(gain)

        def describe() -> Description:
            order = sorted(parts, key=lambda part: -parts[part])
            told = [
                f"{percent(100 * parts[part])} {part}"
                for part in order
                if parts[part] >= LEAST_PART * share
            ]
            allowed = (
                ""
                if promised is None
                else f"; its budgets allow {percent(100 * limit)}"
            )
            return Description(
                message=(
                    f"tdbg itself takes {percent(100 * share)} of the time of a step "
                    f"({conjoin(told)}){allowed}."
                ),
                value=100 * share,
                threshold=100 * limit,
                gain=gain,
                advice=f"{_ADVICE[order[0]]} That gives up to {shorter(gain)}.",
            )

        return {TRAINING: Sign(severity=severity, describe=describe)}


def _parts(bins: list[Bin]) -> dict[str, float]:
    """Return the shares of the time that tdbg takes; empty: too few steps."""
    steps = np.concatenate([each.steps[each.has_begun] for each in bins])
    total = int(steps["duration_ns"].sum())
    if not is_enough(steps) or total <= 0:
        return {}
    capture = steps["capture_ns"]
    usual = float(np.median(capture)) * len(capture)
    windows = [
        cost
        for each in bins
        for event in each.events.get("window", ())
        if is_integer(cost := event.get("cost_ns")) and cost > 0
    ]
    return {
        _EACH: min(usual, float(capture.sum())) / total,
        _SOME: max(0.0, float(capture.sum()) - usual) / total,
        _WINDOWS: sum(windows) / total,
    }


def _promised(configuration: Mapping[str, Any]) -> float | None:
    """Return what tdbg may take by its budgets; None: capture has none."""
    budget = mapping_of(configuration.get("hook")).get("budget")
    of_windows = mapping_of(configuration.get("profiler")).get("budget")
    if not _is_number(budget):
        return None
    windows = float(of_windows) if _is_number(of_windows) else 0.0
    return float(budget) + windows + ALWAYS_ON


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
