"""Losses in stretches of recorded steps: their medians, and how sure these are.

Thread safety: functions and values only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tdbg.rules.loss.of_losses import losses_of
from tdbg.rules.medians import median, with_deviation
from tdbg.rules.window import Floats, Table

__all__ = ["FIRST", "Trend", "rise_of", "trend_of"]


# Losses that say where it began: few, or what is learned soon would not count as
# learned.
FIRST = 10

# The median of a normal sample scatters by this much more than its mean.
MEDIAN_SPREAD = 1.2533


@dataclass(frozen=True, slots=True)
class Trend:
    """What a loss did over the last two stretches, at each new step with a row.

    Attributes:
        n: Losses in each stretch.
        columns: These steps, as columns of the table.
        before: Median of the stretch before the last; NaN where there is none yet.
        now: Median of the last.
        error: Standard error of their difference.
        start: Median of the first losses of all.
    """

    n: int
    columns: NDArray[np.intp]
    before: Floats
    now: Floats
    error: Floats
    start: float


def trend_of(table: Table, i: int, n: int) -> Trend | None:
    """How the loss in row *i* moves, by stretches of *n* rows; None: nothing new.

    It began with the median of the first ``FIRST``, or *n*, if these are fewer.

    REQUIRES: the table looks back 2 n - 1 rows, and has these first ones.
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
    if full.any():
        both = sliding_window_view(loss, 2 * n)[ends[full] - 2 * n]
        before[full], before_error = _sure_median(both[:, :n])
        now[full], now_error = _sure_median(both[:, n:])
        error[full] = np.hypot(before_error, now_error)
    start = float(median(loss[table.ordinal[i, rows] <= min(n, FIRST)]))
    return Trend(n, new, before, now, error, start)


def rise_of(table: Table, i: int, least: float) -> Floats:
    """The median of the last losses, where they have surely risen; elsewhere NaN.

    That is: each of the last ``FIRST`` is above each of the first ``FIRST``, a
    permutation test without a model of the noise, and their median by the share
    *least* of that of the first.

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
    # None of the last is one of the first.
    after = np.flatnonzero(~is_first)
    full = new >= after[0] + FIRST - 1 if len(after) else np.zeros(len(new), dtype=bool)
    if not full.any():
        return result
    last = sliding_window_view(loss, FIRST)[new[full] - FIRST + 1]
    now = np.median(last, axis=1)
    risen = (last.min(axis=1) > highest) & (now - middle > least * abs(middle))
    result[full] = np.where(risen, now, np.nan)
    return result


def _sure_median(stretches: Floats) -> tuple[Floats, Floats]:
    """The median of each row, and its standard error."""
    middle, deviation = with_deviation(stretches)
    return middle, MEDIAN_SPREAD * deviation / np.sqrt(stretches.shape[1])
