"""LossNotDecreasing: losses that do not fall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import TRAINING, ModeKeys
from tdbg.rules.builtin.loss.loss_series import (
    FIRST,
    LossRule,
    Trend,
    rise_of,
    trend_of,
)
from tdbg.rules.builtin.loss.moving_goals import need_not_fall
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

# Significance, in standard errors: of a loss at its start; of one by two
# short windows; and of one that has come down.  The test is repeated at every step:
# in 500 steps of a level loss with normal noise two standard errors are exceeded in 85
# of 100 trainings, three in 23 and four in 1.  What is where it began need not rise to
# be sick, but of what has shown that it can learn that would be a false alarm.
CERTAINTY = 2.0
OF_SHORT = 3.5
OF_LEARNED = 4.0
# A loss that is less than this share below its first ones is where it began.
NEAR = 0.1
# A loss has risen when each of its last ones is above each of its first, FIRST of both,
# and their median by this share.  By chance alone that is one case in 184,756.
RISEN = 0.1


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LossNotDecreasing(LossRule):
    """Report losses that do not fall, beyond the noise of their batches.

    The medians of two windows of ``window`` recorded steps, one after the other,
    are compared; before there are so many, of two half as long, if the loss is where
    it began.  Nothing is reported while the difference could be noise, nor while the
    loss is well below where it began: what has fallen may be flat.  A loss of which
    the last 10 are all above the first 10 is reported as soon as that is so.

    Args:
        window: Recorded steps in each of the two windows.
        fall_percent: The loss must fall by at least this percentage from one window
            to the next.
        learned_percent: A loss that is this percentage below its first ones has
            learned, and is not reported for being flat.  100: always report.
        mode: The mode to judge, or its name; None: training.
        tensor_regex: Judge losses of such names only.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

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
        """What its first verdict needs."""
        return f"a loss at {self.window} recorded steps of training or more"

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
            # Short windows count until there are two long ones.
            early = np.isnan(trend.now) & self._stays(half)
            severities[early] = Severity.WARNING
            trends = [half if k else trend for k in early.tolist()]
        rises = rise_of(table, i, RISEN)
        risen = np.isfinite(rises) & (severities != OK)
        severities[risen] = Severity.WARNING
        found = np.flatnonzero(severities > OK)
        free = need_not_fall(window, table, i, 2 * self.window, trend.columns[found])
        severities[found[free]] = UNKNOWN

        def describe(j: int) -> Description:
            if risen[j]:
                return self._describe_rise(float(rises[j]), trend.start)
            return self._describe(trends[j], j)

        steps = table.steps[trend.columns]
        return Evaluation.of_one(
            table.names[i], steps, table.mode, severities, describe
        )

    def _levels(self, trend: Trend) -> NDArray[np.int8]:
        fall, error, start = trend.before - trend.now, trend.error, trend.start
        # Comparisons with NaN are false: unknown stays unknown.
        requested = self.fall_percent / 100.0 * np.abs(trend.before)
        has_learned = trend.now <= start - self.learned_percent / 100.0 * abs(start)
        # Only a significant fall is OK, so that noise does not end an episode.
        falls = (fall >= requested) & (fall > CERTAINTY * error)
        # What has fallen, and is back where it began, may be so by its noise.
        is_level = _is_near(trend) & ~trend.fell
        sure = np.where(is_level, CERTAINTY, OF_LEARNED)
        severities = np.full(len(fall), UNKNOWN, dtype=np.int8)
        severities[fall + sure * error < requested] = Severity.WARNING
        severities[falls | has_learned] = OK
        return severities

    def _stays(self, trend: Trend) -> NDArray[np.bool_]:
        """Where the loss surely stays at its start, by windows of half the length."""
        # Half of the steps require half of the fall.
        requested = self.fall_percent / 200.0 * np.abs(trend.before)
        surely_not = trend.before - trend.now + OF_SHORT * trend.error < requested
        stays: NDArray[np.bool_] = surely_not & _is_near(trend)
        return stays

    def _describe_rise(self, now: float, start: float) -> Description:
        change = 100.0 * (start - now) / abs(start) if start else 0.0
        return Description(
            message=(
                f"each of the last {FIRST} losses is above each of the first {FIRST}: "
                f"their median rose from {start:.4g} to {now:.4g}"
            ),
            value=change,
            threshold=self.fall_percent,
            evidence=Evidence("mean", start),
            advice=_RISES,
        )

    def _describe(self, trend: Trend, j: int) -> Description:
        before, now = float(trend.before[j]), float(trend.now[j])
        error, start = float(trend.error[j]), trend.start
        change = 100.0 * (before - now) / abs(before) if before else 0.0
        since = 100.0 * (start - now) / abs(start) if start else 0.0
        size = f"{abs(change):.2g} %"
        if not change:
            moved = "stayed the same"
        elif abs(before - now) > CERTAINTY * error:
            moved = f"{'fell' if change > 0 else 'rose'} by {size}"
        else:
            # A change within the noise has no direction.
            noise = 100.0 * CERTAINTY * error / abs(before)
            side = "below" if change > 0 else "above"
            moved = f"stayed about the same ({size} {side}, give or take {noise:.2g} %)"
        rising = now > start
        requested = self.fall_percent * trend.n / self.window
        # A smaller number may be noise, and points to no cause.
        has_risen = now - start > self.fall_percent / 100.0 * abs(start)
        return Description(
            message=(
                f"the median loss of {trend.n} recorded steps {moved}, from "
                f"{before:.4g} to {now:.4g}, where a fall of {requested:g} % "
                f"is asked for; {abs(since):.2g} % {'above' if rising else 'below'} "
                "where it began"
            ),
            value=change,
            threshold=requested,
            evidence=Evidence("mean", before - requested / 100.0 * abs(before)),
            advice=(
                _RISES
                if has_risen
                else "the training does not learn: try a learning rate 10 times "
                "higher and 10 times lower, check that labels belong to their inputs "
                "and that the optimizer holds the parameters, and see whether it can "
                "learn a single batch by heart"
            ),
        )


_RISES = (
    "the loss rises: lower the learning rate, and check the sign of the loss and the "
    "labels"
)


def _is_near(trend: Trend) -> NDArray[np.bool_]:
    """Where the loss is close to its start, or above."""
    near: NDArray[np.bool_] = trend.now > trend.start - NEAR * abs(trend.start)
    return near
