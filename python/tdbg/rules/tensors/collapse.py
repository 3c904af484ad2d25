"""Predictions that become the same for all samples, by the values a loss was given.

Each sample's prediction is scaled to unit length; the standard deviation over the
samples of each coordinate, on average, times the root of their number, is about 1 for
directions that have nothing to do with each other, and 0 where all are the same.

Thread safety: functions and values only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.rules.table import steps_of
from tdbg.rules.verdicts import nothing_to_describe
from tdbg.rules.window import HEALTHY, UNKNOWN, Description, Judgement, Table

__all__ = ["judge_collapse", "spread_of"]

# Samples to judge by, at least; and at most, for the sake of time.
FEW_SAMPLES = 8
MANY_SAMPLES = 64
# Numbers of each that are looked at, at most: a map of scores has millions.
MANY_NUMBERS = 4096
# What has collapsed was so many times as wide at the first batch.
FALL = 10.0
# Less than this is the rounding of float32: the samples do not count at all.
ROUNDING = 1e-6


def spread_of(values: NDArray[np.generic]) -> float | None:
    """How far the directions of a batch's samples differ; None: it cannot be said.

    Example:
        >>> spread_of(np.ones((8, 4)))
        0.0
    """
    if values.ndim < 2 or values.dtype.kind != "f" or len(values) < FEW_SAMPLES:
        return None
    used = values[:: max(1, len(values) // MANY_SAMPLES)]
    rows = used.reshape(len(used), -1)
    rows = rows[:, :: max(1, rows.shape[1] // MANY_NUMBERS)].astype(np.float64)
    if rows.shape[1] < 2 or not np.isfinite(rows).all():
        return None
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    # Zeros have no direction, and are for AllZero.
    rows = rows[lengths[:, 0] > 0] / lengths[lengths[:, 0] > 0]
    if len(rows) < FEW_SAMPLES:
        return None
    return float(rows.std(axis=0).mean() * np.sqrt(rows.shape[1]))


def judge_collapse(
    table: Table, i: int, *, limit: float, patience: int, look_back: int
) -> Judgement:
    """Judge the predictions in row *i*, at the steps at which they were kept.

    Args:
        table: Has the first row of the tensor, and those that are looked back at.
        i: The tensor.
        limit: What spreads less than this has collapsed, if it spread ten times this
            or more at the first batch.  Where it did not, it must be the same but for
            rounding: that no model is which looks at its samples.
        patience: Steps in a row at which this must hold.
        look_back: Rows before each step that are looked at.
    """
    name = table.names[i]
    rows = np.flatnonzero(table.present[i])
    kept = rows[np.isin(table.steps[rows], table.value_steps(name))]
    kept = kept[table.usable[kept]]
    spreads: dict[int, float | None] = {}

    def spread(column: int) -> float | None:
        if column not in spreads:
            values = table.value(name, int(table.steps[column]))
            spreads[column] = None if values is None else spread_of(values)
        return spreads[column]

    levels = np.full(len(table.steps) - table.start, UNKNOWN, np.int8)
    first = kept[table.ordinal[i, kept] == 1]
    began = spread(int(first[0])) if len(first) else None
    if began is None:
        return table.judge_one(name, levels, nothing_to_describe)
    if began < FALL * limit:
        limit = ROUNDING

    def is_alike(column: int) -> bool | None:
        now = spread(column)
        return None if now is None else now < limit

    for column in kept[kept >= table.start].tolist():
        if not is_alike(column):
            if is_alike(column) is False:
                levels[column - table.start] = HEALTHY
            continue
        at = int(np.searchsorted(rows, column))
        oldest = int(rows[max(0, at - look_back)])
        seen = kept[(kept >= oldest) & (kept <= column)][::-1].tolist()
        for streak, before in enumerate(seen, start=1):
            if not is_alike(before):
                break
            lasted = int(table.steps[column] - table.steps[before]) + 1
            if streak >= patience and lasted >= steps_of(patience):
                levels[column - table.start] = Severity.WARNING
                break

    def describe(j: int) -> Description:
        now = spread(table.start + j) or 0.0
        return Description(
            message=(
                f"what the loss is given is the same for all samples, at {patience} "
                f"steps in a row: directions spread by {now:.2g} of what independent "
                f"ones do, and did by {began:.2g} at the first batch"
            ),
            value=now,
            threshold=limit,
            advice=(
                "the model answers the same whatever it is shown. An embedding that "
                "is learned by likeness alone collapses so: stop the gradient of one "
                "side, add a predictor, negatives, or a term for the variance. In a "
                "classifier: see dead and saturated units, and lower the learning "
                "rate; where it was so from the beginning, look for a mean or softmax "
                "over the batch in place of the features, and for inputs cut off"
            ),
        )

    return table.judge_one(name, levels, describe)
