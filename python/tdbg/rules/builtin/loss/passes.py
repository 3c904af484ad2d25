"""PassesRule, base class of rules that compare training with passes of evaluation.

Thread safety: pure functions and immutable values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import percent
from tdbg.modes import ModeKeys
from tdbg.rules.builtin.data.classifier_batches import PairBatches, pairs_of
from tdbg.rules.builtin.loss.constant_answer import constant_answer
from tdbg.rules.builtin.loss.loss_series import (
    TOTAL,
    LossRule,
    losses_of,
    trained_loss,
)
from tdbg.rules.columns import MAD_TO_DEVIATION, median
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
from tdbg.run.observations import Fault

__all__ = ["LOOKBACK", "Passes", "PassesRule", "judge_passes"]

_KEPT = frozenset({Fault.BEST_KEPT, Fault.WEIGHTS_READ})

Ints = NDArray[np.int64]

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
        recognized: Returns which samples of a pass, by its place in ``validation``, the
            model classified rightly, and their classes; none: not known.
        ends: The last step of each pass.
        keeps_best: Whether the program keeps the best model: by early stopping on other
            data than those of training, by a callback, or by itself.
        constant: The loss of the best constant answer; NaN: not known.
        counts_mistakes: Whether the loss is the share of samples that the model
            classifies wrongly.
    """

    validation: Floats
    training: Floats
    latest: Floats
    start: float
    column: int
    is_term: bool
    batches: tuple[Floats, ...]
    recognized: Callable[[int], tuple[Bools, Ints]]
    ends: Ints
    keeps_best: bool = False
    constant: float = math.nan
    counts_mistakes: bool = False

    @property
    def nothing_learned(self) -> float:
        """The loss of a model that has learned nothing.

        The highest of the loss of a constant answer, the first losses of training, and
        the first of validation.
        """
        known = (self.constant, self.start, float(self.validation[0]))
        return float(np.nanmax(known))

    def lost(self, now: float) -> float:
        """Return the share of what the best pass had learned that a loss has lost."""
        low = float(self.validation.min())
        learned = self.nothing_learned - low
        return (now - low) / learned if learned > 0.0 else math.inf

    def is_worse(self, now: float, share: float) -> bool:
        """Return whether a loss that has surely risen means a model that is worse.

        Accuracy says so where it is known: the loss also rises as the model becomes too
        sure of its mistakes.  If not, the loss itself does, by the share of what the
        model had learned.
        """
        fewer = self.recognizes_fewer(len(self.validation) - 1)
        if fewer is None:
            return self.lost(now) > share
        return fewer or self.is_useless(now)

    def is_useless(self, now: float) -> bool:
        """Return whether a model with this loss is worse than one that learned nothing.

        It isn't if it makes fewer mistakes than at the best pass.
        """
        before, after = self.accuracies(len(self.validation) - 1)
        return now > self.nothing_learned and not after > before

    def keeps(self, read: Ints) -> bool:
        """Return whether the weights that the program keeps are those of a good pass.

        It has read the weights after that pass, and not after the next ones, of which
        the last may still be followed by it.

        Args:
            read: The steps after which the program has read its weights.
        """
        after = np.searchsorted(self.ends, read, side="right") - 1
        kept, last = int(after.max(initial=-1)), len(self.validation) - 1
        if not 0 <= kept < last - 1:
            return False
        worse = self.validation[[kept, last]] - self.validation.min()
        return bool(worse[0] <= KEPT * worse[1])

    def consequence(self) -> str:
        """Say what became of the accuracy since the best pass, if it is known."""
        before, now = self.accuracies(len(self.validation) - 1)
        if not (math.isfinite(before) and math.isfinite(now)):
            return ""
        return (
            f" Accuracy was {percent(100 * before)} around that best, and is "
            f"{percent(100 * now)} now."
        )

    def best(self, k: int) -> int:
        """Return the pass with the lowest loss up to pass *k*."""
        return int(np.argmin(self.validation[: k + 1]))

    def has_surely_risen(self, k: int) -> bool:
        """Return whether the loss of pass *k* is surely above that of the best pass.

        Surely: by three standard errors, of which the largest one counts: that of the
        jitter from pass to pass, that of the difference between the batches of both
        passes, and that of a share.
        """
        best = self.best(k)
        error = math.sqrt(2.0) * _jitter(self.validation[: k + 1])
        before, now = self.batches[best], self.batches[k]
        if len(before) == len(now) >= FEW_BATCHES:
            spread = float(np.std(now - before, ddof=1)) / math.sqrt(len(now))
            error = max(error, spread)
        if self.counts_mistakes:
            error = max(error, self._error_of_share(best, k))
        return bool(self.validation[k] - self.validation[best] > SURE * error)

    def _error_of_share(self, *passes: int) -> float:
        """Return the standard error of the difference of two shares of samples.

        One sample makes the smallest difference between any two passes.
        """
        apart = np.diff(np.unique(self.validation))
        one = float(apart[apart > EQUAL].min(initial=1.0))
        shares = self.validation[list(passes)]
        return math.sqrt(one * float((shares * (1.0 - shares)).sum()))

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
        before, now = self.accuracies(k)
        return now - before > MORE

    def recognizes_fewer(self, k: int) -> bool | None:
        """Return whether the model surely classifies worse than at the best pass.

        Surely: by more than two standard errors.  None: nobody knows.
        """
        before, now = self.accuracies(k)
        if not (math.isfinite(before) and math.isfinite(now)):
            return None
        ranges = self._compared(k)
        pairs = [[self.recognized(each) for each in passes] for passes in ranges]
        # Of each stretch one pass counts: its samples are the same in all of them.
        (right, labels), (later, others) = (max(one, key=_size) for one in pairs)
        if np.array_equal(labels, others):
            variance = float((right != later).mean()) / len(right)
        else:
            variance = before * (1.0 - before) / len(right)
            variance += now * (1.0 - now) / len(later)
        return before - now > max(MORE, FEWER * math.sqrt(variance))

    def accuracies(self, k: int) -> tuple[float, float]:
        """Return the accuracy around the best pass, and in the last; NaN: not known."""
        before, now = map(self._accuracy, self._compared(k))
        return before, now

    def _compared(self, k: int) -> tuple[range, range]:
        best = self.best(k)
        last = min(best + AROUND, k)
        now = range(max(best + 1, k - 2 * AROUND), k + 1)
        return range(max(0, best - AROUND), last + 1), now

    def _accuracy(self, passes: range) -> float:
        found = [self.recognized(k) for k in passes]
        n = sum(len(right) for right, _ in found)
        return sum(int(right.sum()) for right, _ in found) / n if n else math.nan


def _size(recognized: tuple[Bools, Ints]) -> int:
    return len(recognized[0])


# Standard errors by which a loss must have risen.
SURE = 3.0
# Deviations by which the last passes must be better than those before.
IMPROVED = 2.0
# Weights are kept of a good pass if its loss is above the best one by at most this
# share of the rise since.
KEPT = 0.5
# Shares that differ by less are equal, but for rounding.
EQUAL = 1e-6
# Metrics of trees that are the share of mistakes; XGBoost may add "@" and a threshold.
MISTAKES = frozenset({"error", "merror", "binary_error", "multi_error"})
# Batches of a pass that tell how much their losses differ.
FEW_BATCHES = 5
# A share of samples that must be classified rightly beyond that of the best pass, and
# in the last quarter of the passes beyond that of the quarter before; the passes on
# either side of the best one that count with it.
MORE = 0.01
STILL_MORE = 0.005
AROUND = 2
# Standard errors by which accuracy must have fallen.
FEWER = 2.0


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
        kept = window.observations(_KEPT)
        keeps_best |= any(each.fault is Fault.BEST_KEPT for each in kept)
        for i, name in enumerate(table.names):
            if table.roles[i] != "loss":
                continue
            severities = np.full(len(table.steps) - table.start, UNKNOWN, np.int8)
            found: dict[int, Passes] = {}
            counterpart = trained_loss(window, table, name)
            constant = math.nan
            for found_passes in _passes(table, trained, i, counterpart):
                if trained is not None and not math.isfinite(constant):
                    loss = trained.names.index(counterpart)
                    answer = constant_answer(trained, loss, info, found_passes.start)
                    constant = answer.constant
                now = int(table.steps[found_passes.column])
                read = [
                    each.step
                    for each in kept
                    if each.fault is Fault.WEIGHTS_READ and each.step <= now
                ]
                passes = replace(
                    found_passes,
                    keeps_best=keeps_best
                    or found_passes.keeps(np.array(read, np.int64)),
                    constant=constant,
                    counts_mistakes=trees is not None and _is_of_mistakes(name),
                )
                j = passes.column - table.start
                level = judge(passes)
                severities[j] = level
                if level > OK:
                    found[j] = passes

            def describe_found(j: int, found: dict[int, Passes] = found) -> Description:
                return describe(found[j])

            yield table.judge_one(name, severities, describe_found)


def _is_of_mistakes(name: str) -> bool:
    return name.rpartition("-")[2].partition("@")[0] in MISTAKES


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
                ends=steps[[end - 1 for _, end in spans]],
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
    ) -> tuple[Bools, Ints]:
        """Return which samples are right, and their classes.

        Args:
            rows: Columns of the steps with a loss.
            spans: Where each pass begins and ends among them.
            k: The pass.
        """
        right: list[Bools] = [np.zeros(0, bool)]
        labels: list[Ints] = [np.zeros(0, np.int64)]
        for batches in self._batches:
            first, end = spans[k]
            for column in np.intersect1d(batches.columns, rows[first:end]).tolist():
                batch = batches[column]
                if batch is not None and batch.predicted is not None:
                    right.append(batch.labels == batch.predicted)
                    labels.append(batch.labels)
        return np.concatenate(right), np.concatenate(labels)


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
