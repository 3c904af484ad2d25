"""LossRule, base class for rules about losses; trends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tdbg.config.needs import Needs
from tdbg.rules.columns import median, median_and_deviation
from tdbg.rules.rule import Rule
from tdbg.rules.window import (
    Bools,
    Floats,
    Table,
    TensorInfo,
    Window,
)

__all__ = [
    "FIRST",
    "TOTAL",
    "LossRule",
    "Trend",
    "losses_of",
    "rise_of",
    "stands_still",
    "trained_loss",
    "trend_of",
]


class LossRule(Rule):
    """Base class of rules about losses.

    Their tables also hold the labels of the losses, if these were captured.
    """

    __slots__ = ()

    @property
    def needs(self) -> Needs | tuple[Needs, ...]:
        """Rows of losses of training and evaluation, which hold the values."""
        return Needs(collections=frozenset({"losses"}))

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses and their labels."""
        return tensor.role in {"loss", "label"}


def losses_of(table: Table, i: int) -> Floats:
    """Return the losses in row *i*; NaN where a loss is unknown or not finite."""
    known = table.known[i] & (table.not_finite[i] == 0)
    return np.where(known, table["mean"][i], np.nan)


# The name of the number at which a backward pass begins, if no loss returned it.
TOTAL = "loss_output_0"
# Number of losses that define the start: few, so that early progress counts as
# learning.
FIRST = 10

# Ratio of the standard errors of the median and the mean of a normal sample.
MEDIAN_SPREAD = 1.2533


@dataclass(frozen=True, slots=True)
class Trend:
    """The medians of a loss over the last two stretches, at each new step with a row.

    Attributes:
        n: Losses in each stretch.
        columns: Columns of these steps in the table.
        before: Median of the stretch before the last; NaN where there is none yet.
        now: Median of the last stretch.
        error: Standard error of their difference.
        start: Median of the very first losses.
        fell: Whether the loss has surely been below the first *n* losses, over both
            stretches together or over the first of them.
    """

    n: int
    columns: NDArray[np.intp]
    before: Floats
    now: Floats
    error: Floats
    start: float
    fell: Bools


def trend_of(table: Table, i: int, n: int) -> Trend | None:
    """Return the trend of the loss in row *i*, or None without new rows.

    Each stretch has *n* rows.  The start is the median of the first ``FIRST`` rows, or
    of the first *n* if these are fewer.

    REQUIRES: the table looks back 2 n - 1 rows, and has these first ones; all first
    *n*, or ``fell`` is False.
    """
    rows = np.flatnonzero(table.known[i])
    new = rows[rows >= table.start]
    if not len(new):
        return None
    loss = losses_of(table, i)[rows]
    before, now, error = (np.full(len(new), np.nan) for _ in range(3))
    # Position among the known rows of each new one; those before it must fill
    # both stretches.
    ends = np.searchsorted(rows, new) + 1
    full = ends >= 2 * n
    ordinals = table.ordinal[i, rows]
    first = loss[ordinals <= n]
    fell = np.zeros(len(new), dtype=bool)
    if full.any():
        both = sliding_window_view(loss, 2 * n)[ends[full] - 2 * n]
        before[full], before_error = _sure_median(both[:, :n])
        now[full], now_error = _sure_median(both[:, n:])
        error[full] = np.hypot(before_error, now_error)
        if len(first) == n:
            origin, of_origin = _sure_median(first[np.newaxis])
            middle, of_middle = _sure_median(both)
            # Comparisons with NaN are false, so nothing unknown counts as sure.
            fell[full] = (
                origin - middle > _CERTAINTY * np.hypot(of_origin, of_middle)
            ) | (origin - before[full] > _CERTAINTY * np.hypot(of_origin, before_error))
    start = float(median(loss[ordinals <= min(n, FIRST)]))
    return Trend(n, new, before, now, error, start, fell)


def rise_of(table: Table, i: int, least: float) -> Floats:
    """Return the median of the last losses where they have surely risen, else NaN.

    Surely: each of the last ``FIRST`` losses is above each of the first ``FIRST``, a
    permutation test that needs no model of the noise, and their median exceeds that of
    the first by the share *least*.

    REQUIRES: the table looks back as many rows, and has the first ones.

    Returns:
        One number for each new step with a row, as ``trend_of`` has them.
    """
    rows = np.flatnonzero(table.known[i])
    loss = losses_of(table, i)[rows]
    new = np.searchsorted(rows, rows[rows >= table.start])
    result = np.full(len(new), np.nan)
    is_first = table.ordinal[i, rows] <= FIRST
    first = loss[is_first]
    if len(first) < FIRST or not np.isfinite(first).all():
        return result
    middle, highest = float(np.median(first)), float(first.max())
    # The last rows must not overlap the first rows.
    after = np.flatnonzero(~is_first)
    full = new >= after[0] + FIRST - 1 if len(after) else np.zeros(len(new), dtype=bool)
    if not full.any():
        return result
    last = sliding_window_view(loss, FIRST)[new[full] - FIRST + 1]
    now = np.median(last, axis=1)
    risen = (last.min(axis=1) > highest) & (now - middle > least * abs(middle))
    result[full] = np.where(risen, now, np.nan)
    return result


# A loss stands still if it is surely less than this share below its first ones.
STILL = 0.05
_CERTAINTY = 2.0


def stands_still(table: Table, i: int, j: int, n: int) -> bool:
    """Return whether the loss in row *i* is surely still where it began.

    Surely: even two standard errors below the median of its last *n* rows.

    Args:
        table: Has the first ``FIRST`` rows of the loss, and the last *n*.
        i: Row of the loss.
        j: Column of a known row: the last that counts.
        n: Rows of the loss that count.
    """
    rows = np.flatnonzero(table.known[i, : j + 1])
    loss = losses_of(table, i)
    first = loss[rows[table.ordinal[i, rows] <= FIRST]]
    last = loss[rows[-n:]]
    if len(first) < FIRST or len(last) < n or not np.isfinite(last).all():
        return False
    start = float(np.median(first))
    middle, error = _sure_median(last[np.newaxis])
    fall = start - float(middle[0]) + _CERTAINTY * float(error[0])
    return fall < STILL * abs(start)


def _sure_median(stretches: Floats) -> tuple[Floats, Floats]:
    """Return the median of each row, and its standard error.

    The error is the larger of two: that of a normal sample, and half the distance
    between the order statistics sqrt(n) / 2 on either side of the median.  The second
    holds for any sample, even if losses come in two kinds.
    """
    middle, deviation = median_and_deviation(stretches)
    n = stretches.shape[1]
    error = MEDIAN_SPREAD * deviation / np.sqrt(n)
    low = max(0, math.floor((n - 1 - math.sqrt(n)) / 2))
    ordered = np.sort(stretches, axis=1)
    return middle, np.maximum(error, (ordered[:, n - 1 - low] - ordered[:, low]) / 2)


def trained_loss(window: Window, evaluated: Table, name: str) -> str:
    """Return the loss of training that a loss of evaluation is compared with.

    It has the same name, unless the model info pairs them, as it does for boosted
    trees.
    """
    info = window.model_info_at(int(evaluated.steps[-1]))
    return name if info is None else info.evaluates.get(name, name)
