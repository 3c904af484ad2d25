"""UnchangedTensor: tensors that never change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs, with_beginning
from tdbg.modes import TRAINING
from tdbg.rules.builtin.tensors.tensor_rule import TensorRule
from tdbg.rules.columns import GRADIENT, model_info_of_steps, parameter_of
from tdbg.rules.registry import register
from tdbg.rules.rule import built_in, check_number
from tdbg.rules.table import streak_spans
from tdbg.rules.window import (
    LASTING,
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
from tdbg.stats.row_fields import FIELDS

__all__ = ["UnchangedTensor"]

Value = TypeVar("Value", bound=np.generic)

# A training has arrived where the gradient's norm is this share of the weight's, and
# of what the gradient was at first.
NEXT_TO_NOTHING, FALLEN = 1e-5, 1e-2
NO_UPDATE = (
    "see that the optimizer was given these parameters, that its learning rate is not "
    "zero, and that updates are not below the precision of the weights (bfloat16: "
    "0.4 %)"
)
NO_GRADIENT = (
    "the optimizer steps, and no parameter has a gradient: see that backward() is "
    "called on the loss that the model gave (not on a copy: detach(), item(), "
    "torch.tensor(loss)), and that zero_grad() comes before it and not after"
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedTensor(TensorRule):
    """Report tensors that stay the same over several recorded steps.

    All fields of the row must be equal; where values were captured too, these.  A
    weight or bias is judged only at steps at which it received a gradient, so that
    frozen parameters are not reported, and which has not fallen to next to nothing, as
    at the end of a training by LBFGS; or where its optimizer steps and no parameter
    has received any.

    Args:
        num_steps: How many recorded steps must be equal.
        rtol: Relative difference that counts as equal.
        atol: Absolute difference that counts as equal.
        collections: Where to look.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    stage = Stage.STANDSTILL

    num_steps: int = 3
    rtol: float = 0.0
    atol: float = 0.0
    collections: tuple[str, ...] = ("weights",)

    def __post_init__(self) -> None:
        check_number(self, "num_steps", least=2, whole=True)
        check_number(self, "rtol", least=0.0)
        check_number(self, "atol", least=0.0)
        TensorRule.__post_init__(self)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of the collections, and of the gradients of parameters."""
        requested = built_in(self.collections)
        if requested & {"weights", "biases"}:
            requested |= {"gradients"}
        return with_beginning(Needs(collections=requested))

    @property
    def lookback(self) -> int:
        """The rows that a new one is compared with."""
        return rows_of_lasting(self.num_steps)

    @property
    def head_rows(self) -> int:
        """The first gradient, which later ones are compared with."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select the tensors of the collections or the expression, and gradients."""
        return tensor.role == "gradient" or self.is_named(tensor)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Compare each row with the one before it."""
        for table in window.tables():
            chosen = self._judged(table)
            if len(chosen):
                trained = _trained(table, chosen)
                judged = table.select(chosen)
                _leave_out_absent(window, judged, trained)
                without = self._without_gradients(window, table, judged)
                yield self._judge(judged, trained | without, without)

    def _judged(self, table: Table) -> NDArray[np.intp]:
        """The tensors to judge; gradients are only read for their parameters."""
        if self.tensor_regex is None:
            # The answer is the same for all of them, and there are many.
            every = self.is_named(TensorInfo(name="", role="gradient"))
            judged = [every or role != "gradient" for role in table.roles]
        else:
            judged = [
                role != "gradient" or self.is_named(TensorInfo(name=name, role=role))
                for name, role in zip(table.names, table.roles, strict=True)
            ]
        return np.flatnonzero(judged)

    def _without_gradients(self, window: Window, table: Table, judged: Table) -> Bools:
        """The steps at which an optimizer stepped and no parameter had a gradient."""
        result = np.zeros(judged.present.shape, dtype=bool)
        if table.mode not in TRAINING:
            return result
        gradients = [role == "gradient" for role in table.roles]
        absent = np.logical_not(table.present[gradients].any(axis=0))
        if not absent.any():
            return result
        for model_info, steps in model_info_of_steps(window, judged):
            if model_info is None or not model_info.complete:
                continue
            for i, name in enumerate(judged.names):
                parameter = model_info.parameters.get(name)
                if parameter is None or parameter.optimizer is None:
                    continue
                if parameter.requires_grad:
                    result[i, steps] = absent[steps]
        return result

    def _judge(self, table: Table, trained: Bools, without: Bools) -> Evaluation:
        # A skipped step rightly leaves the weights as they are.
        known = table.known & trained & ~table.skipped[np.newaxis, :]
        # Tensors full of NaN stay so; ExplodingTensor reports them.
        known &= (table.not_finite < table["count"]) | (table["count"] == 0)
        before = _row_before(table)
        same, compared = self._same_as_before(table, known, before)
        streak = table.streak(same, known)
        fires = streak >= self.num_steps - 1
        fires &= streak_spans(table.steps, streak, table.steps[before]) >= LASTING
        fires[:, : table.start] = False
        # Without captured gradients, changes of other parameters show them.
        fires &= ~(without & (without & compared & ~same).any(axis=0))
        differs = self._values_differ(table, fires)
        fires &= ~differs
        same &= ~differs
        severities = np.where(fires, int(Severity.WARNING), 0)

        def describe(i: int, j: int) -> Description:
            unchanged = int(np.count_nonzero(fires[:, j]))
            judged = int(np.count_nonzero(known[:, j]))
            within = f", within rtol {self.rtol:g} and atol {self.atol:g}"
            exactly = self.rtol == self.atol == 0
            return Description(
                message=(
                    f"{'exactly ' if exactly else ''}the same at {self.num_steps} "
                    f"recorded steps in a row{'' if exactly else within} "
                    f"(mean {table['mean'][i, j]:.6g}, l2 {table['l2'][i, j]:.6g})"
                ),
                value=0.0,
                threshold=self.rtol,
                advice=(
                    f"{unchanged} of {judged} tensors do not change: "
                    f"{NO_GRADIENT if without[i, j] else NO_UPDATE}"
                ),
            )

        return table.judge(severities, describe, known & compared & (fires | ~same))

    def _same_as_before(
        self, table: Table, known: Bools, before: NDArray[np.intp]
    ) -> tuple[Bools, Bools]:
        """Whether each row equals the row before it, and whether there is one."""
        at = np.arange(len(table.steps))
        broken = ~table.usable | table.skipped
        wall = np.maximum.accumulate(np.where(broken, at, -1))
        compared = known & (before > wall)
        compared &= _at_row_before(known, before)
        # The first row is kept for longer than those that follow.
        compared &= _at_row_before(table.ordinal, before) == table.ordinal - 1
        # Compare norms first: they nearly always differ, so few other fields are read.
        norm = table["l2"]
        old = _at_row_before(norm, before)
        i, j = np.nonzero(compared & self._near(norm, old))
        for name in FIELDS:
            if not len(i):
                break
            column = table[name]
            near = self._near(column[i, j], column[i, before[i, j]])
            i, j = i[near], j[near]
        same = np.zeros_like(compared)
        same[i, j] = True
        return same, compared

    def _near(self, new: Floats, old: Floats) -> Bools:
        """Whether each value equals the one before it; NaN equals NaN."""
        if self.rtol == self.atol == 0:
            exactly: Bools = (new == old) | (np.isnan(new) & np.isnan(old))
            return exactly
        return np.isclose(new, old, self.rtol, self.atol, equal_nan=True)

    def _values_differ(self, table: Table, fires: Bools) -> Bools:
        """Compare the values at a step and at the first of its streak, if captured."""
        result = np.zeros_like(fires)
        for i in np.flatnonzero(fires.any(axis=1)).tolist():
            valued = np.isin(table.steps, table.value_steps(table.names[i]))
            rows = np.flatnonzero(table.present[i])
            new = np.flatnonzero(fires[i] & valued)
            old = rows[np.searchsorted(rows, new) - (self.num_steps - 1)]
            for j, first in zip(new, old, strict=True):
                if valued[first]:
                    result[i, j] = not self._equal(table, i, int(first), int(j))
        return result

    def _equal(self, table: Table, i: int, *columns: int) -> bool:
        """Whether a tensor has the same values at two steps; None: not captured."""
        old, new = (table.value(table.names[i], int(table.steps[j])) for j in columns)
        if new is None or old is None or new.shape != old.shape:
            return True
        if self.rtol == self.atol == 0:
            return new.tobytes() == old.tobytes()
        a, b = new.astype(np.float64), old.astype(np.float64)
        return bool(np.allclose(a, b, self.rtol, self.atol, equal_nan=True))


def _trained(table: Table, chosen: NDArray[np.intp]) -> Bools:
    """Where a row is of no parameter, or its parameter has a gradient to follow.

    None is left where the training has arrived: LBFGS stays at the minimum it found.
    """
    index = {name: i for i, name in enumerate(table.names)}
    result = np.ones((len(chosen), len(table.steps)), dtype=bool)
    for row, i in enumerate(chosen.tolist()):
        if table.roles[i] in {"weight", "bias"}:
            gradient = index.get(GRADIENT + table.names[i])
            if gradient is None:
                result[row] = False
                continue
            weights, norms = table["l2"][[i, gradient]]
            first = norms[table.present[gradient] & (table.ordinal[gradient] == 1)]
            began = float(first[0]) if len(first) else 0.0
            arrived = (norms <= NEXT_TO_NOTHING * weights) & (norms < FALLEN * began)
            result[row] = table.present[gradient] & ~arrived
    return result


def _leave_out_absent(window: Window, table: Table, trained: Bools) -> None:
    """The parameters to judge: NotInOptimizer judges those in no optimizer."""
    for model_info, steps in model_info_of_steps(window, table):
        if model_info is None or not model_info.complete:
            continue
        known = [parameter_of(model_info, name) for name in table.names]
        absent = [p is not None and p.optimizer is None for p in known]
        trained[np.flatnonzero(absent), steps] = False


def _row_before(table: Table) -> NDArray[np.intp]:
    """The column of the row before each row; -1: there is none."""
    at = np.arange(len(table.steps))
    last = np.maximum.accumulate(np.where(table.present, at, -1), axis=1)
    before = np.full_like(last, -1)
    before[:, 1:] = last[:, :-1]
    return before


def _at_row_before(values: NDArray[Value], before: NDArray[np.intp]) -> NDArray[Value]:
    """The value at the row before each row; arbitrary where there is none."""
    result = np.empty_like(values)
    result[:, :1], result[:, 1:] = values[:, :1], values[:, :-1]
    # It is nearly always the previous column.
    i, j = np.nonzero(before != np.arange(values.shape[1]) - 1)
    result[i, j] = values[i, before[i, j]]
    return result
