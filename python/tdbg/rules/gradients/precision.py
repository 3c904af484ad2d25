"""What narrow float types lose of gradients and of updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.histogram import INFINITY, SIGN, ZERO, Histogram
from tdbg.modes import TRAINING
from tdbg.needs import Needs, with_beginning
from tdbg.precision import NARROW_TYPES, borders_of
from tdbg.rules._base import Rule
from tdbg.rules._checks import check_number
from tdbg.rules.registry import register
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Description,
    Judgement,
    Table,
    TensorInfo,
    Window,
    rows_of_lasting,
)

__all__ = ["PrecisionLoss"]


GRADIENT, UPDATE = "gradient/", "update/"
# bfloat16 has the range of float32: gradients do not vanish in it.
SHORT_RANGE = tuple(name for name in NARROW_TYPES if name != "bfloat16")
# Numbers that keep no more than two digits are at the brink.
BRINK = 8.0
# For so many steps updates must be lost: at the first steps of a warm-up they are.
LOST_FOR = 20
# So small a share below what the type can hold comes from rounding in the histogram.
NONE = 1e-6


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionLoss(Rule):
    """Report gradients and updates that a narrow float type rounds to nothing.

    Judged are trainings whose parameters, gradients or activations are float16,
    bfloat16 or float8.

    Args:
        threshold: A gradient is reported if at least this percentage of what is not
            zero in it is next to the least number of the type: as much again, or
            more, has become zero.
        update_threshold: A weight is reported if at least this percentage of the
            elements that have a gradient did not change.
        patience: Recorded steps in a row at which updates must be lost.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    threshold: float = 25.0
    update_threshold: float = 90.0
    patience: int = 3

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        check_number(self, "update_threshold", above=0.0, most=100.0)
        check_number(self, "patience", least=1, whole=True)

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
            # In which type the model computes.
            Needs(collections=frozenset({"outputs"}), first_steps=1),
        )

    @property
    def look_back(self) -> int:
        """The steps that patience counts."""
        return rows_of_lasting(self.patience, LOST_FOR)

    @property
    def anchor(self) -> int:
        """The first row of each output, which says in which type it was computed."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Weights, gradients, updates, and outputs of narrow types."""
        if tensor.role == "output":
            return tensor.dtype in SHORT_RANGE
        return tensor.role in {"weight", "gradient", "update"}

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge updates by their zeros, gradients by their histograms."""
        for table in window.tables(*TRAINING):
            yield from self._updates(table)
            yield from self._gradients(table)

    def _updates(self, table: Table) -> Iterator[Judgement]:
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
        weights, updates, gradients = (
            table.select(part) for part in np.array(rows, dtype=np.intp).T
        )
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
            affected = int(np.count_nonzero(lasting[:, j] & known[:, j]))
            return Description(
                message=(
                    f"{lost[i, j]:.3g} % of the elements that have a gradient did not "
                    f"change, at {self.patience} recorded steps in a row: their "
                    f"updates are rounded away in {weights.dtypes[i]}"
                ),
                value=float(lost[i, j]),
                threshold=self.update_threshold,
                advice=(
                    f"{affected} of {len(weights.names)} weights lose most of their "
                    "updates: keep float32 weights and compute in the narrow type "
                    "(torch.autocast), or round stochastically; a learning rate that "
                    "is zero looks the same"
                ),
            )

        yield weights.judge_lasting(bad, lasting, Severity.WARNING, describe, known)

    def _gradients(self, table: Table) -> Iterator[Judgement]:
        chosen = [i for i, role in enumerate(table.roles) if role == "gradient"]
        computed = _computed_in(table)
        due = table.known
        due[:, : table.start] = False
        for i in chosen:
            saved = table.histogram_steps(table.names[i])
            if not len(saved):
                continue
            own = table.dtypes[i] if table.dtypes[i] in SHORT_RANGE else None
            columns = np.searchsorted(table.steps, saved)
            columns = columns[due[i, columns]]
            if own is None:
                columns = columns[computed[columns] != ""]
            if not len(columns):
                continue
            types = {j: own or str(computed[j]) for j in columns.tolist()}
            yield self._judge_histograms(table, i, types)

    def _judge_histograms(
        self, table: Table, i: int, types: dict[int, str]
    ) -> Judgement:
        """Judge one gradient at these columns, computed in these types."""
        levels = np.full(len(table.steps) - table.start, UNKNOWN, dtype=np.int8)
        shares: dict[int, float] = {}
        smallest = table["abs_min"][i]
        for j, dtype in types.items():
            # Where the row says that nothing is at the brink no histogram is read.
            if BRINK * borders_of(dtype).vanishing < smallest[j] < np.inf:
                levels[j - table.start] = HEALTHY
                continue
            histogram = table.histogram(table.names[i], int(table.steps[j]))
            if histogram is None or histogram.finite == histogram.zero:
                continue
            at = j - table.start
            levels[at] = HEALTHY
            if _least(histogram) > BRINK * borders_of(dtype).vanishing:
                continue
            brink = 100.0 * histogram.lost_in(dtype, scale=1 / BRINK).underflow
            # Where there are numbers that the type cannot hold, it was not computed
            # in it, or the loss was scaled.
            if brink >= self.threshold and histogram.lost_in(dtype).underflow <= NONE:
                levels[at] = Severity.WARNING
                shares[at] = brink

        def describe(at: int) -> Description:
            dtype = types[at + table.start]
            return Description(
                message=(
                    f"{shares[at]:.3g} % of the gradient's elements other than zero "
                    f"are next to the least number of {dtype}, with two digits or "
                    "less: what is smaller has become zero"
                ),
                value=shares[at],
                threshold=self.threshold,
                advice=(
                    "scale the loss (torch.amp.GradScaler), or use bfloat16, which "
                    "has the range of float32"
                ),
            )

        return table.judge_one(table.names[i], levels, describe)


def _least(histogram: Histogram) -> float:
    """No finite element but zero has a magnitude below this."""
    magnitude = histogram.keys & ~np.uint16(SIGN)
    magnitude = magnitude[(magnitude != ZERO) & (magnitude < INFINITY)]
    least = magnitude.min(initial=INFINITY).astype(np.uint32)
    # The first bin holds all that is less, too.
    return 0.0 if least == 1 else float((least << np.uint32(16)).view(np.float32))


def _computed_in(table: Table) -> NDArray[np.str_]:
    """By column, the type of short range that outputs have had so far, or none."""
    result = np.full(len(table.steps), "", dtype="U16")
    for dtype in SHORT_RANGE:
        rows = [
            i
            for i, role in enumerate(table.roles)
            if role == "output" and table.dtypes[i] == dtype
        ]
        if rows:
            so_far = np.logical_or.accumulate(table.present[rows].any(axis=0))
            result[so_far & (result == "")] = dtype
    return result
