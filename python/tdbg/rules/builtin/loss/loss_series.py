"""LossRule and PassesRule, base classes for losses; trends and passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tdbg.config.needs import Needs
from tdbg.modes import ModeKeys
from tdbg.rules.builtin.data.classifier_batches import PairBatches, pairs_of
from tdbg.rules.columns import MAD_TO_DEVIATION, median, median_and_deviation
from tdbg.rules.rule import Rule
from tdbg.rules.training_facts import NOT_EVALUATED, TrainingFacts
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Bools,
    Description,
    Evaluation,
    Floats,
    Table,
    TensorInfo,
    Window,
)

__all__ = [
    "FIRST",
    "LOOKBACK",
    "TOTAL",
    "LossRule",
    "Passes",
    "PassesRule",
    "Trend",
    "judge_passes",
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


# Recorded steps of each mode to look back at: losses are small.
LOOKBACK = 2000
# Training steps whose median is the loss before a pass: the most, and the fewest.
N_TRAIN = 50
FEW_TRAIN = 5
# Training steps whose median is the first loss.
N_START = 10


class PassesRule(LossRule):
    """Base class of rules that compare training with passes of evaluation."""

    __slots__ = ()

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses, and the labels and predictions that accuracy is made of."""
        return tensor.role in {"loss", "label", "prediction"}

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return that there is no validation, if so."""
        return "" if training.is_evaluated else NOT_EVALUATED

    @property
    def lookback(self) -> int:
        """The passes, and the training before each of them."""
        return LOOKBACK

    @property
    def head_rows(self) -> int:
        """The first rows, at which training began."""
        return N_START


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of evaluation of one loss up to a step; the last one is complete.

    Attributes:
        validation: Mean loss of each pass, oldest first.
        training: Loss of training just before each pass: a median.
        latest: The last loss of training before each pass.
        start: Loss at which training began.
        column: Column of the last step in the table of evaluation.
        is_term: Whether the program adds this loss to others, and trains for the sum.
        batches: The losses of each pass, of which ``validation`` has the means.
        recognized: Returns how many samples of a pass, by its place in ``validation``,
            the model classified rightly, and of how many; 0 of 0: not known.
        keeps_best: Whether early stopping by other data than those of training keeps
            the best model.
    """

    validation: Floats
    training: Floats
    latest: Floats
    start: float
    column: int
    is_term: bool
    batches: tuple[Floats, ...]
    recognized: Callable[[int], tuple[int, int]]
    keeps_best: bool = False

    def best(self, k: int) -> int:
        """Return the pass with the lowest loss up to pass *k*."""
        return int(np.argmin(self.validation[: k + 1]))

    def has_surely_risen(self, k: int) -> bool:
        """Return whether the loss of pass *k* is surely above that of the best pass.

        Surely: by three standard errors, of which the larger one counts: that of the
        jitter from pass to pass, and that of the difference between the batches of both
        passes.
        """
        best = self.best(k)
        error = math.sqrt(2.0) * _jitter(self.validation[: k + 1])
        before, now = self.batches[best], self.batches[k]
        if len(before) == len(now) >= FEW_BATCHES:
            spread = float(np.std(now - before, ddof=1)) / math.sqrt(len(now))
            error = max(error, spread)
        return bool(self.validation[k] - self.validation[best] > SURE * error)

    def improves_to_the_end(self, k: int) -> bool:
        """Return whether the last quarter of the passes is surely better than before.

        Surely: its best is below theirs by twice the jitter from pass to pass.
        """
        late = k + 1 - max(1, (k + 1) // 4)
        series = self.validation[: k + 1]
        gain = series[:late].min(initial=np.inf) - series[late:].min()
        return bool(gain > IMPROVED * _jitter(series))

    def recognizes_more(self, k: int) -> bool:
        """Return whether the model classifies better than at the best pass, and learns.

        The loss may rise then because the model is too sure of its mistakes.
        """
        quarter = max(2, (k + 1) // 4)
        middle = k + 1 - quarter
        earlier = self._accuracy(range(max(0, middle - quarter), middle))
        if not self._accuracy(range(middle, k + 1)) - earlier > STILL_MORE:
            return False
        best = self.best(k)
        before = self._accuracy(range(max(0, best - AROUND), best + AROUND + 1))
        now = self._accuracy(range(max(best + 1, k - 2 * AROUND), k + 1))
        return now - before > MORE

    def _accuracy(self, passes: range) -> float:
        found = [self.recognized(k) for k in passes if k < len(self.validation)]
        n = sum(each for _, each in found)
        return sum(right for right, _ in found) / n if n else math.nan


# Standard errors by which a loss must have risen.
SURE = 3.0
# Deviations by which the last passes must be better than those before.
IMPROVED = 2.0
# Batches of a pass that tell how much their losses differ.
FEW_BATCHES = 5
# A share of samples that must be classified rightly beyond that of the best pass, and
# in the last quarter of the passes beyond that of the quarter before; the passes on
# either side of the best one that count with it.
MORE = 0.01
STILL_MORE = 0.005
AROUND = 2


def _jitter(series: Floats) -> float:
    """Return the standard deviation of a series around its own slow course.

    By the median of its second differences, in which a steady slope cancels out; 0:
    the series is too short.
    """
    if len(series) < 4:
        return 0.0
    bends = np.sort(np.abs(np.diff(series, n=2)))
    return float(bends[(len(bends) - 1) // 2]) * MAD_TO_DEVIATION / math.sqrt(6.0)


def judge_passes(
    window: Window,
    judge: Callable[[Passes], int],
    describe: Callable[[Passes], Description],
) -> Iterator[Evaluation]:
    """Make verdicts on losses at the end of each pass of evaluation.

    Args:
        window: The window of a rule with a lookback of ``LOOKBACK`` rows.
        judge: Returns a severity, or ``OK``.
        describe: Describes a finding.
    """
    trained = window.table(ModeKeys.TRAIN)
    for table in window.tables(ModeKeys.EVAL):
        info = window.model_info_at(int(table.steps[-1]))
        trees = None if info is None else info.trees
        keeps_best = trees is not None and trees.stops_by_validation
        for i, name in enumerate(table.names):
            if table.roles[i] != "loss":
                continue
            severities = np.full(len(table.steps) - table.start, UNKNOWN, np.int8)
            found: dict[int, Passes] = {}
            counterpart = trained_loss(window, table, name)
            for found_passes in _passes(table, trained, i, counterpart):
                passes = replace(found_passes, keeps_best=keeps_best)
                j = passes.column - table.start
                level = judge(passes)
                severities[j] = level
                if level > OK:
                    found[j] = passes

            def describe_found(j: int, found: dict[int, Passes] = found) -> Description:
                return describe(found[j])

            yield table.judge_one(name, severities, describe_found)


def trained_loss(window: Window, evaluated: Table, name: str) -> str:
    """Return the loss of training that a loss of evaluation is compared with.

    It has the same name, unless the model info pairs them, as it does for boosted
    trees.
    """
    info = window.model_info_at(int(evaluated.steps[-1]))
    return name if info is None else info.evaluates.get(name, name)


def _passes(
    table: Table, trained: Table | None, i: int, counterpart: str
) -> Iterator[Passes]:
    """Yield the passes up to each new step that completes one.

    Args:
        table: Steps of evaluation.
        trained: Steps of training.
        i: Row of the loss in the first.
        counterpart: Name of the loss in the second.
    """
    if trained is None or counterpart not in trained.names:
        return
    rows = np.flatnonzero(table.present[i])
    if not len(rows):
        return
    steps, loss = table.steps[rows], losses_of(table, i)[rows]
    begins = np.flatnonzero(np.diff(steps, prepend=steps[:1] - 2) > 1)
    sizes = np.diff(begins, append=len(rows))
    means = np.add.reduceat(loss, begins) / sizes
    train = _Training(trained, trained.names.index(counterpart), steps[begins])
    accuracy = _Accuracy(table, table.names[i])
    new = int(np.searchsorted(rows, table.start))
    for k in range(1, len(begins)):
        # A pass is complete once it is as long as the one before.
        at = int(begins[k] + sizes[k - 1]) - 1
        if at < new or at >= begins[k] + sizes[k]:
            continue
        # The lookback may cut off its first pass.
        first = int(np.searchsorted(begins, max(0, at + 1 - LOOKBACK)))
        if k - 1 < first:
            continue
        validation = means[first : k + 1].copy()
        validation[-1] = loss[begins[k] : at + 1].mean()
        now = int(steps[at])
        start, before = train.start(now), train.before(first, k + 1, now)
        known = np.isfinite(validation) & np.isfinite(before)
        if known[-1] and np.isfinite(start):
            latest = train.latest[first : k + 1]
            numbers = np.arange(first, k + 1)[known]
            ends = begins + sizes
            ends[k] = at + 1
            spans = [(int(begins[p]), int(ends[p])) for p in numbers]
            yield Passes(
                validation[known],
                before[known],
                latest[known],
                start,
                int(rows[at]),
                is_term=TOTAL in trained.names and counterpart != TOTAL,
                batches=tuple(loss[first:end] for first, end in spans),
                recognized=partial(accuracy.of, rows, spans),
            )


class _Accuracy:
    """How many samples a model classifies rightly in passes of evaluation.

    Args:
        table: Steps of evaluation.
        name: Name of the loss whose inputs are the predictions and the labels.
    """

    def __init__(self, table: Table, name: str) -> None:
        pairs = pairs_of(table, None, None)
        own = name.removesuffix("_output_0") + "_input_1"
        named = [pair for pair in pairs if table.names[pair.label] == own]
        chosen = named or (pairs if len(pairs) == 1 else [])
        self._batches = [
            PairBatches(table, pair) for pair in chosen if pair.prediction is not None
        ]

    def of(
        self, rows: NDArray[np.intp], spans: list[tuple[int, int]], k: int
    ) -> tuple[int, int]:
        """Return how many samples are right, and how many there are.

        Args:
            rows: Columns of the steps with a loss.
            spans: Where each pass begins and ends among them.
            k: The pass.
        """
        right = n = 0
        for batches in self._batches:
            first, end = spans[k]
            for column in np.intersect1d(batches.columns, rows[first:end]).tolist():
                batch = batches[column]
                if batch is not None and batch.predicted is not None:
                    right += int((batch.labels == batch.predicted).sum())
                    n += len(batch.labels)
        return right, n


class _Training:
    """The loss of training before each pass of evaluation.

    Args:
        table: Steps of training.
        i: Row of the loss.
        begins: Steps at which passes begin.

    Attributes:
        latest: The last loss before each pass; NaN: there is none.
    """

    def __init__(self, table: Table, i: int, begins: NDArray[np.int64]) -> None:
        rows = np.flatnonzero(table.known[i])
        self._steps, self._loss = table.steps[rows], losses_of(table, i)[rows]
        self._is_first = table.ordinal[i, rows] <= N_START
        self._ends = np.searchsorted(self._steps, begins)
        self.latest = np.concatenate([[np.nan], self._loss])[self._ends]
        self._whole = np.array(
            [median(self._loss[max(0, end - N_TRAIN) : end]) for end in self._ends]
        )

    def start(self, now: int) -> float:
        """Return the loss at which training began, from steps before *now* only."""
        return float(median(self._loss[self._is_first & (self._steps < now)]))

    def before(self, first: int, last: int, now: int) -> Floats:
        """Return losses before these passes as of *now*; NaN: not in the table."""
        oldest = max(0, int(np.searchsorted(self._steps, now)) - LOOKBACK)
        ends = self._ends[first:last]
        result = self._whole[first:last].copy()
        result[ends - FEW_TRAIN < oldest] = np.nan
        # The lookback cuts off the stretches of some passes.
        for k in np.flatnonzero(np.isfinite(result) & (ends - N_TRAIN < oldest)):
            result[k] = median(self._loss[oldest : ends[k]])
        return result
