"""UnchangedTensor: tensors that never change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import affected, number, plural
from tdbg.modes import TRAINING
from tdbg.rules.builtin.tensors.tensor_rule import TensorRule
from tdbg.rules.builtin.weights.zero_learning_rate import RATE
from tdbg.rules.columns import GRADIENT, UPDATE, model_info_of_steps, parameter_of
from tdbg.rules.registry import register
from tdbg.rules.rule import built_in, check_number
from tdbg.rules.table import streak_spans
from tdbg.rules.window import (
    LASTING,
    OK,
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

if TYPE_CHECKING:
    from tdbg.rules.vocabulary import Vocabulary

__all__ = ["UnchangedTensor"]

Value = TypeVar("Value", bound=np.generic)

# A training has converged when the gradient's norm is this share of the weight's, and
# this share of the first gradient's.
NEXT_TO_NOTHING, FALLEN = 1e-5, 1e-2
# Elements are all of one size if their L2 norm says so within this, relatively.
ROUNDING = 1e-6
NO_UPDATE = (
    "Check that the optimizer has these parameters, that its learning rate is not "
    "zero, and that updates are not below the precision of the weights (0.4% in "
    "bfloat16)."
)


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedTensor(TensorRule):
    """Report tensors that stay the same over several recorded steps.

    All fields of the row must be equal, and the values where the hook captured them.
    The rule judges a weight or bias only at steps with a gradient, so that it does not
    report frozen parameters, and only while that gradient is not next to nothing, as at
    the end of a training by LBFGS.  It also judges weights whose optimizer steps while
    no parameter gets a gradient.  A weight that an update moved may have come back by
    the next recorded step, unless that is the next step.  What explains why a weight
    stands still makes the finding an info: a gradient that is exactly zero or has
    become small, or a clamp.

    Args:
        num_steps: Number of recorded steps that must be equal.
        rtol: Relative difference that counts as equal.
        atol: Absolute difference that counts as equal.
        collections: Collections to look in.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    severities = (Severity.INFO, Severity.WARNING)
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
        """Rows of the collections, and of gradients, updates and learning rates."""
        requested = built_in(self.collections)
        if requested & {"weights", "biases"}:
            requested |= {"gradients", "updates", "scalars"}
        return with_beginning(Needs(collections=requested))

    @property
    def lookback(self) -> int:
        """The rows to compare a new one with."""
        return rows_of_lasting(self.num_steps)

    @property
    def head_rows(self) -> int:
        """The first gradient, to compare later ones with."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select the tensors to judge, gradients, updates, and learning rates."""
        is_witness = tensor.role in {"gradient", "update"}
        is_witness = is_witness or RATE.match(tensor.name) is not None
        return is_witness or self.is_named(tensor)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Compare each row with the one before it."""
        for table in window.tables():
            chosen = self._judged(table)
            if len(chosen):
                gradients = _gradients_of(table, chosen)
                judged = table.select(chosen)
                trained = ~gradients.has_arrived(judged)
                _leave_out_untrained(window, table, judged, trained)
                without = self._without_gradients(window, table, judged)
                yield self._judge(judged, gradients, trained | without, without)

    def _judged(self, table: Table) -> NDArray[np.intp]:
        """Return the tensors to judge; the others only serve to judge parameters."""
        if self.tensor_regex is None:
            # The answer is the same for all gradients, and there are many.
            every = {
                role: self.is_named(TensorInfo(name="", role=role))
                for role in ("gradient", "update")
            }
            judged = [
                every[role] if role in every else self._is_judged(name, role)
                for name, role in zip(table.names, table.roles, strict=True)
            ]
        else:
            judged = list(map(self._is_judged, table.names, table.roles))
        return np.flatnonzero(judged)

    def _is_judged(self, name: str, role: str) -> bool:
        return self.is_named(TensorInfo(name=name, role=role))

    def _without_gradients(self, window: Window, table: Table, judged: Table) -> Bools:
        """Find the steps at which an optimizer stepped without any gradient."""
        result = np.zeros(judged.present.shape, dtype=bool)
        if table.mode not in TRAINING:
            return result
        gradients = [role == "gradient" for role in table.roles]
        absent = np.logical_not(table.present[gradients].any(axis=0))
        absent &= self._optimizer_stepped(table)
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

    def _optimizer_stepped(self, table: Table) -> Bools:
        """Find the steps shortly before which an optimizer stepped.

        Its learning rate tells, which is recorded at some of its steps.  A forward pass
        in training mode without a gradient, such as one that draws samples, ends a
        step, too.  Where no rate was ever recorded, nothing tells them apart.
        """
        rates = [RATE.match(name) is not None for name in table.names]
        steps = table.steps
        if not any(rates):
            return np.ones(len(steps), dtype=bool)
        rated = table.present[rates].any(axis=0)
        latest = np.maximum.accumulate(np.where(rated, steps, -1))
        earlier = np.maximum(np.arange(len(steps)) - self.num_steps + 2, 0)
        return np.asarray(latest >= np.minimum(steps - LASTING + 1, steps[earlier]))

    def _judge(
        self, table: Table, gradients: _Gradients, trained: Bools, without: Bools
    ) -> Evaluation:
        # A skipped step leaves the weights as they are, by design.
        known = table.known & trained & ~table.skipped[np.newaxis, :]
        # Tensors full of NaN stay so; ExplodingTensor reports them.
        known &= (table.not_finite < table["count"]) | (table["count"] == 0)
        before = _row_before(table)
        same, compared = self._same_as_before(table, known, before)
        # A weight that goes to and fro is the same at every second step.
        is_next = table.steps - table.steps[before] == 1
        same &= is_next | ~_at_row_before(gradients.moves, before)
        streak = table.streak(same, known)
        fires = streak >= self.num_steps - 1
        fires &= streak_spans(table.steps, streak, table.steps[before]) >= LASTING
        fires[:, : table.start] = False
        # If gradients were not captured, changes of other parameters show them.
        fires &= ~(without & (without & compared & ~same).any(axis=0))
        differs = self._values_differ(table, fires)
        fires &= ~differs
        same &= ~differs
        # Only a weight that others leave behind is held by a clamp.
        is_held = _is_of_one_size(table) & (known & compared & ~same).any(axis=0)
        # The gradient before the last update may have been zero, and this one not.
        is_zero = gradients.is_zero | _at_row_before(gradients.is_zero, before)
        is_explained = is_held | is_zero | gradients.has_fallen
        severities = np.where(fires, int(Severity.WARNING), OK)
        severities[fires & is_explained & ~without] = Severity.INFO

        def describe(i: int, j: int) -> Description:
            unchanged = int(np.count_nonzero(fires[:, j]))
            judged = int(np.count_nonzero(known[:, j]))
            within = f" within rtol {self.rtol:g} and atol {self.atol:g}"
            is_exact = self.rtol == self.atol == 0
            why = ""
            if severities[i, j] == Severity.INFO:
                why = _IS_HELD
                if is_zero[i, j]:
                    why = _NO_SLOPE
                elif gradients.has_fallen[i, j]:
                    why = _LITTLE_SLOPE
            return Description(
                message=(
                    "The training does not change this tensor: it was "
                    f"{'exactly ' if is_exact else ''}the same at "
                    f"{plural(self.num_steps, 'recorded step')} in a row"
                    f"{'' if is_exact else within} (mean "
                    f"{number(table['mean'][i, j], 6)}, L2 norm "
                    f"{number(table['l2'][i, j], 6)}). "
                    f"{affected(unchanged, judged, 'tensor')}{why}"
                ),
                value=0.0,
                threshold=self.rtol,
                advice=_no_gradient if without[i, j] else NO_UPDATE,
            )

        return table.judge(severities, describe, known & compared & (fires | ~same))

    def _same_as_before(
        self, table: Table, known: Bools, before: NDArray[np.intp]
    ) -> tuple[Bools, Bools]:
        """Return whether each row equals the previous one, and whether there is one."""
        at = np.arange(len(table.steps))
        broken = ~table.usable | table.skipped
        wall = np.maximum.accumulate(np.where(broken, at, -1))
        compared = known & (before > wall)
        compared &= _at_row_before(known, before)
        # The table keeps the first row for longer than later ones.
        compared &= _at_row_before(table.ordinal, before) == table.ordinal - 1
        # Compare norms first: they nearly always differ, which saves reading other
        # fields.
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
        """Return whether each value equals the previous one; NaN equals NaN."""
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
        """Return whether a tensor's values are equal at two steps; None: unknown."""
        old, new = (table.value(table.names[i], int(table.steps[j])) for j in columns)
        if new is None or old is None or new.shape != old.shape:
            return True
        if self.rtol == self.atol == 0:
            return new.tobytes() == old.tobytes()
        a, b = new.astype(np.float64), old.astype(np.float64)
        return bool(np.allclose(a, b, self.rtol, self.atol, equal_nan=True))


_NO_SLOPE = (
    " Its gradient is exactly zero, as that of an expert without tokens, so that "
    "nothing would change it."
)
_LITTLE_SLOPE = (
    " Its gradient is below 1% of its first one: it may have arrived where it can get."
)
_IS_HELD = (
    " All its elements are of one size, as at the bounds of a clamp, and other tensors "
    "do change."
)


@dataclass(frozen=True, slots=True)
class _Gradients:
    """The L2 norms of the gradients of judged tensors.

    Attributes:
        norms: Tensors x steps; NaN: no gradient, or no parameter.
        first: Of each tensor in the training; NaN: it is too far back.
        is_parameter: Whether a tensor should have a gradient.
        moves: Where an update is there, and has moved the tensor.
    """

    norms: Floats
    first: Floats
    is_parameter: Bools
    moves: Bools

    @property
    def is_zero(self) -> Bools:
        """Where a gradient is there, and exactly zero."""
        zero: Bools = self.norms == 0
        return zero

    @property
    def has_fallen(self) -> Bools:
        """Where a gradient has become small since the training began."""
        fallen: Bools = self.norms < FALLEN * self.first[:, np.newaxis]
        return fallen

    def has_arrived(self, table: Table) -> Bools:
        """Return where a parameter has no gradient to follow, or none is left.

        None is left once the training has converged: LBFGS stays at the minimum it
        found.
        """
        is_nothing = self.norms <= NEXT_TO_NOTHING * table["l2"]
        arrived: Bools = np.isnan(self.norms) | (is_nothing & self.has_fallen)
        return arrived & self.is_parameter[:, np.newaxis]


def _gradients_of(table: Table, chosen: NDArray[np.intp]) -> _Gradients:
    index = {name: i for i, name in enumerate(table.names)}
    norms = np.full((len(chosen), len(table.steps)), np.nan)
    first = np.full(len(chosen), np.nan)
    moves = np.zeros(norms.shape, dtype=bool)
    parameters = [table.roles[i] in {"weight", "bias"} for i in chosen.tolist()]
    for row, i in enumerate(chosen.tolist()):
        gradient = index.get(GRADIENT + table.names[i]) if parameters[row] else None
        if gradient is not None:
            present = table.present[gradient]
            norms[row, present] = table["l2"][gradient, present]
            began = norms[row, present & (table.ordinal[gradient] == 1)]
            first[row] = began[0] if len(began) else np.nan
        update = index.get(UPDATE + table.names[i]) if parameters[row] else None
        if update is not None:
            moves[row] = table.present[update] & (table["l2"][update] > 0)
    return _Gradients(norms, first, np.array(parameters, dtype=bool), moves)


def _is_of_one_size(table: Table) -> Bools:
    """Find tensors whose elements all have one magnitude, as at bounds of a clamp."""
    size = np.maximum(np.abs(table["min"]), np.abs(table["max"]))
    wide = np.sqrt(table["count"]) * size
    return np.asarray(np.abs(table["l2"] - wide) <= ROUNDING * wide)


def _no_gradient(words: Vocabulary) -> str:
    return (
        f"The optimizer steps, but no parameter has a gradient. {words.backward_check}"
    )


def _leave_out_untrained(
    window: Window, table: Table, judged: Table, trained: Bools
) -> None:
    """Leave out parameters where no optimizer means to train them.

    NotInOptimizer judges those that none has.  Where only other optimizers step, such
    as one that calibrates what is trained, the others' parameters stay on purpose.
    """
    stepped = _steps_by_optimizer(table)
    any_stepped = np.zeros(len(table.steps), dtype=bool)
    for each in stepped.values():
        any_stepped |= each
    for model_info, steps in model_info_of_steps(window, judged):
        if model_info is None or not model_info.complete:
            continue
        for i, name in enumerate(judged.names):
            parameter = parameter_of(model_info, name)
            if parameter is None:
                continue
            if parameter.optimizer is None:
                trained[i, steps] = False
            elif parameter.optimizer in stepped and len(stepped) > 1:
                own = stepped[parameter.optimizer][steps]
                trained[i, steps] &= own | ~any_stepped[steps]


def _steps_by_optimizer(table: Table) -> dict[int, Bools]:
    """Return the steps of each optimizer, by its learning rates."""
    found: dict[int, Bools] = {}
    for i, name in enumerate(table.names):
        if (match := RATE.match(name)) is not None:
            number = int((match[1] or "_1")[1:]) - 1
            found[number] = found.get(number, False) | table.present[i]
    return found


def _row_before(table: Table) -> NDArray[np.intp]:
    """Return the column of the row before each row; -1: there is none."""
    at = np.arange(len(table.steps))
    last = np.maximum.accumulate(np.where(table.present, at, -1), axis=1)
    before = np.full_like(last, -1)
    before[:, 1:] = last[:, :-1]
    return before


def _at_row_before(values: NDArray[Value], before: NDArray[np.intp]) -> NDArray[Value]:
    """Return the value at the row before each row; arbitrary if there is none."""
    result = np.empty_like(values)
    result[:, :1], result[:, 1:] = values[:, :1], values[:, :-1]
    # That row is nearly always in the previous column.
    i, j = np.nonzero(before != np.arange(values.shape[1]) - 1)
    result[i, j] = values[i, before[i, j]]
    return result
