"""Losses that need not fall although the training succeeds.

Thread safety: pure functions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tdbg.rules.builtin.loss.loss_series import FIRST, TOTAL, losses_of
from tdbg.rules.columns import (
    MAD_TO_DEVIATION,
    median,
    median_and_deviation,
    model_info_of_steps,
)
from tdbg.rules.window import Bools, Floats, Table, Window

__all__ = ["has_moved_to", "need_not_fall", "starts_over"]

# What the name of a loss ends with.
OUTPUT = "_output_0"
# A loss has both signs if at least this share of its values has the rarer sign.
OTHER_SIGN = 0.1
# Targets have moved if their mean has, by this many standard errors and by this share
# of their deviation.
CERTAINTY = 6.0
MOVED = 0.25
# A loss starts over if some values lie this share of its start below it, and the next
# ones less than that share.  It has these steps to fall by the latter.
BEFORE, LEARNED = 5, 0.25
# A sum of losses is that but for this share; a part counts from this share on.  Of so
# many losses at most, sums are looked for.
ROUNDING, COUNTS, MOST_PARTS = 1e-5, 1e-4, 6
AFTER, BACK = 3, 0.1
SOON = 25


def need_not_fall(
    window: Window, table: Table, i: int, n: int, among: NDArray[np.intp]
) -> Bools:
    """Return at which of some columns the loss in row *i* need not fall.

    - Several optimizers train for several losses, which may be adversaries: as one loss
      falls, the other rises.
    - The loss of a policy gradient yields a gradient and does not measure success.
    - A loss that changes its sign again and again is no distance.
    - If the program adds several losses, only their sum must fall.  The sum may be
      another loss that is recorded.
    - A loss that no backward pass begins at is looked at and does not train.
    - Moving targets move the loss: a copy of the model produces them, or their
      statistics have changed.

    Args:
        window: Has the model info.
        table: The losses, and their labels if there are any.
        i: Row of the loss.
        n: How many of its last rows count, besides the first.
        among: The columns of known rows of the loss that have a finding, which are few.

    REQUIRES: the table looks back as many rows, and has the first ones.
    """
    result = _by_model(window, table, i)
    if TOTAL in table.names and table.names[i] != TOTAL:
        result |= table.known[table.names.index(TOTAL)]
    if not result.all() and _is_part(table, i):
        result |= table.known[i]
    rows = np.flatnonzero(table.known[i])
    loss = losses_of(table, i)
    label = table.names[i].removesuffix(OUTPUT) + "_input_1"
    at = table.names.index(label) if label in table.names else None
    first = rows[table.ordinal[i, rows] <= FIRST]
    for k, j in zip(np.searchsorted(rows, among).tolist(), among.tolist(), strict=True):
        if result[j]:
            continue
        last = rows[max(0, k + 1 - n) : k + 1]
        result[j] |= _has_both_signs(loss[np.union1d(first, last)])
        if at is None:
            continue
        if len(last) >= FIRST:
            result[j] |= _have_moved(table, at, last[-FIRST:])
        # The targets may have fewer rows than the loss, or end earlier.
        known = np.flatnonzero(table.known[at, : j + 1])
        if not result[j] and len(known) and "float" in table.dtypes[at]:
            mean = float(table["mean"][at, known[-1]])
            result[j] |= has_moved_to(table, at, mean, int(known[-1]))
    return result[among]


def _is_part(table: Table, i: int) -> bool:
    """Return whether another loss has always been the sum of this one and a third."""
    rows = [k for k, role in enumerate(table.roles) if role == "loss"]
    if not 2 < len(rows) <= MOST_PARTS:
        return False
    values = {k: losses_of(table, k) for k in rows}
    for total in rows:
        rest = [k for k in rows if k not in {i, total}]
        sums = [values[i] + values[k] for k in rest]
        sums.append(values[i] + sum(values[k] for k in rest))
        if total != i and any(_equals(values[total], s, values[i]) for s in sums):
            return True
    return False


def _equals(total: Floats, parts: Floats, part: Floats) -> bool:
    """Return whether a total equals a sum whose one part is more than a rounding."""
    known = np.isfinite(total) & np.isfinite(parts)
    size = np.abs(total[known])
    is_near = np.abs(total[known] - parts[known]) <= ROUNDING * size
    counts = np.abs(part[known]) > COUNTS * size
    return bool(is_near.all() and np.count_nonzero(counts) >= BEFORE)


def _by_model(window: Window, table: Table, i: int) -> Bools:
    result = np.zeros(len(table.steps), dtype=bool)
    has_several = np.full(len(table.steps), table.roles.count("loss") > 1)
    if TOTAL in table.names:
        # One place in a function may begin the backward passes of all optimizers.
        has_several |= table["count"][table.names.index(TOTAL)] > 1
    for model_info, steps in model_info_of_steps(window, table):
        if model_info is not None:
            is_free = model_info.is_surrogate or model_info.makes_targets
            is_free |= table.names[i].partition(OUTPUT)[0] in model_info.idle_losses
            are_adversaries = has_several[steps] & model_info.has_several_optimizers
            result[steps] = are_adversaries | is_free
    return result


def _has_both_signs(loss: Floats) -> bool:
    known = loss[np.isfinite(loss)]
    below = np.count_nonzero(known < 0)
    return bool(min(below, len(known) - below) > OTHER_SIGN * len(known))


def starts_over(table: Table, i: int, n: int, among: NDArray[np.intp]) -> Bools:
    """Return at which of some columns a training has started over.

    As each fold of a cross-validation does: the loss in row *i* has jumped back to its
    start, and falls again.

    Args:
        table: The losses.
        i: Row of the loss.
        n: How many of its last rows count, besides the first.
        among: Columns of known rows of the loss.

    REQUIRES: the table looks back as many rows, and has the first ones.
    """
    rows = np.flatnonzero(table.known[i])
    loss = losses_of(table, i)[rows]
    start = float(median(loss[table.ordinal[i, rows] <= FIRST]))
    ends = np.searchsorted(rows, among) + 1
    found = [_starts_over(loss[max(0, k - n) : k], start) for k in ends.tolist()]
    return np.array(found, dtype=bool)


def _starts_over(latest: Floats, start: float) -> bool:
    back = BACK * abs(start)
    is_high = latest > start - back
    is_low = latest < start - LEARNED * abs(start)
    for k in range(len(latest) - AFTER, BEFORE - 1, -1):
        if is_low[k - BEFORE : k].all() and is_high[k : k + AFTER].all():
            high, now = median(latest[k : k + AFTER]), median(latest[k:][-FIRST:])
            return bool(len(latest) - k < SOON or now < high - back)
    return False


def has_moved_to(table: Table, label: int, mean: float, column: int) -> bool:
    """Return whether the mean of targets has moved since the beginning, beyond chance.

    Unlike for a loss, a single batch may show the present mean.

    Args:
        table: Has the first ``FIRST`` rows of the targets.
        label: Row of the targets.
        mean: Their mean at the column, of one batch or more.
        column: The column.
    """
    known = table.known[label] & (table["count"][label] > 0)
    first = np.flatnonzero(known & (table.ordinal[label] <= FIRST))
    if len(first) < FIRST or first[-1] >= column:
        return False
    means = table["mean"][label, first]
    # Compare neighboring batches: the targets may have begun to move.
    noise = MAD_TO_DEVIATION * float(np.median(np.abs(np.diff(means)))) / np.sqrt(2.0)
    spreads = table["m2"][label, first] / table["count"][label, first]
    deviation = float(np.sqrt(np.median(spreads)))
    moved = abs(mean - float(np.median(means)))
    return bool(moved > CERTAINTY * noise and moved > MOVED * deviation)


def _have_moved(table: Table, label: int, last: NDArray[np.intp]) -> bool:
    """Return whether targets have changed since the beginning: a model makes them.

    Args:
        table: Has the first ``FIRST`` rows of the targets.
        label: Row of the targets.
        last: The columns to compare with these, of as many rows.
    """
    if "float" not in table.dtypes[label]:
        return False
    known = table.known[label] & (table["count"][label] > 0)
    first = np.flatnonzero(known & (table.ordinal[label] <= FIRST))
    last = last[known[last]]
    if len(first) < FIRST or len(last) < FIRST or first[-1] >= last[0]:
        return False
    means = np.stack([table["mean"][label, first], table["mean"][label, last]])
    (then, now), spread = median_and_deviation(means)
    error = np.hypot(*spread) / np.sqrt(FIRST)
    spreads = table["m2"][label, first] / table["count"][label, first]
    deviation = float(np.sqrt(np.median(spreads)))
    moved = abs(float(now) - float(then))
    return bool(moved > CERTAINTY * float(error) and moved > MOVED * deviation)
