"""Losses of training and evaluation side by side, a pass of evaluation at a time.

A pass is a run of evaluation steps with no other step between them; its loss is the
mean over its steps.  Beside it stands the loss of training just before it: the median
of the last recorded steps.  A pass is judged when it is as long as the one before was.

Thread safety: functions and values only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.rules.loss.of_losses import losses_of
from tdbg.rules.medians import median
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Description,
    Floats,
    Judgement,
    Table,
    Window,
)

__all__ = ["LOOK_BACK", "Passes", "judge_passes"]


# Recorded steps of each mode that are looked back at: losses are small.
LOOK_BACK = 2000
# Training steps whose median is what training has come to, and at least so many.
N_TRAIN = 50
FEW_TRAIN = 5
# Where training began: the median of so many steps.
N_START = 10


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes of evaluation of one loss up to a step, the last one complete.

    Attributes:
        validation: Mean loss of each pass, oldest first.
        training: Loss of training just before each.
        start: Loss at which training began.
        column: The last step, as a column of the table of evaluation.
    """

    validation: Floats
    training: Floats
    start: float
    column: int


def judge_passes(
    window: Window,
    judge: Callable[[Passes], int],
    describe: Callable[[Passes], Description],
) -> Iterator[Judgement]:
    """Verdicts on losses at the ends of passes of evaluation.

    Args:
        window: What a rule is shown; it looks back ``LOOK_BACK`` rows.
        judge: The severity of what a loss has come to, or ``HEALTHY``.
        describe: It in words.
    """
    trained = window.table(ModeKeys.TRAIN)
    for table in window.tables(ModeKeys.EVAL):
        for i, name in enumerate(table.names):
            levels = np.full(len(table.steps) - table.start, UNKNOWN, np.int8)
            found: dict[int, Passes] = {}
            for passes in _passes(table, trained, i):
                j = passes.column - table.start
                level = judge(passes)
                levels[j] = level
                if level > HEALTHY:
                    found[j] = passes

            def told(j: int, found: dict[int, Passes] = found) -> Description:
                return describe(found[j])

            yield table.judge_one(name, levels, told)


def _passes(table: Table, trained: Table | None, i: int) -> Iterator[Passes]:
    """For each new step that completes a pass: the passes up to it."""
    if trained is None or table.names[i] not in trained.names:
        return
    rows = np.flatnonzero(table.present[i])
    if not len(rows):
        return
    steps, loss = table.steps[rows], losses_of(table, i)[rows]
    begins = np.flatnonzero(np.diff(steps, prepend=steps[:1] - 2) > 1)
    sizes = np.diff(begins, append=len(rows))
    means = np.add.reduceat(loss, begins) / sizes
    train = _Training(trained, trained.names.index(table.names[i]), steps[begins])
    new = int(np.searchsorted(rows, table.start))
    for k in range(1, len(begins)):
        # Complete when it is as long as the one before; what follows is not waited for.
        at = int(begins[k] + sizes[k - 1]) - 1
        if at < new or at >= begins[k] + sizes[k]:
            continue
        # Of the pass in which looking back begins only a part may be seen.
        first = int(np.searchsorted(begins, max(0, at + 1 - LOOK_BACK)))
        if k - 1 < first:
            continue
        validation = means[first : k + 1].copy()
        validation[-1] = loss[begins[k] : at + 1].mean()
        now = int(steps[at])
        start, before = train.start(now), train.before(first, k + 1, now)
        known = np.isfinite(validation) & np.isfinite(before)
        if known[-1] and np.isfinite(start):
            yield Passes(validation[known], before[known], start, int(rows[at]))


class _Training:
    """What training had come to before each pass of evaluation.

    Args:
        table: Steps of training.
        i: Row of the loss.
        begins: Steps at which passes begin.
    """

    def __init__(self, table: Table, i: int, begins: NDArray[np.int64]) -> None:
        rows = np.flatnonzero(table.known[i])
        self._steps, self._loss = table.steps[rows], losses_of(table, i)[rows]
        self._is_first = table.ordinal[i, rows] <= N_START
        self._ends = np.searchsorted(self._steps, begins)
        self._whole = np.array(
            [median(self._loss[max(0, end - N_TRAIN) : end]) for end in self._ends]
        )

    def start(self, now: int) -> float:
        """Where training began, as it can be seen *now*: of later steps nothing is."""
        return float(median(self._loss[self._is_first & (self._steps < now)]))

    def before(self, first: int, last: int, now: int) -> Floats:
        """Losses before these passes, as they can be seen *now*; NaN: not any more."""
        oldest = max(0, int(np.searchsorted(self._steps, now)) - LOOK_BACK)
        ends = self._ends[first:last]
        result = self._whole[first:last].copy()
        result[ends - FEW_TRAIN < oldest] = np.nan
        # Of some only a part is seen.
        for k in np.flatnonzero(np.isfinite(result) & (ends - N_TRAIN < oldest)):
            result[k] = median(self._loss[oldest : ends[k]])
        return result
