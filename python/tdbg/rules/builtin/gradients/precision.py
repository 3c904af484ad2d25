"""PrecisionLoss: gradients and updates that a narrow float type rounds to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import affected, percent, plural
from tdbg.modes import TRAINING
from tdbg.rules.columns import GRADIENT, UPDATE
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.training_facts import TrainingFacts
from tdbg.rules.window import (
    OK,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
    rows_of_lasting,
)
from tdbg.run.findings import Severity, Stage
from tdbg.run.model_info import ModelInfo
from tdbg.stats.histogram import INFINITY, SIGN, ZERO, Histogram
from tdbg.stats.number_formats import NARROW_TYPES, borders_of

__all__ = ["PrecisionLoss"]


# bfloat16 has the range of float32: gradients do not vanish in it.
SHORT_RANGE = tuple(name for name in NARROW_TYPES if name != "bfloat16")
# Numbers with at most two digits left are close to zero in this type.
BRINK = 8.0
# Steps for which updates must be lost: the first steps of a warm-up also lose them.
LOST_FOR = 20
BRINKS = np.array([*(BRINK * borders_of(t).vanishing for t in SHORT_RANGE), np.nan])
NO_TYPE = np.int8(-1)
# Optimizers that round to the nearest number of a weight's type.  Others may round
# stochastically, or keep what they have rounded away.
NEAREST = frozenset(
    {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS"}
    | {"NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
)
# A smaller share below the range of the type comes from rounding in the histogram.
NONE = 1e-6


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionLoss(Rule):
    """Report gradients and updates that a narrow float type rounds to nothing.

    The rule judges trainings whose parameters, gradients or activations are float16,
    bfloat16 or float8.  Lost updates are an info if the optimizer is none that surely
    rounds to the nearest number: it may round stochastically or keep float32 weights.

    Args:
        threshold: Least percentage of a gradient's nonzero elements that must be next
            to the type's least number; at least as many more have become zero.
        update_threshold: Least percentage of a weight's elements with a gradient that
            must not have changed.
        patience: Consecutive recorded steps at which updates must be lost.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING)

    threshold: float = 25.0
    update_threshold: float = 65.0
    patience: int = 3

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "update_threshold", above=0.0, most=100.0)
        check_number(self, "patience", least=1, whole=True)

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return "gradients or weights in float16, bfloat16 or float8"

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of parameters, gradients and updates; now and then a histogram."""
        return (
            *with_beginning(
                Needs(collections=frozenset({"weights", "gradients", "updates"}))
            ),
            Needs(
                collections=frozenset({"gradients"}),
                histogram=True,
                statistics=False,
                interval=100,
            ),
            # The types that the model computes in.
            Needs(collections=frozenset({"outputs"}), first_steps=1),
        )

    @property
    def lookback(self) -> int:
        """The rows that ``patience`` needs."""
        return rows_of_lasting(self.patience, LOST_FOR)

    @property
    def head_rows(self) -> int:
        """The first row of each output, whose type is that of the computation."""
        return 1

    def inapplicable(self, training: TrainingFacts) -> str:
        """Return which types there are, where none of them is narrow."""
        dtypes = training.dtypes()
        if dtypes and dtypes.isdisjoint(NARROW_TYPES):
            return f"all parameters are {' or '.join(sorted(dtypes))}"
        return Rule.inapplicable(self, training)

    def selects(self, tensor: TensorInfo) -> bool:
        """Select weights, gradients, updates, and outputs of narrow types."""
        if tensor.role == "output":
            return tensor.dtype in SHORT_RANGE
        return tensor.role in {"weight", "gradient", "update"}

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge updates by their zeros, gradients by their histograms."""
        for table in window.tables(*TRAINING):
            yield from self._updates(window, table)
            yield self._gradients(table)

    def _updates(self, window: Window, table: Table) -> Iterator[Evaluation]:
        index = {name: i for i, name in enumerate(table.names)}
        rows = [
            (i, index[UPDATE + name], index[GRADIENT + name])
            for name, i in index.items()
            if table.dtypes[i] in NARROW_TYPES
            and UPDATE + name in index
            and GRADIENT + name in index
        ]
        if not rows:
            return
        info = window.model_info_at(int(table.steps[-1]))
        is_sure = [_rounds_to_nearest(info, table.names[i]) for i, _, _ in rows]
        for sure in (True, False):
            chosen = [
                row for row, each in zip(rows, is_sure, strict=True) if each is sure
            ]
            if chosen:
                yield self._updates_of(table, np.array(chosen, dtype=np.intp), sure)

    def _updates_of(
        self, table: Table, rows: NDArray[np.intp], is_sure: bool
    ) -> Evaluation:
        """Judge the updates of weights; rows are weights, updates and gradients."""
        weights, updates, gradients = (table.select(part) for part in rows.T)
        known = updates.known & gradients.known & weights.known
        known &= ~table.skipped[np.newaxis, :] & (gradients.not_finite == 0)
        trained = gradients["count"] - gradients["zero"]
        kept = updates["count"] - updates["zero"]
        with np.errstate(divide="ignore", invalid="ignore"):
            lost = 100.0 * (1.0 - kept / trained)
        known &= (trained > 0) & np.isfinite(lost)
        bad = known & (lost >= self.update_threshold)
        lasting = weights.lasts(bad, known, rows=self.patience, steps=LOST_FOR)

        def describe(i: int, j: int) -> Description:
            lasted = int(weights.streak(bad, known)[i, j])
            first = np.flatnonzero(bad[i, : j + 1])[-lasted]
            n_lost = int(np.count_nonzero(lasting[:, j] & known[:, j]))
            return Description(
                message=(
                    f"{weights.dtypes[i]} rounds updates of this weight away: "
                    f"{percent(lost[i, j])} of its elements with a gradient did not "
                    f"change at {plural(self.patience, 'recorded step')} in a row. "
                    f"{affected(n_lost, len(weights.names), 'weight')}"
                ),
                value=float(lost[i, j]),
                threshold=self.update_threshold,
                advice=lambda words: (
                    f"{'' if is_sure else MAYBE_KEPT}Keep float32 weights and compute "
                    f"in the narrow type ({words.mixed_precision}), or round "
                    "stochastically. A learning rate of zero looks the same."
                ),
                since=int(weights.steps[first]),
                stage=Stage.STANDSTILL,
            )

        severity = Severity.WARNING if is_sure else Severity.INFO
        return weights.judge_lasting(bad, lasting, severity, describe, known)

    def _gradients(self, table: Table) -> Evaluation:
        types = _types(table)
        judged = np.flatnonzero((types != NO_TYPE).any(axis=1))
        table, types = table.select(judged), types[judged]
        known = table.known & (types != NO_TYPE)
        smallest = table["abs_min"]
        far = (smallest > BRINKS[types]) & (smallest < np.inf)
        known[:, : table.start] = False
        # Read no histogram if the row shows that no number is so small.
        near = known & ~far
        known &= far
        severities = np.full(known.shape, OK, dtype=np.int8)
        shares: dict[tuple[int, int], float] = {}
        for i in np.flatnonzero(near.any(axis=1)).tolist():
            saved = np.isin(table.steps, table.histogram_steps(table.names[i]))
            for j in np.flatnonzero(near[i] & saved).tolist():
                histogram = table.histogram(table.names[i], int(table.steps[j]))
                if histogram is None or histogram.finite == histogram.zero:
                    continue
                known[i, j] = True
                share = _share_at_brink(histogram, SHORT_RANGE[types[i, j]])
                if share >= self.threshold:
                    severities[i, j] = Severity.WARNING
                    shares[i, j] = share

        def describe(i: int, j: int) -> Description:
            return Description(
                message=(
                    f"The gradient underflows in {SHORT_RANGE[types[i, j]]}: "
                    f"{percent(shares[i, j])} of its nonzero elements are next to the "
                    "least number of the type, with at most two binary digits left. "
                    "Anything smaller has become zero."
                ),
                value=shares[i, j],
                threshold=self.threshold,
                advice=lambda words: (
                    f"Scale the loss ({words.loss_scaling}), or use bfloat16, which "
                    "has the range of float32."
                ),
                stage=Stage.GRADIENTS,
            )

        return table.judge(severities, describe, known)


# Before the advice, where the optimizer may lose nothing.
MAYBE_KEPT = (
    "If your optimizer rounds stochastically, or keeps float32 weights or what it has "
    "rounded away, do nothing. Otherwise: "
)


def _rounds_to_nearest(info: ModelInfo | None, name: str) -> bool:
    """Return whether a weight's optimizer rounds to the nearest; True: not known."""
    parameter = None if info is None else info.parameters.get(name)
    if info is None or parameter is None or not info.complete:
        return True
    i = parameter.optimizer
    return i is not None and (
        i >= len(info.optimizers) or info.optimizers[i] in NEAREST
    )


def _share_at_brink(histogram: Histogram, dtype: str) -> float:
    """Return the percentage of nonzero elements close to the least number of a type.

    0 if there are numbers that the type cannot hold: the program computed in another
    type, or scaled the loss.
    """
    if _least(histogram) > BRINK * borders_of(dtype).vanishing:
        return 0.0
    if histogram.lost_in(dtype).underflow > NONE:
        return 0.0
    return 100.0 * histogram.lost_in(dtype, scale=1 / BRINK).underflow


def _least(histogram: Histogram) -> float:
    """Return a lower bound of the magnitudes of nonzero finite elements."""
    magnitude = histogram.keys & ~np.uint16(SIGN)
    magnitude = magnitude[(magnitude != ZERO) & (magnitude < INFINITY)]
    least = magnitude.min(initial=INFINITY).astype(np.uint32)
    # The first bin also holds all smaller numbers.
    return 0.0 if least == 1 else float((least << np.uint32(16)).view(np.float32))


def _types(table: Table) -> NDArray[np.int8]:
    """Return, names x steps, the number of a gradient's type of short range.

    It is the type of the gradient itself or, failing that, of the outputs so far.
    """
    computed = np.full(len(table.steps), NO_TYPE)
    for number, dtype in enumerate(SHORT_RANGE):
        of_type = [r == "output" and d == dtype for r, d in _kinds(table)]
        so_far = np.logical_or.accumulate(table.present[of_type].any(axis=0))
        computed[so_far & (computed == NO_TYPE)] = number
    result = np.full(table.present.shape, NO_TYPE)
    for i, (role, dtype) in enumerate(_kinds(table)):
        if role == "gradient":
            own = dtype in SHORT_RANGE
            result[i] = SHORT_RANGE.index(dtype) if own else computed
    return result


def _kinds(table: Table) -> Iterator[tuple[str, str]]:
    """Yield the role and element type of each tensor."""
    return zip(table.roles, table.dtypes, strict=True)
