"""ConstantAnswer: what a loss would be if the model ignored its inputs.

That is the reference of rules about losses that stay high: below it, a model has
learned something, and nobody knows how much more it could.

Thread safety: pure functions and immutable values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import CLASSIFICATIONS, Kind
from tdbg.config.quantities import number
from tdbg.rules.builtin.loss.loss_series import FIRST
from tdbg.rules.columns import kind_of, median
from tdbg.rules.window import Bools, Floats, Table

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = ["ConstantAnswer", "constant_answer"]

# A loss is surely below that of a constant answer by this many standard errors.
CERTAINTY = 3.0
# A model is no better than a constant answer if its loss is above the first share of
# that answer's; a squared error above the second may be a sum, not a mean.
NO_BETTER, OF_SUM = 0.95, 2.0
# A loss that starts below this share of what a constant answer would give is weighted,
# or another mean, and is not compared with it.
OF_START = 0.9


@dataclass(frozen=True, slots=True)
class ConstantAnswer:
    """The loss of a model that ignores its inputs.

    Attributes:
        is_start: Whether it is where the loss starts: a classifier guesses at first,
            and boosted trees answer with the mean.
        constant: The loss of the best constant answer, by the first batches of targets:
            their mean, or the shares of the classes; NaN: the loss is another one, or
            nobody captured them.
        error: Its standard error.
    """

    is_start: bool
    constant: float = math.nan
    error: float = 0.0

    def shows_too_high(self, loss: Floats, error: Floats) -> Bools:
        """Return where a loss that is flat, and not far below its start, is too high.

        A classifier's, unless it is surely and well below the constant's; a squared
        error where it is near the constant's.
        """
        if self.is_start:
            sure = CERTAINTY * np.hypot(error, self.error)
            sure = np.maximum(sure, (1.0 - NO_BETTER) * self.constant)
            return np.asarray(~(self.constant - loss > sure))
        near: Bools = loss > NO_BETTER * self.constant
        return near & (loss < OF_SUM * self.constant)

    def __str__(self) -> str:
        if np.isnan(self.constant):
            return ""
        answer = "the mean of the targets would give a mean squared error of"
        if self.is_start:
            answer = "the shares of the classes would give about"
        return f"; to answer with {answer} {number(self.constant, 4)}"


def constant_answer(
    table: Table, loss: int, info: ModelInfo | None, start: float
) -> ConstantAnswer:
    """Return the reference of a loss.

    Args:
        table: Has the losses, their labels, and the first ``FIRST`` rows of these.
        loss: Row of the loss.
        info: The model, if known.
        start: Median of the first losses.
    """
    kind = kind_of(info, table.names[loss])
    is_start = kind in CLASSIFICATIONS or (info is not None and info.trees is not None)
    label = table.names[loss].removesuffix("_output_0") + "_input_1"
    if label not in table.names:
        return ConstantAnswer(is_start)
    i = table.names.index(label)
    first = table.known[i] & (table["count"][i] > 0) & (table.ordinal[i] <= FIRST)
    if kind in CLASSIFICATIONS and first.any():
        entropy, error = _entropy_of(table, i, np.flatnonzero(first))
        if start >= OF_START * entropy:
            return ConstantAnswer(is_start, entropy, error)
    if kind != Kind.MSE:
        return ConstantAnswer(is_start)
    variances = table["m2"][i, first] / table["count"][i, first]
    return ConstantAnswer(is_start, float(median(variances)))


def _entropy_of(
    table: Table, label: int, columns: NDArray[np.intp]
) -> tuple[float, float]:
    """Return the entropy of the classes of some batches, and its standard error.

    NaN without values, or with classes that are given as probabilities.
    """
    name = table.names[label]
    found = [table.value(name, int(step)) for step in table.steps[columns]]
    batches = [each.ravel() for each in found if each is not None and _is_of_one(each)]
    labels = np.concatenate(batches) if batches else np.empty(0)
    labels = labels[labels >= 0]
    classes, counts = np.unique(labels, return_counts=True)
    if not len(labels) or (classes != np.round(classes)).any():
        return math.nan, 0.0
    n, share = len(labels), counts / len(labels)
    surprise = -np.log(share)
    entropy = float(share @ surprise)
    spread = float(share @ (surprise - entropy) ** 2)
    # The entropy of a sample is too low by this (Miller 1955).
    return entropy + (len(classes) - 1) / (2 * n), math.sqrt(spread / n)


def _is_of_one(labels: NDArray[np.generic]) -> bool:
    """Return whether each label is of the same question: not of several yes or no."""
    return labels.dtype.kind in "iu" or labels.size == len(labels)
