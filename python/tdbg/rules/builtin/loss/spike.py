"""LossSpike: losses that jump up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tdbg.config.kinds import Kind
from tdbg.config.needs import Needs
from tdbg.config.quantities import number
from tdbg.modes import TRAINING
from tdbg.rules.builtin.loss.loss_series import LossRule, losses_of
from tdbg.rules.builtin.loss.moving_goals import need_not_fall
from tdbg.rules.builtin.weights.zero_learning_rate import RATE
from tdbg.rules.columns import (
    kind_of,
    median,
    median_and_deviation,
    streak_of_known,
)
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Bools,
    Description,
    Evaluation,
    Floats,
    Severities,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Evidence, Severity, Stage

__all__ = ["LossSpike"]


# Rows of a loss up to a jump in which classes that had not come before explain it:
# labels are recorded at every fifth step.
NEW_FOR = 10
# Rows whose median is the first loss.
N_START = 10
# Losses of 1 are large and of 100 absurd, whatever the model is.
_ENTROPIES = {
    Kind.CROSS_ENTROPY,
    Kind.CROSS_ENTROPY_OF_PROBABILITIES,
    Kind.BCE_WITH_LOGITS,
    Kind.BCE,
    Kind.NLL,
}
# The program searches for a learning rate if the rate is RANGE times the first one,
# was EARLY times the first one LATEST rows ago, and has since grown faster than the
# square of the steps: a warm-up is linear.
RANGE = 100.0
EARLY = 10.0
LATEST = 25
POWER = 2.0
OF_SEARCH = (
    "Nothing, if this is a search for the learning rate (a range test). The rate rose "
    "from {} to {}; use a tenth of that, or less."
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpike(LossRule):
    """Report losses that jump far above their recent level.

    The level is the median of the last steps.  Before there are enough of them, a
    cross-entropy has exploded that is far above all losses before.

    The reference for a warning is the beginning: a loss above its first ones is that of
    a model that does worse than one that knows nothing.  Below, the finding is an info:
    new data, a new stage or a restart of the learning rate also make a loss jump.  So
    it is where batches have classes that none before had, and where the learning rate
    grows faster than in a warm-up: a search for the highest rate ends that way.

    Args:
        num_steps: Number of previous recorded steps that make up the level.
        deviations: Least distance above the level, in robust standard deviations
            (1.4826 times the median absolute deviation).
        of_way: Least distance, as a share of the fall from the first loss to the level.
        of_level: Least distance, as a share of the level.
        of_tails: Least distance at the last of the ``patience`` steps, in standard
            deviations of the previous steps, which single high losses widen.
        patience: Consecutive recorded steps at which this must hold.
        at_once: One step is enough if the loss is this many times the highest previous
            and first losses.
        exploded: Within the first ``num_steps`` recorded steps, a cross-entropy has
            exploded if it is this many times the highest loss before, or 1 if that is
            larger.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)
    stage = Stage.LEARNING

    num_steps: int = 50
    deviations: float = 8.0
    of_way: float = 0.5
    of_level: float = 0.5
    of_tails: float = 5.0
    patience: int = 2
    at_once: float = 5.0
    exploded: float = 100.0

    def __post_init__(self) -> None:
        # With fewer, the first verdicts would not know the first loss.
        check_number(self, "num_steps", least=N_START, whole=True)
        check_number(self, "deviations", above=0.0)
        check_number(self, "of_way", least=0.0)
        check_number(self, "of_level", least=0.0)
        check_number(self, "of_tails", least=0.0)
        check_number(self, "at_once", above=1.0)
        check_number(self, "exploded", above=1.0)
        check_number(self, "patience", least=1, most=self.num_steps // 2, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of losses, and learning rates."""
        return tuple(
            Needs(collections=frozenset({each})) for each in ("losses", "scalars")
        )

    def selects(self, tensor: TensorInfo) -> bool:
        """Select losses, labels, and learning rates."""
        return LossRule.selects(self, tensor) or RATE.match(tensor.name) is not None

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return f"a loss at more than {self.num_steps:,} recorded steps of training"

    @property
    def lookback(self) -> int:
        """The rows before each of those that ``patience`` needs."""
        return self.num_steps + self.patience

    @property
    def head_rows(self) -> int:
        """The first rows, at which the loss began."""
        return N_START

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each loss of training."""
        for table in window.tables(*TRAINING):
            for i, role in enumerate(table.roles):
                if role == "loss":
                    yield self._judge(window, table, i)
                    yield self._judge_beginning(window, table, i)

    def _judge(self, window: Window, table: Table, i: int) -> Evaluation:
        rows = np.flatnonzero(table.known[i])
        # NaN is unknown, as is every comparison with it.
        loss = losses_of(table, i)[rows]
        first = loss[table.ordinal[i, rows] <= N_START]
        start = float(median(first))
        levels = self._levels(loss, first, start)
        high = loss - levels.level > levels.limit
        severities = np.full(len(table.steps), UNKNOWN, dtype=np.int8)
        # A high loss that has not lasted, or only matches single losses before, is
        # neither a finding nor OK.
        is_unknown = high | np.isnan(loss - levels.level)
        severities[rows] = np.where(is_unknown, UNKNOWN, OK)
        jumps = streak_of_known(high, np.ones_like(high)) >= self.patience
        jumps &= loss - levels.level > levels.tails
        jumps |= high & (levels.highest > 0) & (loss > self.at_once * levels.highest)
        is_worse = loss > np.fmax.reduce(first, initial=-np.inf)
        severities[rows[jumps]] = np.where(
            is_worse[jumps], Severity.WARNING, Severity.INFO
        )
        among = np.flatnonzero(jumps)
        is_new = _have_new_classes(table, i, rows, among, self.num_steps)
        severities[rows[is_new]] = Severity.INFO
        found = np.flatnonzero(severities > OK)
        severities[found[need_not_fall(window, table, i, self.num_steps, found)]] = (
            UNKNOWN
        )
        searched = _pardon_searches(table, severities)

        def describe(j: int) -> Description:
            k = int(np.searchsorted(rows, j + table.start))
            level = float(levels.level[k])
            limit = float(np.fmax(levels.limit[k], levels.tails[k]))
            return Description(
                message=(
                    f"The loss has jumped from {number(level, 4)}, its median over the "
                    f"{self.num_steps:,} recorded steps before, to "
                    f"{number(loss[k], 4)}. It started at {number(start, 4)}."
                ),
                value=float(loss[k] - level),
                threshold=limit,
                evidence=Evidence("mean", level + limit),
                advice=searched.get(
                    j + table.start,
                    _JUMPED
                    if severities[j + table.start] == Severity.WARNING
                    else _MAYBE_MEANT + _JUMPED,
                ),
            )

        return table.judge_one(table.names[i], severities[table.start :], describe)

    def _levels(self, loss: Floats, first: Floats, start: float) -> _Levels:
        """Work out the level before each row, and what would be a jump from it.

        Args:
            loss: The loss at the known rows.
            first: The first of its values in the training.
            start: Their median.
        """
        n = self.num_steps
        levels = _Levels(*(np.full(len(loss), np.nan) for _ in range(4)))
        if len(loss) <= n:
            return levels
        before = sliding_window_view(loss, n)[:-1]
        middle, deviation = median_and_deviation(before)
        levels.level[n:] = middle
        levels.highest[n:] = np.maximum(before.max(axis=1), first.max(initial=0.0))
        # Statistics of the rows before the first one that `patience` needs.
        wide = self.of_tails * before.std(axis=1)
        late = min(self.patience - 1, len(wide))
        levels.tails[n + late :] = wide[: len(wide) - late]
        levels.limit[n:] = np.maximum.reduce(
            (
                self.deviations * deviation,
                self.of_way * np.maximum(start - middle, 0.0),
                self.of_level * np.abs(middle),
            )
        )
        return levels

    def _judge_beginning(self, window: Window, table: Table, i: int) -> Evaluation:
        """Judge a cross-entropy, whose scale is known, before there is a level."""
        severities = np.full(len(table.steps), UNKNOWN, dtype=np.int8)
        info = window.model_info_at(int(table.steps[-1]))
        rows = np.flatnonzero(table.known[i] & (table.ordinal[i] <= self.num_steps))
        loss = losses_of(table, i)[rows]
        highest = np.maximum.accumulate(np.fmax(loss, 1.0))
        if kind_of(info, table.names[i]) in _ENTROPIES and len(rows) > 1:
            is_high = loss[1:] > self.exploded * highest[:-1]
            severities[rows[1:][is_high]] = Severity.WARNING
        searched = _pardon_searches(table, severities)

        def describe(j: int) -> Description:
            k = int(np.searchsorted(rows, j + table.start))
            limit = self.exploded * float(highest[k - 1])
            return Description(
                message=(
                    f"The loss has exploded: it is {number(loss[k], 4)}, and was at "
                    f"most {number(np.nanmax(loss[:k]), 4)} before."
                ),
                value=float(loss[k]),
                threshold=limit,
                evidence=Evidence("mean", limit),
                advice=searched.get(
                    j + table.start,
                    lambda words: (
                        f"Lower the learning rate, warm it up, or use {words.clipping}."
                    ),
                ),
            )

        return table.judge_one(table.names[i], severities[table.start :], describe)


_JUMPED = (
    "Look at the batches of these steps. Go back to an earlier checkpoint and skip "
    "them, clip gradients, or lower the learning rate or warm it up for longer. With "
    "Adam, lower beta2 (to 0.95) or raise epsilon."
)
_MAYBE_MEANT = (
    "If a new stage begins here (other data, new classes, a part that joins in, a "
    "restart of the learning rate), do nothing. Otherwise: "
)


def _have_new_classes(
    table: Table, loss: int, rows: NDArray[np.intp], among: NDArray[np.intp], n: int
) -> Bools:
    """Find rows of a loss with labels beyond the range of those before.

    Args:
        table: Holds the loss and its labels.
        loss: Row of the loss in it.
        rows: The columns of its known rows.
        among: Which of these to look at, which are few.
        n: How many rows before them count, besides the first ones.
    """
    result = np.zeros(len(rows), dtype=bool)
    name = table.names[loss].removesuffix("_output_0") + "_input_1"
    if name not in table.names or "int" not in table.dtypes[table.names.index(name)]:
        return result
    label = table.names.index(name)
    known = table.known[label, rows]
    highest = np.where(known, table["max"][label, rows], -np.inf)
    lowest = np.where(known, table["min"][label, rows], np.inf)
    is_first = table.ordinal[loss, rows] <= N_START
    for k in among.tolist():
        border = max(0, k + 1 - NEW_FOR)
        recent = np.flatnonzero(known[border : k + 1]) + border
        earlier = np.arange(max(0, k - n), border)
        earlier = np.union1d(np.flatnonzero(is_first[:border]), earlier)
        earlier = earlier[known[earlier]]
        if len(recent) and len(earlier):
            # The latest alone: of many classes, a few rows may always have a new one.
            last = recent[-1]
            result[k] = highest[last] > highest[earlier].max()
            result[k] |= lowest[last] < lowest[earlier].min()
    return result


@dataclass(frozen=True, slots=True)
class _Levels:
    """What is known at each row of a loss from the rows before; NaN: too few.

    Attributes:
        level: Their median.
        limit: The least distance above it that is high.
        tails: The least distance at which a loss that stays high has jumped.
        highest: Their highest loss, or the highest of the first ones.
    """

    level: Floats
    limit: Floats
    tails: Floats
    highest: Floats


def _pardon_searches(table: Table, severities: Severities) -> dict[int, str]:
    """Turn findings in a range test into infos; return their advice, by column."""
    advice: dict[int, str] = {}
    for j in np.flatnonzero(severities > OK).tolist():
        rates = _searched_from(table, j)
        if rates is not None:
            severities[j] = Severity.INFO
            advice[j] = OF_SEARCH.format(*(number(rate, 2) for rate in rates))
    return advice


def _searched_from(table: Table, j: int) -> tuple[float, float] | None:
    """Return the first learning rate and the one at a column, if this is a range test.

    A range test, such as fastai's or Lightning's, multiplies the rate at each step,
    over decades.  None: this is none.
    """
    for i, name in enumerate(table.names):
        if not RATE.match(name):
            continue
        rows = np.flatnonzero(table.known[i, : j + 1])
        if len(rows) < 3 or table.ordinal[i, rows[0]] != 1:
            continue
        rates, steps = table["mean"][i, rows], table.steps[rows]
        middle = max(1, len(rows) - 1 - LATEST)
        share = (steps[middle] - steps[0]) / (steps[-1] - steps[0])
        first, then, now = (float(rates[k]) for k in (0, middle, -1))
        rises = bool((np.diff(rates) >= 0).all())
        is_long = now > RANGE * first > 0 and then > EARLY * first
        if rises and is_long and then < share**POWER * now:
            return first, now
    return None
