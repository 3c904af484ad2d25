"""TensorVariance: tensors whose elements are all alike, or vary too much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.kinds import CLASSIFICATIONS, REGRESSIONS, Kind
from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import exact, number, percent, plural
from tdbg.modes import TRAINING
from tdbg.rules.builtin.tensors.all_zero import PARTS
from tdbg.rules.builtin.tensors.tensor_rule import INPUTS, LastingRule
from tdbg.rules.columns import kind_of
from tdbg.rules.registry import register
from tdbg.rules.rule import built_in, check_number
from tdbg.rules.table import min_span, nothing_to_describe
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Bools,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
    rows_of_lasting,
)
from tdbg.run.findings import Evidence, Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["TensorVariance", "judge_collapse", "spread_of"]


# Least number of samples to judge by, and the most, to save time.
FEW_SAMPLES = 8
MANY_SAMPLES = 64
# Most numbers of a sample to use: a map of scores has millions.
MANY_NUMBERS = 4096
# The first batch had at least this many times the spread of a collapsed one.
FALL = 10.0
# Steps for which supervised predictions must be alike: to answer with the mean of the
# targets is the first thing that a regression learns.
ALIKE_FOR = 40
# A smaller spread is a rounding error of float32: the samples have no influence.
ROUNDING = 1e-6
SUPERVISED = (
    "In a supervised model, look for dead and saturated units, and lower the learning "
    "rate."
)
SELF_SUPERVISED = (
    "In self-supervised learning, stop the gradient of one side, or add a predictor, "
    "negatives, or a variance term."
)
ALIKE_FROM_THE_START = (
    "Predictions were alike from the start: look for a mean or softmax over the batch "
    "instead of the features, and for inputs that do not reach the model."
)


def spread_of(values: NDArray[np.generic]) -> float | None:
    """Return how much the directions of a batch's samples differ; None: unknown.

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
    # Zeros have no direction, and AllZero reports them.
    rows = rows[lengths[:, 0] > 0] / lengths[lengths[:, 0] > 0]
    if len(rows) < FEW_SAMPLES:
        return None
    return float(rows.std(axis=0).mean() * np.sqrt(rows.shape[1]))


class _Spreads:
    """The spreads of a tensor's batches, by column; each is computed once."""

    def __init__(self, table: Table, i: int) -> None:
        self._table = table
        self._name = table.names[i]
        self._rows = np.flatnonzero(table.present[i])
        has_values = np.isin(table.steps[self._rows], table.value_steps(self._name))
        kept = self._rows[has_values]
        #: The columns with values.
        self.columns = kept[table.usable[kept]]
        self._ordinals = table.ordinal[i, self.columns]
        self._found: dict[int, float | None] = {}

    def __getitem__(self, column: int) -> float | None:
        if column not in self._found:
            values = self._table.value(self._name, int(self._table.steps[column]))
            self._found[column] = None if values is None else spread_of(values)
        return self._found[column]

    def first(self) -> float | None:
        """Return the spread of the training's first batch; None: unknown."""
        first = self.columns[self._ordinals == 1]
        return self[int(first[0])] if len(first) else None

    def were_below(
        self, limit: float, column: int, n: int, lookback: int, span: int
    ) -> bool:
        """Return whether *n* spreads in a row, the last at *column*, are below a limit.

        They must span so many steps, within the last *lookback* rows.
        """
        oldest = self._rows[max(0, int(np.searchsorted(self._rows, column)) - lookback)]
        seen = self.columns[(self.columns >= oldest) & (self.columns <= column)]
        steps = self._table.steps
        for streak, before in enumerate(seen[::-1].tolist(), start=1):
            now = self[before]
            if now is None or now >= limit:
                return False
            lasted = int(steps[column] - steps[before]) + 1
            if streak >= n and lasted >= span:
                return True
        return False


def judge_collapse(
    table: Table,
    i: int,
    *,
    limit: float,
    patience: int,
    lookback: int,
    is_supervised: bool,
) -> Evaluation:
    """Judge the predictions in row *i*, at the steps with values.

    Args:
        table: Holds the first row of the tensor, and *lookback* older ones.
        i: Row of the tensor.
        limit: A batch with less spread has collapsed, if the first batch had at least
            ten times this spread.  Otherwise, all samples must be equal except for
            rounding, and the program must call the loss once only: the first answers to
            a sequence need not depend on it yet.
        patience: Consecutive steps at which this must hold.
        lookback: Number of previous rows that count.
        is_supervised: Whether the loss compares predictions with labels or targets.
    """
    name = table.names[i]
    spreads = _Spreads(table, i)
    severities = np.full(len(table.steps) - table.start, UNKNOWN, np.int8)
    began = spreads.first()
    if began is None:
        return table.judge_one(name, severities, nothing_to_describe)
    if began < FALL * limit:
        limit = ROUNDING
        if _is_called_again(table, name):
            return table.judge_one(name, severities, nothing_to_describe)
    learns_mean = is_supervised and limit > ROUNDING
    span = min_span(patience, ALIKE_FOR) if learns_mean else min_span(patience)
    for column in spreads.columns[spreads.columns >= table.start].tolist():
        now = spreads[column]
        if now is not None and now >= limit:
            severities[column - table.start] = OK
        elif spreads.were_below(limit, column, patience, lookback, span):
            severities[column - table.start] = Severity.WARNING

    def describe(j: int) -> Description:
        now = spreads[table.start + j] or 0.0
        was_alike = began <= 2 * now
        before = "as at" if was_alike else f"down from {percent(100 * began)} at"
        return Description(
            message=(
                "The model gives the same answer for all samples: at "
                f"{plural(patience, 'step')} in a row, the directions of its "
                f"predictions spread by only {percent(100 * now)} of what independent "
                f"ones would, {before} the first batch."
            ),
            value=now,
            threshold=limit,
            advice=_advice(was_alike=was_alike, is_supervised=is_supervised),
        )

    return table.judge_one(name, severities, describe)


def _advice(*, was_alike: bool, is_supervised: bool) -> str:
    """Say first what fits this loss, and what its predictions were like before."""
    remedies = [SUPERVISED, SELF_SUPERVISED]
    if not is_supervised:
        remedies.reverse()
    if was_alike:
        remedies.insert(int(not is_supervised), ALIKE_FROM_THE_START)
    return " ".join(remedies)


def _is_called_again(table: Table, name: str) -> bool:
    """Return whether the program calls the same loss again in a step."""
    base, _, call = name.partition("@")
    return f"{base}@{int(call or 1) + 1}" in table.names


def _is_of_one_row(name: str, model_info: ModelInfo | None) -> bool:
    """Return whether all weights of a module are embeddings with a single row.

    They embed a feature with one category, and return the same for all samples.
    """
    path, is_output, _ = name.rpartition("_output_")
    if model_info is None or not is_output:
        return False
    weights = [
        parameter
        for each, parameter in model_info.parameters.items()
        if each.startswith(f"{path}.")
    ]
    return bool(weights) and all(
        model_info.kind_of_leaf(each.module) == Kind.EMBEDDING and each.shape[0] == 1
        for each in weights
    )


# Interval at which to capture values of predictions, as in ClassifierRule.
INTERVAL = 5


def _first_outputs(names: Sequence[str]) -> dict[int, list[int]]:
    """Return, for further outputs of modules, the rows of the first one."""
    found = dict[str, list[int]]()
    parts = [PARTS.fullmatch(name) for name in names]
    for i, part in enumerate(parts):
        if part is not None and part[2] == "0":
            found.setdefault(part[1], []).append(i)
    return {
        i: found[part[1]]
        for i, part in enumerate(parts)
        if part is not None and part[2] != "0" and part[1] in found
    }


def _is_supervised(window: Window, table: Table, i: int) -> bool:
    model_info = window.model_info_at(int(table.steps[-1]))
    kind = kind_of(model_info, table.names[i])
    return kind in REGRESSIONS | CLASSIFICATIONS


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class TensorVariance(LastingRule):
    """Report tensors whose variance is out of bounds, or next to nothing.

    Without bounds, the rule reports a tensor whose elements are all alike: their
    standard deviation is below ``relative`` times their root mean square.  It skips
    inputs of ones only, which graph nodes without features have, outputs of embeddings
    with a single row, and a module's further outputs while its first one varies.  It
    also reports predictions that have become the same
    for all samples.

    Args:
        max_threshold: Largest variance; None: no bound.
        min_threshold: Least variance; None: no bound.
        relative: Least standard deviation, as a share of the root mean square; None: do
            not compare.
        collapsed: Least spread of the directions of a loss's predictions, as a share of
            that of independent ones; None: do not look.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    stage = Stage.STANDSTILL

    max_threshold: float | None = None
    min_threshold: float | None = None
    relative: float | None = 1e-4
    collapsed: float | None = 0.01

    def __post_init__(self) -> None:
        if self.min_threshold is not None:
            check_number(self, "min_threshold", least=0.0)
        if self.max_threshold is not None:
            check_number(self, "max_threshold", least=self.min_threshold or 0.0)
        if self.relative is not None:
            check_number(self, "relative", above=0.0, most=1.0)
        if self.collapsed is not None:
            check_number(self, "collapsed", above=0.0, most=0.1)
        LastingRule.__post_init__(self)
        # A single element does not vary.
        check_number(self, "min_count", least=2, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of the collections; rows and values of predictions."""
        rows = with_beginning(Needs(collections=built_in(self.collections)))
        if self.collapsed is None:
            return rows
        given = Needs(
            collections=frozenset({"predictions"}),
            raw=True,
            interval=INTERVAL,
        )
        return *rows, *with_beginning(given)

    @property
    def lookback(self) -> int:
        """The rows that ``patience`` needs; more of predictions."""
        if self.collapsed is None:
            return rows_of_lasting(self.patience)
        return rows_of_lasting(self.patience, ALIKE_FOR)

    @property
    def head_rows(self) -> int:
        """The first batch, to compare predictions with."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select the tensors of the collections or the expression, and predictions."""
        return self.is_named(tensor) or (
            self.collapsed is not None and tensor.role == "prediction"
        )

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the steps of training, and the values of predictions."""
        yield from LastingRule.evaluate(self, window)
        if self.collapsed is None:
            return
        for table in window.tables(*TRAINING):
            for i in np.flatnonzero(~self._named(table)).tolist():
                yield judge_collapse(
                    table,
                    i,
                    limit=self.collapsed,
                    patience=self.patience,
                    lookback=self.lookback,
                    is_supervised=_is_supervised(window, table, i),
                )

    def _named(self, table: Table) -> Bools:
        """Find the tensors whose rows the rule judges."""
        infos = zip(table.names, table.roles, strict=True)
        return np.array(
            [self.is_named(TensorInfo(name=name, role=role)) for name, role in infos],
            dtype=bool,
        )

    def judge(
        self, table: Table, judged: Bools, model_info: ModelInfo | None
    ) -> Evaluation:
        """Judge the variance of each row."""
        varies = [not _is_of_one_row(name, model_info) for name in table.names]
        judged = judged & (self._named(table) & varies)[:, np.newaxis]
        count = table["count"]
        judged = judged & (table.not_finite == 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = table["m2"] / count
            square = table["l2"] ** 2 / count
        small = np.zeros(judged.shape, dtype=bool)
        if self.relative is not None:
            # AllZero reports zeros.
            small = (square > 0) & (variance < self.relative**2 * square)
            # Ones stand for no features, or for a mask that hides nothing.
            is_input = np.array([role == "model_input" for role in table.roles])
            small &= ~(is_input[:, np.newaxis] & (variance == 0) & (table["mean"] == 1))
            # A further output may be one number for all: a determinant, a loss.
            passes = table.known & (variance >= self.relative**2 * square)
            for i, firsts in _first_outputs(table.names).items():
                if not self.is_chosen(table.names[i]):
                    small[i] &= ~passes[firsts].any(axis=0)
        bad = small.copy()
        if self.min_threshold is not None:
            bad |= variance < self.min_threshold
        if self.max_threshold is not None:
            bad |= variance > self.max_threshold
        bad &= judged
        lasting = table.lasts(bad, judged, rows=self.patience)

        def describe(i: int, j: int) -> Description:
            return self._describe(
                variance=float(variance[i, j]),
                root=float(np.sqrt(square[i, j])),
                mean=float(table["mean"][i, j]),
                role=table.roles[i],
            )

        return table.judge_lasting(bad, lasting, Severity.WARNING, describe, judged)

    def _describe(
        self, *, variance: float, root: float, mean: float, role: str
    ) -> Description:
        lasting = f"at {plural(self.patience, 'recorded step')} in a row"
        if self.max_threshold is not None and variance > self.max_threshold:
            return Description(
                message=(
                    f"The variance is too large: {number(variance)}, above the limit "
                    f"of {exact(self.max_threshold)}, {lasting} (mean {number(mean)})."
                ),
                value=variance,
                threshold=self.max_threshold,
                evidence=Evidence("std", float(np.sqrt(self.max_threshold))),
                advice=(
                    "Normalize the inputs, initialize for the width of the layer (He, "
                    "Glorot), or lower the learning rate."
                ),
            )
        what = "The data is" if role in INPUTS else "The output of this layer is"
        threshold = (self.relative or 0.0) ** 2 * root**2
        if self.min_threshold is not None:
            threshold = max(threshold, self.min_threshold)
        return Description(
            message=(
                f"All elements are close to {number(mean, 4)}: the variance was "
                f"{number(variance)}, below the limit of {number(threshold, 2)}, "
                f"{lasting}."
            ),
            value=variance,
            threshold=threshold,
            evidence=Evidence("std", float(np.sqrt(threshold))),
            advice=(
                f"{what} the same for all samples and units. Look for a constant "
                "input, dead or saturated units before it, weights that are all equal, "
                "or a bias that outweighs everything else."
            ),
        )
