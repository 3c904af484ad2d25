"""ExplodingGradient: gradients that grow by orders of magnitude."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import affected, number, times
from tdbg.modes import TRAINING
from tdbg.rules.columns import MAD_TO_DEVIATION, KnownRows, median
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.window import (
    Bools,
    Description,
    Evaluation,
    Floats,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Evidence, Severity, Stage

__all__ = ["ExplodingGradient"]


# The square of this number is infinite in float32, and so is the state of Adam.
OVERFLOW = 1e18
# Least share of the squared norm of all gradients that must have exploded.
SHARE = 0.5
# Largest relative distance of the norm from the number to which gradients were clipped.
CHOSEN = 2e-5
# A batch is unlike the others if its largest number is this many times theirs.
OUTLYING = 10.0
OUTLIERS = " Look for outliers in the batch of this step."
CLIPPED = (
    "Nothing, if this is rare: the program clips the norm of all gradients to {}. "
    "Otherwise, look for outliers in the batch of this step."
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class ExplodingGradient(Rule):
    """Report gradients that have grown by orders of magnitude, before they are NaN.

    The rule compares the norm of each gradient with the medians of its last rows and of
    its first rows.  The first rows count so that a spike late in a good training, when
    all gradients are small, raises no alarm.  Where the norm of all gradients shows
    that the program clips them, the finding is an info: the step is no longer than
    intended.

    Args:
        factor: Times the median of the last rows that the norm must exceed.
        first_factor: Times the median of the first rows, and of the first ``min_rows``,
            that the norm must exceed; and times the median of the norm of all gradients
            over the last rows that this norm must exceed.
        deviations: Deviations that the logarithm of the norm must be above the last
            rows.
        error_factor: Times both medians at which the finding is an error; and times the
            highest of fewer rows than ``min_rows`` at which it is a warning.
        window: Number of last rows, and of first rows.
        min_rows: Least number of previous rows for a median.

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
        """The rows to compare a new one with."""
        return self.window

    @property
    def head_rows(self) -> int:
        """The first rows, to compare new ones with."""
        return self.window

    def selects(self, tensor: TensorInfo) -> bool:
        """Select gradients, and what the model and its loss are given."""
        return tensor.role == "gradient" or _is_data(tensor)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each step of training by the gradients that dominate its norm."""
        for table in window.tables(*TRAINING):
            gradients = np.flatnonzero([role == "gradient" for role in table.roles])
            if len(gradients):
                yield self._judge(table.select(gradients), _data_of(window, table))

    def _judge(self, table: Table, data: Table) -> Evaluation:
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
        # Sum one by one, so that sums do not depend on other columns.
        total = np.cumsum(squares[:, explodes], axis=0)[-1:]
        carried = np.cumsum(np.where(grown, squares, 0.0)[:, explodes], axis=0)[-1:]
        explodes[explodes] = (carried >= SHARE * total).all(axis=0)
        explodes &= overflows.any(axis=0) | ~self._were_as_long(norm, explodes)
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
        # A gradient that has grown, but is not the one reported or does not dominate
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
                outlier=_outlier_at(data, j, self.window, self.min_rows),
                grown=affected(
                    int(np.count_nonzero(grown[:, j])),
                    int(np.count_nonzero(sure[:, j])),
                    "gradient",
                ),
            )

        return table.judge(severities, describe, decided)

    def _were_as_long(self, norm: Floats, columns: Bools) -> Bools:
        """Find those of the columns whose norm of all gradients is about as usual.

        A layer may wake up while another one falls asleep: the step is no longer.
        """
        found = np.zeros(norm.shape[1], dtype=bool)
        at = np.flatnonzero(columns)
        if not len(at):
            return found
        known: Bools = np.logical_or.reduce(np.isfinite(norm), axis=0)
        squares = np.nan_to_num(norm / OVERFLOW) ** 2
        total = np.where(known, np.sqrt(np.cumsum(squares, axis=0)[-1:]), np.nan)
        last = KnownRows(total, known[np.newaxis, :]).before(
            np.zeros_like(at), at, self.window
        )
        enough = np.isfinite(last).sum(axis=1) >= self.min_rows
        found[at] = enough & (total[0, at] <= self.first_factor * median(last))
        return found

    def _past(self, table: Table, norm: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the medians of the last and first rows, and the limit; NaN: unknown.

        With few rows, their maximum stands for the median of the last, and the limit is
        higher.  The results are NaN where the norm does not exceed ``factor`` times any
        previous row, since a median is not less than all of its values.
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
        # With few rows, compare with their maximum, and report only gross growth.
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
        # A gradient that recovers from next to nothing has not exploded.
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
        outlier: _Outlier | None,
        grown: str,
    ) -> Description:
        if not usual > 0:
            return Description(
                message=(
                    f"The gradient has exploded: its L2 norm is {number(norm, 2)}, and "
                    "the square of that overflows float32. Adam's state and gradient "
                    "clipping overflow with it."
                ),
                value=norm,
                threshold=OVERFLOW,
                evidence=Evidence("l2", OVERFLOW),
                advice="Lower the learning rate or the scale of the loss.",
            )
        growth = norm / usual
        clipped = 2 * total / growth
        past = (
            "its maximum over the few recorded steps before"
            if is_early
            else f"its median over the last {self.window:,} recorded steps"
        )
        return Description(
            message=(
                f"The gradient has exploded: its L2 norm is {number(norm)}, "
                f"{times(growth)} {past} ({number(usual)}). {grown}"
            ),
            value=growth,
            threshold=self.error_factor if is_early else self.factor,
            evidence=Evidence("l2", bound),
            advice=CLIPPED.format(number(total, 2))
            if is_clipped
            else lambda words: (
                f"{_of_batch(outlier)}"
                f"Clip gradients: {words.clipping_at.format(number(clipped, 1))}. The "
                f"norm of all gradients is {number(total, 2)} now and was about "
                f"{number(total / growth, 2)}. Or lower the learning rate or warm it "
                "up. In recurrent networks, initialize orthogonally or unroll fewer "
                f"steps.{'' if outlier else OUTLIERS}"
            ),
        )


def _of_batch(outlier: _Outlier | None) -> str:
    if outlier is None:
        return ""
    return (
        f"Look at the batch of this step first: {outlier.name} reaches a "
        f"magnitude of {number(outlier.size)}, "
        f"{times(outlier.size / outlier.before)} its largest in the recorded steps "
        f"before ({number(outlier.before)}). Leave out or convert these samples. "
    )


def _is_clipped(norms: Floats) -> bool:
    """Return whether the program has scaled gradients to a norm that somebody chose.

    By chance, one number in 600 is this close to a number of two digits.  If a single
    gradient makes up nearly all of the norm, the number shows nothing.
    """
    total = float(np.sqrt(np.nansum(norms**2)))
    is_chosen = abs(total - float(f"{total:.1e}")) <= CHOSEN * total
    return is_chosen and float(np.nanmax(norms)) < (1.0 - CHOSEN) * total


def _median_before(values: Floats, i: NDArray[np.intp], j: NDArray[np.intp]) -> Floats:
    """Return, for each entry, the median of the entries before it in its row."""
    columns = np.flatnonzero(np.isfinite(values).any(axis=0))
    before = np.where(columns[np.newaxis, :] < j[:, np.newaxis], 1.0, np.nan)
    return median(values[i][:, columns] * before)


# ---- the batch that stands out: unlike those of the steps before ---------------------


@dataclass(frozen=True, slots=True)
class _Outlier:
    """A tensor whose largest number at one step is unlike those before.

    Attributes:
        name: The input or target.
        size: Its largest magnitude.
        before: The largest magnitude in the rows before.
    """

    name: str
    size: float
    before: float


def _is_data(tensor: TensorInfo) -> bool:
    """Return whether a tensor is an input of the model or a target, in floats."""
    return tensor.role in {"model_input", "label"} and "float" in tensor.dtype


def _data_of(window: Window, table: Table) -> Table:
    """Return the inputs and targets that no model has made."""
    info = window.model_info_at(int(table.steps[-1]))
    made = () if info is None else info.made_inputs
    roles = {"model_input", "label"}
    if info is not None and info.makes_targets:
        roles.remove("label")
    kinds = zip(table.names, table.roles, strict=True)
    return table.select(
        [
            i
            for i, (name, role) in enumerate(kinds)
            if role in roles and name not in made
        ]
    )


def _outlier_at(data: Table, j: int, n_rows: int, min_rows: int) -> _Outlier | None:
    """Return the input or target that stands out most at a column; None: none does.

    Args:
        data: The inputs and targets.
        j: The column.
        n_rows: How many rows before it to compare with.
        min_rows: Least number of them.
    """
    known = data.known
    sizes = np.where(known, np.fmax(np.abs(data["min"]), np.abs(data["max"])), np.nan)
    found = [
        _Outlier(name, float(row[j]), float(before.max()))
        for name, row in zip(data.names, sizes, strict=True)
        if len(before := _last_known(row[:j], n_rows)) >= min_rows
    ]
    found = [each for each in found if each.size > OUTLYING * each.before > 0]
    return max(found, key=lambda each: each.size / each.before, default=None)


def _last_known(row: Floats, n: int) -> Floats:
    return np.asarray(row[np.isfinite(row)][-n:])
