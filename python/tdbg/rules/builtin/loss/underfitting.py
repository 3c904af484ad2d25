"""Underfitting: models that have learned too little and no longer learn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import number, percent
from tdbg.modes import TRAINING, ModeKeys
from tdbg.rules.builtin.loss.constant_answer import ConstantAnswer, constant_answer
from tdbg.rules.builtin.loss.loss_series import (
    FIRST,
    LossRule,
    Trend,
    losses_of,
    trained_loss,
    trend_of,
)
from tdbg.rules.builtin.loss.moving_goals import need_not_fall, starts_over
from tdbg.rules.columns import median
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Description,
    Evaluation,
    Floats,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity, Stage

if TYPE_CHECKING:
    pass

__all__ = ["Underfitting"]

# Significance, in standard errors.
CERTAINTY = 2.0
MAYBE = (
    "That may be as low as this loss can get. Compare the model with a simple "
    "baseline, by a measure whose best value you know. If it is no better, it "
    "underfits."
)
# Largest distance of the mean and deviation of normal numbers from 0 and 1, in standard
# errors.
NORMAL = 5.0


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Underfitting(LossRule):
    """Report models whose training and validation losses stay high and flat.

    The finding is a warning where the rule knows what a model reaches that ignores its
    inputs, and this one is no better: the loss of a classifier that answers with the
    shares of the classes, or the squared error of the targets' mean.  Otherwise it is
    an info, since nobody knows how low such a loss can be.  The rule skips denoisers:
    the data limit how much noise a model can recognize.

    Args:
        num_steps: Recorded steps in each of the two stretches of training to compare.
        flat_percent: A loss that falls by less than this percentage from one stretch
            to the next is flat.
        learned_percent: A loss that fell by this percentage of its start, in training
            or in validation, is not high.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.LEARNING

    num_steps: int = 100
    flat_percent: float = 2.0
    learned_percent: float = 30.0

    def __post_init__(self) -> None:
        check_number(self, "num_steps", least=2, whole=True)
        check_number(self, "flat_percent", above=0.0, most=100.0)
        check_number(self, "learned_percent", above=0.0, most=100.0)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return f"a loss at {2 * self.num_steps:,} recorded steps of training"

    @property
    def lookback(self) -> int:
        """The two stretches."""
        return 2 * self.num_steps - 1

    @property
    def head_rows(self) -> int:
        """The first rows, at which the loss began."""
        return FIRST

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses, labels, and inputs, by which the rule knows a denoiser."""
        return LossRule.selects(self, tensor) or tensor.role == "model_input"

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each loss of training, together with that of validation."""
        evaluated = window.table(ModeKeys.EVAL)
        for table in window.tables(*TRAINING):
            for i, name in enumerate(table.names):
                is_loss = table.roles[i] == "loss"
                trend = trend_of(table, i, self.num_steps) if is_loss else None
                if trend is not None:
                    steps = table.steps[trend.columns]
                    held = self._validation(window, evaluated, name, steps)
                    info = window.model_info_at(int(steps[-1]))
                    reference = constant_answer(table, i, info, trend.start)
                    judged = self._judge(
                        name, table.mode, steps, trend, held, reference
                    )
                    severities = judged.severities[0]
                    found = np.flatnonzero(severities > OK)
                    n, among = 2 * self.num_steps, trend.columns[found]
                    free = need_not_fall(window, table, i, n, among)
                    free |= starts_over(table, i, n, among)
                    severities[found[free]] = UNKNOWN
                    if _are_of_noise(table, i):
                        severities[severities > OK] = UNKNOWN
                    yield judged

    def _validation(
        self,
        window: Window,
        table: Table | None,
        name: str,
        steps: NDArray[np.int64],
    ) -> Floats:
        """Return the median of the last evaluation losses before each step, or NaN."""
        result = np.full(len(steps), np.nan)
        if table is None or not len(table.steps):
            return result
        held_out = [
            each for each in table.names if trained_loss(window, table, each) == name
        ]
        if not held_out:
            return result
        i = table.names.index(held_out[-1])
        rows = np.flatnonzero(table.known[i])
        loss = losses_of(table, i)[rows]
        ends = np.searchsorted(table.steps[rows], steps)
        medians: dict[int, float] = {}
        for k, end in enumerate(ends.tolist()):
            if end not in medians:
                recent = loss[max(0, end - self.num_steps) : end]
                medians[end] = float(median(recent))
            result[k] = medians[end]
        return result

    def _judge(
        self,
        name: str,
        mode: ModeKeys,
        steps: NDArray[np.int64],
        trend: Trend,
        held: Floats,
        reference: ConstantAnswer,
    ) -> Evaluation:
        before, now, start = trend.before, trend.now, trend.start
        limit = start - self.learned_percent / 100.0 * abs(start)
        flat = self.flat_percent / 100.0 * np.abs(before)
        sure = CERTAINTY * trend.error
        surely_flat = (before - now + sure < flat) & (now - before < flat + sure)
        severities = np.full(len(steps), UNKNOWN, dtype=np.int8)
        # The first loss is unknown before two stretches are full.
        sound = (before - now > flat) | (now <= limit) | (held <= limit)
        severities[sound & ~np.isnan(now)] = OK
        high = (now > limit) & ~(held <= limit)
        severities[surely_flat & high] = Severity.INFO
        is_too_high = reference.shows_too_high(now, trend.error)
        severities[surely_flat & high & is_too_high] = Severity.WARNING

        def describe(j: int) -> Description:
            learned = 100.0 * (start - now[j]) / abs(start) if start else 0.0
            held_out = ""
            if not np.isnan(held[j]):
                held_out = f" ({number(float(held[j]), 4)} in validation)"
            below = f"only {percent(learned)} below" if learned > 0 else "not below"
            flat = (
                f"loss is flat at {number(now[j], 4)}{held_out}, {below} its start of "
                f"{number(start, 4)}{reference}."
            )
            is_sure = bool(is_too_high[j])
            return Description(
                message=f"The model underfits: its {flat}"
                if is_sure
                else f"The {flat}",
                value=float(learned),
                threshold=self.learned_percent,
                advice=lambda words: (
                    words.underfitting if is_sure else f"{MAYBE} {words.underfitting}"
                ),
            )

        return Evaluation.of_one(name, steps, mode, severities, describe)


def _are_of_noise(table: Table, loss: int) -> bool:
    """Return whether the loss belongs to a denoiser.

    A denoiser gets a noisy input, and one number for each sample, which is the amount
    of noise or a time.  Its targets have the shape of the input and are normal.

    REQUIRES: the table has the first ``FIRST`` rows.
    """
    name = table.names[loss].removesuffix("_output_0") + "_input_1"
    if name not in table.names:
        return False
    label = table.names.index(name)
    shape = table.shapes[label]
    inputs = [
        table.shapes[k] for k, role in enumerate(table.roles) if role == "model_input"
    ]
    if len(shape) < 2 or shape not in inputs:
        return False
    inputs.remove(shape)
    if not any(each[:1] == shape[:1] == (math.prod(each),) for each in inputs):
        return False
    first = np.flatnonzero(table.known[label] & (table.ordinal[label] <= FIRST))
    n = table["count"][label, first]
    deviation = np.sqrt(table["m2"][label, first] / n)
    is_normal = np.abs(table["mean"][label, first]) * np.sqrt(n) < NORMAL
    is_normal &= np.abs(deviation - 1.0) * np.sqrt(2.0 * n) < NORMAL
    return len(first) > 0 and bool(is_normal.all())
