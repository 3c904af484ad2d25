"""WeightUpdateRatio: updates of weights that are very small or very large."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs, with_beginning
from tdbg.modes import TRAINING
from tdbg.rules.columns import (
    UPDATE,
    first_of_columns,
    is_matrix,
    join_names,
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

__all__ = ["WeightUpdateRatio"]


# Steps for which a growing ratio, as in a warm-up, must be too small: as
# many as 5 rows take at the usual interval.
SLOW_FOR = 40
GROWTH = 1.5
# The usual ratio, by Karpathy's rule of thumb; and the largest that works.
TYPICAL = 1e-3
BEARABLE = 1e-2
# Rows of the beginning, at which updates that replace most weights are an error: with
# momentum or a warm-up the second and third update are larger than the first.
FIRST_ROWS = 3
# Without model info: scales of normalizations, by name.
NORMALIZATION = re.compile(r"(^|[._])(bn|ln|gn|norm)\w*\.weight$|norm", re.IGNORECASE)


# First rows at which updates must be slow.
SLOW_ROWS = 30


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdateRatio(Rule):
    """Report updates that are very small or very large beside their weights.

    The ratio is l2(update) / l2(weight), of weights with several units.  About 1e-3
    is usual.  At the beginning, updates that are too large for most weights are an
    error: what follows is no training of the model that was initialized.

    Args:
        large_threshold: A ratio above this is too large.
        small_threshold: A ratio below this is too small, if that of half of the
            weights is, or if the others' is ``relative`` times larger.
        relative: How far a single weight must be below the median of all.
        slow_threshold: So is one below this, if that of half of the weights is from the
            first step on, and does not grow.
        patience: Recorded steps in a row at which it must be too small.
        until: Only within so many recorded steps from the start is a small ratio of
            all weights reported: later a schedule may have ended.
        min_weight: Weights with a smaller root mean square are close to zero on
            purpose, and may be changed by more than they are.
        min_scale: And so are those with one below this share of 1 / sqrt(fan-in),
            about which initializations draw.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.WARNING, Severity.ERROR)
    stage = Stage.NUMBERS

    large_threshold: float = 1.0
    small_threshold: float = 1e-6
    slow_threshold: float = 1e-5
    relative: float = 1e-3
    patience: int = 5
    until: int = 100
    min_weight: float = 1e-3
    min_scale: float = 0.1

    def __post_init__(self) -> None:
        check_number(self, "small_threshold", above=0.0)
        check_number(self, "large_threshold", above=self.small_threshold)
        check_number(self, "slow_threshold", above=0.0)
        check_number(self, "relative", above=0.0, most=1.0)
        check_number(self, "patience", least=1, whole=True)
        check_number(self, "until", least=self.patience, whole=True)
        check_number(self, "min_weight", least=0.0)
        check_number(self, "min_scale", least=0.0)

    @property
    def first_verdict(self) -> str:
        """What its first verdict needs."""
        return "updates other than zero, of weights with several units"

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of weights and of their updates."""
        return with_beginning(Needs(collections=frozenset({"weights", "updates"})))

    @property
    def lookback(self) -> int:
        """The rows that ``patience`` needs."""
        return max(rows_of_lasting(self.patience, SLOW_FOR), self.until)

    @property
    def head_rows(self) -> int:
        """The initial weights."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select weights and updates."""
        return tensor.role in {"weight", "update"}

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
                yield self._judge(weights, table.select(updates), judged, least)

    def _least(self, window: Window, table: Table) -> Floats:
        """The root mean square below which a weight is near zero on purpose."""
        result = np.full((len(table.names), len(table.steps)), self.min_weight)
        for model_info, steps in model_info_of_steps(window, table):
            for i, name in enumerate(table.names):
                parameter = parameter_of(model_info, name)
                if parameter is not None and is_matrix(parameter):
                    fan_in = math.prod(parameter.shape[1:])
                    least = self.min_scale / np.sqrt(fan_in)
                    result[i, steps] = max(self.min_weight, least)
        return result

    def _judge(
        self, weights: Table, updates: Table, judged: Bools, least: Floats
    ) -> Evaluation:
        ratio, root = _ratios(weights, updates, judged)
        known = ~np.isnan(ratio)
        middle = median(ratio, axis=0)
        large = known & (ratio > self.large_threshold) & (root >= least)
        small = known & (ratio < self.small_threshold)
        of_all = (middle < self.small_threshold)[np.newaxis, :]
        of_all = of_all & (weights.ordinal <= self.until)
        small &= of_all | (ratio < self.relative * middle[np.newaxis, :])
        bad = large | self._lasts(weights, ratio, small, known)
        # What is slow must have been so from the beginning: what has learned is, too.
        slow = known & (middle < self.slow_threshold)[np.newaxis, :]
        streak = weights.streak(slow, known)
        is_first = (streak >= weights.ordinal) & (weights.ordinal <= self.until)
        bad |= self._lasts(weights, ratio, slow, known, SLOW_ROWS) & is_first
        # A weight that was replaced is not sound again once its updates, beside what
        # it has become, are small.
        grown = weights["l2"] > (1.0 + self.large_threshold) * _initial(weights)
        # Slow weights that are not reported are nothing to end a finding.
        is_ok = known & ~small & (ratio >= self.slow_threshold) & ~large & ~grown
        severities = np.where(is_ok, OK, UNKNOWN)
        first = first_of_columns(bad)
        severities[first] = Severity.WARNING
        # Of a single weight the first update may be what a good solution asks for.
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
            return self._too_small(
                found, n_judged, float(ratio[i, j]), float(middle[j])
            )

        return weights.judge(severities, describe, severities != UNKNOWN)

    def _lasts(
        self,
        weights: Table,
        ratio: Floats,
        small: Bools,
        known: Bools,
        patience: int | None = None,
    ) -> Bools:
        """Where ratios were too small for long enough; growing ones get longer."""
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
                f"the update is {ratio:.2g} times the weight it changes, more than "
                f"{self.large_threshold:g}: what the weight was before is lost; so it "
                f"is for {len(found)} of {n_judged} weights: {join_names(found)}"
            ),
            value=ratio,
            threshold=self.large_threshold,
            advice=(
                f"lower the learning rate, by {ratio / BEARABLE:.0g} times or so (a "
                f"ratio of about {TYPICAL:g} is usual, up to 0.1 at the first steps "
                "of Adam), or warm it up, and clip gradients"
            ),
        )

    def _too_small(
        self, found: list[str], n_judged: int, ratio: float, middle: float
    ) -> Description:
        limit = self.small_threshold
        patience = self.patience
        if ratio >= limit:
            limit, patience = self.slow_threshold, SLOW_ROWS
        if middle < self.slow_threshold:
            advice = (
                f"raise the learning rate, up to {TYPICAL / middle:.0g} times (a ratio "
                f"of about {TYPICAL:g} is usual): at this rate a weight needs "
                f"{0.01 / middle:.0g} steps in one direction to change by 1 %"
            )
        else:
            advice = (
                f"others change by {middle:.1g} of themselves: see that its group has "
                "a learning rate like theirs, and how large its gradient is"
            )
        return Description(
            message=(
                f"the update is {ratio:.1e} of the weight it changes, less than "
                f"{limit:g}, at {patience} recorded steps in a row; so it is for "
                f"{len(found)} of {n_judged} weights: {join_names(found)}"
            ),
            value=ratio,
            threshold=limit,
            advice=advice,
            stage=Stage.STANDSTILL,
        )


def _initial(weights: Table) -> Floats:
    """Names x 1: the l2 norm at the first row; NaN if it is zero, or is not here."""
    first = np.where(weights.ordinal == 1, weights["l2"], -1.0).max(axis=1)
    return np.where(first > 0.0, first, np.nan)[:, np.newaxis]


def _ratios(weights: Table, updates: Table, judged: Bools) -> tuple[Floats, Floats]:
    """Names x steps: l2(update) / l2(weight), and the weights' root mean square.

    NaN where either is not known, and where there is no update at all, which is for
    UnchangedTensor.
    """
    known = judged & weights.known & updates.known
    known &= ~weights.skipped[np.newaxis, :]
    known &= (weights.not_finite == 0) & (updates.not_finite == 0)
    size = np.where(known, weights["l2"], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = updates["l2"] / size
        root = size / np.sqrt(weights["count"])
    return np.where(np.isfinite(ratio) & (ratio > 0), ratio, np.nan), root


def _judged(window: Window, table: Table) -> Bools:
    """Where a weight has several units with several weights each.

    Only some rows of an embedding are used in a step, so it is left out.
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
                    result[i, steps] = is_matrix(parameter) and kind != Kind.EMBEDDING
    return result
