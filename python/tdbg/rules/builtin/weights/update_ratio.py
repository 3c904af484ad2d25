"""WeightUpdateRatio: updates that are very small or very large for their weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import affected, fold, number, plural, times
from tdbg.modes import TRAINING
from tdbg.rules.builtin.loss.loss_series import FIRST, stands_still
from tdbg.rules.builtin.loss.moving_goals import need_not_fall
from tdbg.rules.builtin.weights.update_sizes import UpdateSizes
from tdbg.rules.columns import (
    UPDATE,
    first_of_columns,
    is_matrix,
    median,
    model_info_of_steps,
    parameter_of,
)
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.table import min_span, streak_spans
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
    rows_of_lasting,
)
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo, ParameterFacts

__all__ = ["WeightUpdateRatio"]


# Steps for which a growing ratio, as in a warm-up, must be too small: the span of 5
# rows at the usual interval.
SLOW_FOR = 40
GROWTH = 1.5
# The usual ratio, by Karpathy's rule of thumb, and the largest that works.
TYPICAL = 1e-3
BEARABLE = 1e-2
# Where the median gradient is below this share of its weight, no usual rate of SGD
# makes updates as large as they should be: the gradients are too small, not the rate.
TINY_GRADIENT = 1e-4
# First rows, at which updates that replace most weights are an error: with momentum
# or a warm-up, the second and third update are larger than the first.
FIRST_ROWS = 3
# Names of scales of normalizations, for runs without model info.
NORMALIZATION = re.compile(r"(^|[._])(bn|ln|gn|norm)\w*\.weight$|norm", re.IGNORECASE)


# First rows at which updates must be slow, by themselves and together with the loss.
SLOW_ROWS = 30
STILL_ROWS = 50


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdateRatio(Rule):
    """Report updates that are very small or very large for their weights.

    The ratio is l2(update) / l2(weight), for weights with several units.  About 1e-3 is
    usual.  At the beginning, updates that are too large for most weights are an error:
    the training no longer starts from the initialization.

    Args:
        large_threshold: A ratio above this is too large.
        small_threshold: A ratio below this is too small if half of the weights are
            below it, or if the weight is far behind the others.
        relative: Share of the median of all weights below which a weight is far behind.
        slow_threshold: A ratio below this is also too small if half of the weights are
            below it from the first step on, and it does not grow.
        still_threshold: The limit, in the same way, if all weights are below it and no
            loss has fallen.
        patience: Consecutive recorded steps at which a ratio must be too small.
        until: Number of first recorded steps within which the rule reports a small
            ratio of all weights; later, a schedule may have ended.
        min_weight: Weights with a smaller root mean square are near zero on purpose,
            and an update may exceed them.
        min_scale: The share of 1 / sqrt(fan-in), the usual scale of initial weights,
            below which weights are also near zero on purpose.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING, Severity.ERROR)
    stage = Stage.NUMBERS

    large_threshold: float = 1.0
    small_threshold: float = 1e-6
    slow_threshold: float = 1e-5
    still_threshold: float = 1e-4
    relative: float = 1e-3
    patience: int = 5
    until: int = 100
    min_weight: float = 1e-3
    min_scale: float = 0.1

    def __post_init__(self) -> None:
        check_number(self, "small_threshold", above=0.0)
        check_number(self, "large_threshold", above=self.small_threshold)
        check_number(self, "slow_threshold", above=0.0)
        check_number(self, "still_threshold", least=self.slow_threshold)
        check_number(self, "relative", above=0.0, most=1.0)
        check_number(self, "patience", least=1, whole=True)
        check_number(self, "until", least=self.patience, whole=True)
        check_number(self, "min_weight", least=0.0)
        check_number(self, "min_scale", least=0.0)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return "updates other than zero, of weights with several units"

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of weights, of their gradients and updates, and of losses."""
        weights = Needs(collections=frozenset({"weights", "gradients", "updates"}))
        return *with_beginning(weights), Needs(collections=frozenset({"losses"}))

    @property
    def lookback(self) -> int:
        """The rows that ``patience`` needs."""
        return max(rows_of_lasting(self.patience, SLOW_FOR), self.until)

    @property
    def head_rows(self) -> int:
        """The initial weights, and the losses at which training began."""
        return FIRST

    def selects(self, tensor: TensorInfo) -> bool:
        """Select weights, gradients and updates, and losses with their targets."""
        return tensor.role in {"weight", "gradient", "update", "loss", "label"}

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each weight that has an update."""
        for table in window.tables(*TRAINING):
            index = {name: i for i, name in enumerate(table.names)}
            pairs = [
                (i, index[UPDATE + name])
                for name, i in index.items()
                if UPDATE + name in index
            ]
            if pairs:
                rows, updates = np.array(pairs, dtype=np.intp).T
                weights = table.select(rows)
                judged = _judged(window, weights)
                least = self._least(window, weights)
                yield self._judge(
                    weights, table.select(updates), judged, least, window, table
                )

    def _least(self, window: Window, table: Table) -> Floats:
        """Return the root mean square below which a weight is near zero on purpose."""
        result = np.full((len(table.names), len(table.steps)), self.min_weight)
        for model_info, steps in model_info_of_steps(window, table):
            for i, name in enumerate(table.names):
                parameter = parameter_of(model_info, name)
                if parameter is not None and is_matrix(parameter):
                    least = self.min_scale / np.sqrt(parameter.n_inputs)
                    result[i, steps] = max(self.min_weight, least)
        return result

    def _judge(
        self,
        weights: Table,
        updates: Table,
        judged: Bools,
        least: Floats,
        window: Window,
        table: Table,
    ) -> Evaluation:
        ratio, root = _ratios(weights, updates, judged & _have_gradients(table))
        known = ~np.isnan(ratio)
        middle = median(ratio, axis=0)
        large = known & (ratio > self.large_threshold) & (root >= least)
        small = known & (ratio < self.small_threshold)
        of_all = (middle < self.small_threshold)[np.newaxis, :]
        of_all = of_all & (weights.ordinal <= self.until)
        small &= of_all | (ratio < self.relative * middle[np.newaxis, :])
        bad = large | self._lasts(weights, ratio, small, known)
        # Slow weights count if they were slow from the start: trained ones are slow
        # too.
        slow = known & (ratio < self.slow_threshold)
        slow &= (middle < self.slow_threshold)[np.newaxis, :]
        streak = weights.streak(slow, known)
        is_first = (streak >= weights.ordinal) & (weights.ordinal <= self.until)
        bad |= self._lasts(weights, ratio, slow, known, SLOW_ROWS) & is_first
        # Updates exceed weights that are near zero on purpose.
        largest = np.where(known & (root >= least), ratio, 0.0).max(axis=0, initial=0.0)
        stands_still = self._stands_still(weights, largest, _Losses(window, table))
        still: Bools = known & stands_still[np.newaxis, :] & ~bad
        bad |= still
        # An overwritten weight has grown.  It does not recover when later updates are
        # small for its new size.
        grown = weights["l2"] > (1.0 + self.large_threshold) * _initial(weights)
        # Slow weights without a finding do not end one.
        is_ok = known & ~small & (ratio >= self.still_threshold) & ~large & ~grown
        severities = np.where(is_ok, OK, UNKNOWN)
        first = first_of_columns(bad)
        severities[first] = Severity.WARNING
        # A good solution may require a large first update of a single weight.
        n_large, n_known = large.sum(axis=0), known.sum(axis=0)
        most = (n_large > n_known / 2) & (n_large > 1)
        begins = large & (weights.ordinal <= FIRST_ROWS) & most[np.newaxis, :]
        severe = begins[first]
        severities[first[0][severe], first[1][severe]] = Severity.ERROR

        def describe(i: int, j: int) -> Description:
            found = [weights.names[k] for k in np.flatnonzero(bad[:, j])]
            n_judged = int(np.count_nonzero(known[:, j]))
            if large[i, j]:
                return self._too_large(found, n_judged, float(ratio[i, j]))
            if still[i, j]:
                return self._too_slow(found, n_judged, float(largest[j]))
            return self._too_small(
                found, n_judged, float(ratio[i, j]), middle[: j + 1], table, window
            )

        return weights.judge(severities, describe, severities != UNKNOWN)

    def _stands_still(self, weights: Table, largest: Floats, losses: _Losses) -> Bools:
        """Find the steps up to which all updates have been slow, and no loss fell.

        Args:
            weights: The weights.
            largest: Largest ratio of all weights at each step; 0: unknown.
            losses: The losses of the training.
        """
        result = np.zeros(len(largest), dtype=bool)
        rows = np.flatnonzero(largest)
        # The table has all rows so far, unless the beginning is over.
        is_early = np.asarray((weights.ordinal[:, rows] <= self.until).all(axis=0))
        for k in range(STILL_ROWS - 1, len(rows)):
            ratios = largest[rows[: k + 1]]
            if not is_early[k] or ratios.max() >= self.still_threshold:
                break
            now = np.median(ratios[-FIRST:])
            halfway = np.median(ratios[k // 2 - FIRST // 2 : k // 2 + FIRST // 2])
            # A warm-up is still under way.
            if now <= GROWTH * halfway:
                result[rows[k]] = losses.stand_still(int(rows[k]))
        return result

    def _lasts(
        self,
        weights: Table,
        ratio: Floats,
        small: Bools,
        known: Bools,
        patience: int | None = None,
    ) -> Bools:
        """Find where ratios were too small for long enough; growing ones get longer."""
        streak = weights.streak(small, known)
        began = np.where(streak == 1, np.arange(len(weights.steps)), 0)
        first = np.maximum.accumulate(began, axis=1)
        grows = ratio > GROWTH * np.take_along_axis(ratio, first, axis=1)
        patience = patience or self.patience
        long, usual = min_span(patience, SLOW_FOR), min_span(patience)
        lasted = streak_spans(weights.steps, streak) >= np.where(grows, long, usual)
        return np.asarray(lasted & (streak >= patience))

    def _too_large(self, found: list[str], n_judged: int, ratio: float) -> Description:
        return Description(
            message=(
                f"The update is {times(ratio)} as large as the weight itself, so "
                "training overwrites the weight. "
                f"{affected(len(found), n_judged, 'weight', found)}"
            ),
            value=ratio,
            threshold=self.large_threshold,
            advice=(
                f"Lower the learning rate about {fold(ratio / BEARABLE)}. {_ESTIMATE} "
                "If you need a high rate, warm it up and clip gradients. An update is "
                "usually about 0.1% of its weight, and up to 10% in the first steps of "
                "Adam."
            ),
        )

    def _too_small(
        self,
        found: list[str],
        n_judged: int,
        ratio: float,
        middles: Floats,
        table: Table,
        window: Window,
    ) -> Description:
        middle, largest = float(middles[-1]), int(np.argmax(np.nan_to_num(middles)))
        # The rate was fine once, so the reason for its fall is the cause, not the
        # setup.
        fell = middle < self.slow_threshold <= middles[largest]
        # If the weight is far behind others that are fast enough, the rate is fine.
        is_alone = ratio < self.relative * middle and middle >= self.small_threshold
        is_slow = middle < self.slow_threshold and not fell and not is_alone
        sizes = UpdateSizes.at(table, len(middles) - 1)
        is_tiny = sizes.follow_gradients and sizes.middle_gradient < TINY_GRADIENT
        is_rate = is_slow and not is_tiny
        limit = self.small_threshold
        patience = self.patience
        if ratio >= limit:
            limit, patience = self.slow_threshold, SLOW_ROWS
        if fell:
            advice = (
                f"At step {window.training_step(int(table.steps[largest])):,}, the "
                "median update was "
                f"{_share(float(middles[largest]))} of its weight; now it is "
                f"{_share(middle)}. Check whether the learning rate schedule ends too "
                "soon (one in epochs that you step in each batch), and whether "
                "gradients have vanished."
            )
        elif is_rate:
            advice = _raise(middle)
        elif is_slow:
            advice = (
                f"The median gradient is only {_share(sizes.middle_gradient)} of its "
                "weight, so the learning rate is not the cause. Find out why gradients "
                "are so small: look for saturated or dead units, for initial weights "
                "that are too small, and for a loss that is divided by a large number."
            )
        else:
            advice = (
                f"The median update is {_share(middle)} of its weight. Check that the "
                "group of this weight has the same learning rate as the others, and "
                "how large its gradient is."
            )
        return Description(
            message=(
                f"The update is too small: {_share(ratio)} of the weight, below the "
                f"limit of {_share(limit)}, at {plural(patience, 'recorded step')} in "
                f"a row. {affected(len(found), n_judged, 'weight', found)}"
            ),
            value=ratio,
            threshold=limit,
            advice=advice,
            stage=Stage.RATE if is_rate else Stage.STANDSTILL,
        )

    def _too_slow(self, found: list[str], n_judged: int, largest: float) -> Description:
        return Description(
            message=(
                "The updates are too small, and no loss has fallen: since the "
                f"beginning, no update has exceeded {_share(largest)} of its weight "
                f"(limit: {_share(self.still_threshold)}). "
                f"{affected(len(found), n_judged, 'weight', found)}"
            ),
            value=largest,
            threshold=self.still_threshold,
            advice=_raise(largest),
            stage=Stage.RATE,
        )


class _Losses:
    """Judge of whether all losses that should fall stand still.

    Args:
        window: Has the model info.
        table: Has the losses.
    """

    def __init__(self, window: Window, table: Table) -> None:
        self._window, self._table = window, table
        self._rows = [i for i, role in enumerate(table.roles) if role == "loss"]

    def stand_still(self, j: int) -> bool:
        """Return whether no loss has fallen by column *j*; False without losses."""
        table, verdicts = self._table, list[bool]()
        for i in self._rows:
            known = np.flatnonzero(table.known[i, : j + 1])
            if len(known):
                at = known[-1:]
                if not need_not_fall(self._window, table, i, STILL_ROWS, at)[0]:
                    verdicts.append(stands_still(table, i, int(at[0]), STILL_ROWS))
        return bool(verdicts) and all(verdicts)


# Healthy first updates lie within a factor of ten of the usual one.
_ESTIMATE = "This is an estimate: also try 10 times more and 10 times less."


def _raise(ratio: float) -> str:
    steps = times(0.01 / ratio).removesuffix(" times")
    return (
        f"Raise the learning rate about {fold(TYPICAL / ratio)}. {_ESTIMATE} An update "
        "is usually about 0.1% of its weight. At this rate, a weight needs about "
        f"{steps} steps in one direction to change by 1%."
    )


def _share(ratio: float) -> str:
    return f"{number(100.0 * ratio, 2)}%"


def _initial(weights: Table) -> Floats:
    """Return, names x 1, the L2 norm at the first row; NaN if zero or unknown."""
    first = np.where(weights.ordinal == 1, weights["l2"], -1.0).max(axis=1)
    return np.where(first > 0.0, first, np.nan)[:, np.newaxis]


def _ratios(weights: Table, updates: Table, judged: Bools) -> tuple[Floats, Floats]:
    """Return, names x steps, l2(update) / l2(weight) and the weights' root mean square.

    NaN where either is unknown, and where the update is zero: UnchangedTensor reports
    that.
    """
    known = judged & weights.known & updates.known
    known &= ~weights.skipped[np.newaxis, :]
    known &= (weights.not_finite == 0) & (updates.not_finite == 0)
    size = np.where(known, weights["l2"], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = updates["l2"] / size
        root = size / np.sqrt(weights["count"])
    return np.where(np.isfinite(ratio) & (ratio > 0), ratio, np.nan), root


def _have_gradients(table: Table) -> Bools:
    """Find the steps by which any gradient was more than zero, or none is captured.

    Weight decay alone makes small updates, whatever the learning rate is.
    """
    rows = [i for i, role in enumerate(table.roles) if role == "gradient"]
    if not table.present[rows].any():
        return np.ones(len(table.steps), dtype=bool)
    moves = (table.present[rows] & ~(table["l2"][rows] == 0.0)).any(axis=0)
    have: Bools = np.logical_or.accumulate(moves)
    return have


def _judged(window: Window, table: Table) -> Bools:
    """Find weights that have several units with several weights each.

    The result leaves out embeddings, since a step uses only some of their rows, and
    parameters of LBFGS, which makes about twenty updates in a step and finds their
    lengths by itself.
    """
    result = np.zeros((len(table.names), len(table.steps)), dtype=bool)
    for model_info, steps in model_info_of_steps(window, table):
        for i, name in enumerate(table.names):
            if model_info is None:
                result[i, steps] = NORMALIZATION.search(name) is None
            else:
                parameter = parameter_of(model_info, name)
                if parameter is not None:
                    kind = model_info.kind_of_leaf(parameter.module)
                    result[i, steps] = (
                        is_matrix(parameter)
                        and kind != Kind.EMBEDDING
                        and not _is_minimized(model_info, parameter)
                    )
    return result


def _is_minimized(model_info: ModelInfo, parameter: ParameterFacts) -> bool:
    """Return whether its optimizer finds a minimum in each step."""
    i = parameter.optimizer
    names = model_info.optimizers
    return i is not None and i < len(names) and "LBFGS" in names[i]
