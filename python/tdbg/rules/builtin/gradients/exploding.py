"""ExplodingGradient: gradients that grow by orders of magnitude."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs, with_beginning
from tdbg.modes import TRAINING
from tdbg.rules.columns import MAD_TO_DEVIATION, KnownRows, median
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.window import (
    Description,
    Evaluation,
    Floats,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Evidence, Severity, Stage

__all__ = ["ExplodingGradient"]


# The square of such a number is infinite in float32, as is the state of Adam.
OVERFLOW = 1e18
# The least share of the squared norm of all gradients that must have exploded.
SHARE = 0.5
# A norm is as near as that to the number to which gradients were clipped.
CHOSEN = 2e-5
CLIPPED = (
    "nothing, if it is rare: the norm of all gradients is {:.2g}, to which the program "
    "clips them; look at the batch of this step for outliers"
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplodingGradient(Rule):
    """Report gradients that have grown by orders of magnitude, before they are NaN.

    The norm of each gradient is compared with its own past: the median of its last
    rows, and that of its first ones, so that a spike late in a good training, when
    all gradients are small, is none.  Information, where the norm of all shows that
    they are clipped: the step is no longer than it is meant to be.

    Args:
        factor: By how much the norm must exceed the median of the last rows.
        first_factor: By how much it must exceed the median of the first rows, and
            that of the first ``min_rows``.
        deviations: How many deviations it must be above the last rows, as logarithms.
        error_factor: Beyond this many times both medians it is an error; and beyond
            this many times the highest of fewer rows than ``min_rows`` a warning.
        window: How many last rows; and how many first ones.
        min_rows: Rows before, at least, to speak of a median.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO, Severity.WARNING, Severity.ERROR)
    stage = Stage.NUMBERS

    factor: float = 100.0
    first_factor: float = 10.0
    deviations: float = 5.0
    error_factor: float = 1e4
    window: int = 20
    min_rows: int = 3

    def __post_init__(self) -> None:
        check_number(self, "factor", above=1.0)
        check_number(self, "first_factor", above=0.0)
        check_number(self, "deviations", least=0.0)
        check_number(self, "error_factor", least=self.factor)
        check_number(self, "min_rows", least=1, whole=True)
        check_number(self, "window", least=self.min_rows, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of gradients."""
        return with_beginning(Needs(collections=frozenset({"gradients"})))

    @property
    def lookback(self) -> int:
        """The rows that a new one is compared with."""
        return self.window

    @property
    def head_rows(self) -> int:
        """The first rows, which new ones are compared with."""
        return self.window

    def selects(self, tensor: TensorInfo) -> bool:
        """Select gradients."""
        return tensor.role == "gradient"

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each step of training by the gradients that dominate its norm."""
        for table in window.tables(*TRAINING):
            yield self._judge(table)

    def _judge(self, table: Table) -> Evaluation:
        norm = table["l2"]
        sure = table.known & ~table.skipped[np.newaxis, :]
        sure &= table.not_finite == 0
        norm = np.where(sure, norm, np.nan)
        usual, first, bound = self._past(table, norm)
        grown = norm > bound
        overflows = sure & (norm > OVERFLOW)
        grown |= overflows
        squares = np.where(sure, (norm / OVERFLOW) ** 2, 0.0)
        explodes = np.logical_or.reduce(grown, axis=0)
        # One by one, so that sums do not depend on the other columns.
        total = np.cumsum(squares[:, explodes], axis=0)[-1:]
        carried = np.cumsum(np.where(grown, squares, 0.0)[:, explodes], axis=0)[-1:]
        explodes[explodes] = (carried >= SHARE * total).all(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            growth = np.where(grown, norm / np.nan_to_num(usual), -1.0)
            least = np.fmin(norm / usual, norm / first)
        at = np.flatnonzero(explodes)
        worst = np.argmax(np.where(overflows, np.inf, growth)[:, at], axis=0)
        severities = np.zeros(norm.shape, dtype=np.int8)
        severities[worst, at] = Severity.WARNING
        severe = overflows | ((least > self.error_factor) & np.isfinite(first))
        severities[worst[severe[worst, at]], at[severe[worst, at]]] = Severity.ERROR
        for i, j in zip(worst.tolist(), at.tolist(), strict=True):
            if not overflows[:, j].any() and _is_clipped(norm[:, j]):
                severities[i, j] = Severity.INFO
        # A gradient that has grown while another is reported, or that does not carry
        # the norm, is neither reported nor healthy.
        decided = sure & (~grown | (severities > 0))

        def describe(i: int, j: int) -> Description:
            total = float(np.sqrt(np.nansum(norm[:, j] ** 2)))
            has_grown = bool(norm[i, j] > bound[i, j])
            return self._describe(
                norm=float(norm[i, j]),
                usual=float(usual[i, j]) if has_grown else np.nan,
                bound=float(bound[i, j]),
                is_early=bool(np.isnan(first[i, j])),
                is_clipped=severities[i, j] == Severity.INFO,
                total=total,
                grown=f"{np.count_nonzero(grown[:, j])} of "
                f"{np.count_nonzero(sure[:, j])} gradients",
            )

        return table.judge(severities, describe, decided)

    def _past(self, table: Table, norm: Floats) -> tuple[Floats, Floats, Floats]:
        """Medians of the last and first rows, and the limit; NaN: unknown.

        Where there are few rows: their maximum, no median of the first rows, and a
        limit for few rows.  Only computed where the norm exceeds ``factor`` times some
        row before, since a median is not less than all of its values.
        """
        usual, first = np.full(norm.shape, np.nan), np.full(norm.shape, np.nan)
        bound = np.full(norm.shape, np.inf)
        least = np.fmin.accumulate(norm, axis=1)
        candidates = np.zeros(norm.shape, dtype=bool)
        candidates[:, 1:] = norm[:, 1:] > self.factor * least[:, :-1]
        candidates[:, : table.start] = False
        i, j = np.nonzero(candidates)
        if not len(i):
            return usual, first, bound
        rows, inverse = np.unique(i, return_inverse=True)
        past = KnownRows(norm[rows], table.known[rows])
        last = past.before(inverse, j, self.window)
        n_rows = np.isfinite(last).sum(axis=1)
        # With few rows, compare with their maximum, and report gross growth only.
        few = (n_rows > 0) & (n_rows < self.min_rows)
        highest = np.nanmax(last[few], axis=1) if few.any() else np.empty(0)
        usual[i[few], j[few]] = highest
        bound[i[few], j[few]] = np.where(
            highest > 0, self.error_factor * highest, np.inf
        )
        enough = n_rows >= self.min_rows
        i, j, inverse, last = i[enough], j[enough], inverse[enough], last[enough]
        if not len(i):
            return usual, first, bound
        early = np.where(table.ordinal <= self.window, norm, np.nan)[rows]
        usual[i, j] = np.nanmedian(last, axis=1)
        first[i, j] = _median_before(early, inverse, j)
        # What comes back from next to nothing has not exploded.
        opening = np.where(table.ordinal <= self.min_rows, norm, np.nan)[rows]
        at_first = np.fmax(first[i, j], median(opening)[inverse])
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.where(last > 0, last, np.nan))
            middle = np.log(usual[i, j])
            spread = median(np.abs(logs - middle[:, np.newaxis]))
            noise = np.exp(self.deviations * MAD_TO_DEVIATION * spread)
        # If nearly all old rows are zero, there is nothing to compare with.
        bound[i, j] = np.where(
            (usual[i, j] > 0) & (first[i, j] > 0) & np.isfinite(noise),
            np.maximum(
                usual[i, j] * np.fmax(self.factor, noise),
                at_first * self.first_factor,
            ),
            np.inf,
        )
        return usual, first, bound

    def _describe(
        self,
        *,
        norm: float,
        usual: float,
        bound: float,
        is_early: bool,
        is_clipped: bool,
        total: float,
        grown: str,
    ) -> Description:
        if not usual > 0:
            return Description(
                message=(
                    f"the gradient's l2 norm is {norm:.1e}: its square overflows "
                    "float32, and with it the state of Adam and clip_grad_norm_"
                ),
                value=norm,
                threshold=OVERFLOW,
                evidence=Evidence("l2", OVERFLOW),
                advice="lower the learning rate or the scale of the loss",
            )
        growth = norm / usual
        past = (
            f"its highest of the few recorded steps before ({usual:.3g})"
            if is_early
            else f"its median of the last {self.window} recorded steps ({usual:.3g})"
        )
        return Description(
            message=(
                f"the gradient's l2 norm is {norm:.3g}, {growth:.2g} times {past}; "
                f"{grown} have grown so"
            ),
            value=growth,
            threshold=self.error_factor if is_early else self.factor,
            evidence=Evidence("l2", bound),
            advice=CLIPPED.format(total)
            if is_clipped
            else (
                f"clip gradients (the norm of all is {total:.2g} now and was about "
                f"{total / growth:.2g}: torch.nn.utils.clip_grad_norm_ with "
                f"max_norm={2 * total / growth:.1g}), lower the learning rate or warm "
                "it up; in recurrent networks initialize orthogonally or unroll less; "
                "look at the batch of this step for outliers"
            ),
        )


def _is_clipped(norms: Floats) -> bool:
    """Whether gradients of these norms were scaled to have one that somebody chose.

    By chance a number is as near to one of two digits once in 600 times; that of one
    gradient, which is next to all of them, says nothing.
    """
    total = float(np.sqrt(np.nansum(norms**2)))
    is_chosen = abs(total - float(f"{total:.1e}")) <= CHOSEN * total
    return is_chosen and float(np.nanmax(norms)) < (1.0 - CHOSEN) * total


def _median_before(values: Floats, i: NDArray[np.intp], j: NDArray[np.intp]) -> Floats:
    """For each entry, the median of the entries before it in its row."""
    columns = np.flatnonzero(np.isfinite(values).any(axis=0))
    before = np.where(columns[np.newaxis, :] < j[:, np.newaxis], 1.0, np.nan)
    return median(values[i][:, columns] * before)
