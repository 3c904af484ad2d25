"""LossNotDecreasing: losses that do not fall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import REGRESSIONS
from tdbg.config.quantities import exact, number, percent
from tdbg.modes import TRAINING, ModeKeys
from tdbg.rules.builtin.loss.constant_answer import constant_answer
from tdbg.rules.builtin.loss.loss_series import (
    FIRST,
    LossRule,
    Trend,
    losses_of,
    rise_of,
    trend_of,
)
from tdbg.rules.builtin.loss.moving_goals import need_not_fall, starts_over
from tdbg.rules.columns import kind_of
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number, check_regex, finds, mode_of
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Evidence, Severity, Stage

__all__ = ["LossNotDecreasing"]

# Significance, in standard errors: for a loss at its start, for one judged by two
# short windows, and for one that has fallen.  The rule repeats the test at every
# step.  In 500 steps of a level loss with normal noise, 85 of 100 trainings exceed two
# standard errors, 23 exceed three and 1 exceeds four.  A loss at its start is sick
# without a rise; for a model that has shown that it can learn, that would be a false
# alarm.
CERTAINTY = 2.0
OF_SHORT = 3.5
OF_LEARNED = 4.0
# A loss less than this share below its first ones is where it began.
NEAR = 0.1
# A loss has risen when each of its last FIRST values is above each of its first
# FIRST, and their median by this share.  Chance alone does that once in 184,756 cases.
RISEN = 0.1


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LossNotDecreasing(LossRule):
    """Report losses that do not fall, beyond the noise of their batches.

    The rule compares the medians of two consecutive windows of ``window`` recorded
    steps or, for a loss that is where it began, of two windows half as long.  It
    reports nothing while the difference could be noise, or while the loss is well below
    its start: a loss that has fallen may be flat.  Boosted trees have the loss of all
    data, without noise, which may be flat once it is below the very first one.  It
    reports a loss at once when its last 10 values are all above its first 10.

    A flat loss is a warning while a constant answer would do as well.  Below that, or
    if nobody knows what a constant answer would give, it is an info: that may be as low
    as the loss can get.

    Args:
        window: Recorded steps in each of the two windows.
        fall_percent: Least percentage by which the loss must fall from one window to
            the next.
        learned_percent: A model whose loss is this percentage below its first values
            has learned, and its loss may be flat.  100: always report.
        mode: The mode to judge, or its name; None: training.
        tensor_regex: Judge only losses with matching names.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.LEARNING

    window: int = 50
    fall_percent: float = 1.0
    learned_percent: float = 50.0
    mode: ModeKeys | str | None = None
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "window", least=2, whole=True)
        check_number(self, "fall_percent", least=0.0, most=100.0)
        check_number(self, "learned_percent", above=0.0, most=100.0)
        mode_of(self, "mode")
        check_regex(self, "tensor_regex")

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return (
            f"a loss at {2 * self.window:,} recorded steps of training, or at "
            f"{self.window:,} if it has fallen by then"
        )

    @property
    def lookback(self) -> int:
        """The two windows, or the last losses that may have risen."""
        return max(2 * self.window, FIRST) - 1

    @property
    def head_rows(self) -> int:
        """The first rows, at which the loss began."""
        return max(self.window, FIRST)

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses, by name if requested."""
        if not LossRule.selects(self, tensor):
            return False
        if tensor.role == "label" or self.tensor_regex is None:
            return True
        return finds(self.tensor_regex, tensor.name)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each loss by itself."""
        mode = mode_of(self, "mode")
        modes = TRAINING if mode is None else (mode,)
        for table in window.tables(*modes):
            for i, role in enumerate(table.roles):
                evaluation = self._judge(window, table, i) if role == "loss" else None
                if evaluation is not None:
                    yield evaluation

    def _judge(self, window: Window, table: Table, i: int) -> Evaluation | None:
        trend = trend_of(table, i, self.window)
        if trend is None:
            return None
        severities = self._levels(trend)
        trends = [trend] * len(severities)
        half = trend_of(table, i, self.window // 2)
        if half is not None and half.n >= FIRST:
            # Short windows count until two long ones are full.
            is_short = np.isnan(trend.now)
            severities[is_short & (self._levels(half) == OK)] = OK
            early = is_short & self._stays(half)
            severities[early] = Severity.WARNING
            trends = [half if k else trend for k in early.tolist()]
        if _is_of_trees(window, table):
            severities[self._has_fallen(table, i, trend)] = OK
        rises = rise_of(table, i, RISEN)
        risen = np.isfinite(rises) & (severities != OK)
        severities[risen] = Severity.WARNING
        found = np.flatnonzero(severities > OK)
        n, among = 2 * self.window, trend.columns[found]
        free = need_not_fall(window, table, i, n, among)
        free |= starts_over(table, i, n, among)
        severities[found[free]] = UNKNOWN
        is_open = _has_no_reference(window, table, i, trends)
        severities[(severities > OK) & ~risen & is_open] = Severity.INFO

        def describe(j: int) -> Description:
            if risen[j]:
                return self._describe_rise(float(rises[j]), trend.start)
            return self._describe(trends[j], j, is_sure=not is_open[j])

        steps = table.steps[trend.columns]
        return Evaluation.of_one(
            table.names[i], steps, table.mode, severities, describe
        )

    def _levels(self, trend: Trend) -> NDArray[np.int8]:
        fall, error, start = trend.before - trend.now, trend.error, trend.start
        # Comparisons with NaN are false: unknown stays unknown.
        requested = self.fall_percent / 100.0 * np.abs(trend.before)
        has_learned = trend.now <= start - self.learned_percent / 100.0 * abs(start)
        # A fall is OK only if it is significant, so that noise does not end an episode.
        falls = (fall >= requested) & (fall > CERTAINTY * error)
        # A loss that fell and is back where it began may be there by its noise.
        is_level = _is_near(trend) & ~trend.fell
        sure = np.where(is_level, CERTAINTY, OF_LEARNED)
        severities = np.full(len(fall), UNKNOWN, dtype=np.int8)
        severities[fall + sure * error < requested] = Severity.WARNING
        severities[falls | has_learned] = OK
        return severities

    def _stays(self, trend: Trend) -> NDArray[np.bool_]:
        """Find where the loss surely stays at its start, by half windows."""
        # Half of the steps require half of the fall.
        requested = self.fall_percent / 200.0 * np.abs(trend.before)
        surely_not = trend.before - trend.now + OF_SHORT * trend.error < requested
        stays: NDArray[np.bool_] = surely_not & _is_near(trend)
        return stays

    def _has_fallen(self, table: Table, i: int, trend: Trend) -> NDArray[np.bool_]:
        """Find where the loss is below the very first one, which has no noise."""
        first = losses_of(table, i)[table.ordinal[i] == 1]
        if not len(first):
            return np.zeros(len(trend.columns), dtype=bool)
        least = float(first[0] - self.fall_percent / 100.0 * abs(first[0]))
        fallen: NDArray[np.bool_] = losses_of(table, i)[trend.columns] <= least
        return fallen

    def _describe_rise(self, now: float, start: float) -> Description:
        change = 100.0 * (start - now) / abs(start) if start else 0.0
        return Description(
            message=(
                f"The loss rises: its last {FIRST} values are all above its first "
                f"{FIRST}, and their median rose from {number(start, 4)} to "
                f"{number(now, 4)}."
            ),
            value=change,
            threshold=self.fall_percent,
            evidence=Evidence("mean", start),
            advice=_RISES,
        )

    def _describe(self, trend: Trend, j: int, *, is_sure: bool) -> Description:
        before, now = float(trend.before[j]), float(trend.now[j])
        error, start = float(trend.error[j]), trend.start
        change = 100.0 * (before - now) / abs(before) if before else 0.0
        since = 100.0 * (start - now) / abs(start) if start else 0.0
        size = percent(abs(change))
        if not change:
            moved = "stayed the same"
        elif abs(before - now) > CERTAINTY * error:
            moved = f"{'fell' if change > 0 else 'rose'} by {size}"
        else:
            # A change within the noise has no direction.
            noise = 100.0 * CERTAINTY * error / abs(before)
            side = "lower" if change > 0 else "higher"
            moved = f"stayed about the same ({size} {side}, ±{percent(noise)})"
        side = "above" if now > start else "below"
        requested = self.fall_percent * trend.n / self.window
        # A smaller number may be noise, and points to no cause.
        has_risen = now - start > self.fall_percent / 100.0 * abs(start)
        return Description(
            message=(
                f"The loss does not fall: its median over {trend.n:,} recorded steps "
                f"{moved}, from {number(before, 4)} to {number(now, 4)}, instead of "
                f"falling by at least {exact(requested)}%. It is {percent(abs(since))} "
                f"{side} its start."
            ),
            value=change,
            threshold=requested,
            evidence=Evidence("mean", before - requested / 100.0 * abs(before)),
            advice=_RISES
            if has_risen
            else lambda words: f"{'' if is_sure else MAYBE}{words.not_learning}",
        )


MAYBE = (
    "That may be as low as this loss can get: judge the model by a measure whose best "
    "value you know. If it has not learned: "
)
_RISES = (
    "The loss rises: lower the learning rate, and check the labels and the sign of the "
    "loss."
)


def _is_of_trees(window: Window, table: Table) -> bool:
    """Return whether the losses are those of all data, as boosted trees have them."""
    info = window.model_info_at(int(table.steps[-1]))
    return info is not None and info.trees is not None


def _has_no_reference(
    window: Window, table: Table, i: int, trends: Sequence[Trend]
) -> NDArray[np.bool_]:
    """Find where nobody knows whether a flat loss could be lower.

    That is so for losses of unknown kinds, and where a model does better than any
    constant answer.  A regression that has not moved from its start is no better.
    """
    info = window.model_info_at(int(table.steps[-1]))
    answer = constant_answer(table, i, info, trends[0].start)
    now, error = (
        np.array([getattr(trend, each)[j] for j, trend in enumerate(trends)])
        for each in ("now", "error")
    )
    too_high = answer.shows_too_high(now, error)
    if kind_of(info, table.names[i]) in REGRESSIONS:
        near = [_is_near(trend)[j] & ~trend.fell[j] for j, trend in enumerate(trends)]
        too_high |= np.array(near, dtype=bool)
    return ~too_high


def _is_near(trend: Trend) -> NDArray[np.bool_]:
    """Find where the loss is close to its start, or above."""
    near: NDArray[np.bool_] = trend.now > trend.start - NEAR * abs(trend.start)
    return near
