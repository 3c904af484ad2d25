"""Goes over the steps that two runs share, and says how far each tensor is apart there.

All that is said of where runs part comes from here: what ``diff`` says, what the
dashboard and the report show, and how large the noise between two runs is.

Thread safety: one thread; the trials' locks are held inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.compare.deviation import (
    ROW_MEASURES,
    Deviation,
    of_numbers,
    of_rows,
    of_values,
    sizes_of,
)
from tdbg.compare.execution import ACTIVATIONS, GRADIENTS, ExecutionOrder, call_of
from tdbg.compare.layouts import DimensionOrder, layout_between, permutations_between
from tdbg.compare.matching import MatchedSteps
from tdbg.config.collections import Role
from tdbg.modes import ModeKeys
from tdbg.trial import ScalarSeries, Trial

__all__ = ["Cell", "RunScan", "StepBlock"]

# Rows that are compared at once: 200 MB of float64 while they are.
PART_CELLS = 1 << 18
LEAST_STEPS = 16
# A tensor is judged as if it were at least this share as large as the largest of its
# kind: what cancels to nothing is as uncertain as what it is the sum of.
SHARE_OF_LARGEST = 0.03
# What ranks have each a part of; their samples may come in another order.
OF_SAMPLES = frozenset(
    {Role.INPUT, Role.OUTPUT, Role.MODEL_INPUT, Role.PREDICTION, Role.LABEL, Role.LOSS}
    | {Role.OUTPUT_GRADIENT, Role.GRADIENT_LOCAL}
)
OF_BACKWARD = GRADIENTS | {Role.OUTPUT_GRADIENT, Role.OPTIMIZER_STATE, Role.UPDATE}
# Of a loss of parts, what is that of the whole.
OF_LOSS = ("mean", "NaN and Inf")
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cell:
    """How a tensor was compared at a step where its values were.

    Attributes:
        deviation: How far the values are apart.
        layout: How they correspond; None if their shapes do not.
        shapes: Of both.
    """

    deviation: Deviation
    layout: DimensionOrder | None
    shapes: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class StepBlock:
    """Some matched steps, ascending.

    Attributes:
        modes: The mode, as each run has it.
        places: int64 (m,): where the steps stand.
        present: (n, m): where both runs have the tensor.
        size: float64 (n, m): the deviation, by values where there are any.
        measure: (n, m): by which of ``ROW_MEASURES`` the rows are furthest apart.
        rms: float64 (2, n, m): root mean squares in both runs.
        floor: float64 (n, m): the root mean square that is taken for smaller ones.
        values: By (tensor, step) within the block what was compared by values.
    """

    modes: tuple[ModeKeys, ModeKeys]
    places: NDArray[np.int64]
    present: Bools
    size: Floats
    measure: NDArray[np.intp]
    rms: Floats
    floor: Floats
    values: dict[tuple[int, int], Cell] = field(default_factory=dict)


class RunScan:
    """Two runs, their tensors in the order of execution, and the steps they share."""

    def __init__(
        self,
        trials: tuple[Trial, Trial],
        others: Mapping[str, str],
        execution: ExecutionOrder,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.trials, self.execution = trials, execution
        self.names = tuple(name for name in execution.order if name in others)
        self.others = [others[name] for name in self.names]
        self.roles = [execution.roles[name] for name in self.names]
        #: Whether values are read; who has seen enough says no.
        self.reads_values = True
        #: Whether both runs have the same samples, in whatever parts.
        self.has_samples = _have_same_samples(trials)
        self._check = check
        self._layouts: dict[int, DimensionOrder] = {}
        self._values: dict[tuple[int, int], frozenset[int]] = {}
        self._groups = _groups(self.names, self.roles)
        self._siblings = _siblings(self.names, self.roles, execution.modules)
        self._of_samples = np.array([role in OF_SAMPLES for role in self.roles], bool)
        self._of_backward = np.array([role in OF_BACKWARD for role in self.roles], bool)
        self._loss_inputs = _loss_inputs(self.names, self.roles)

    def blocks(self, matched: MatchedSteps) -> Iterator[StepBlock]:
        """Compare matched steps, some at a time."""
        scalars = self._of_scalars(matched)
        size = max(LEAST_STEPS, PART_CELLS // max(1, len(self.names)))
        for at in range(0, len(matched), size):
            yield self._block(matched, slice(at, at + size), scalars)

    def _block(
        self, matched: MatchedSteps, part: slice, scalars: Mapping[int, Floats]
    ) -> StepBlock:
        steps = matched.steps[0][part], matched.steps[1][part]
        one = self.trials[0].columns(self.names, steps[0])
        if self._check is not None:
            self._check()
        other = self.trials[1].columns(self.others, steps[1])
        if self._check is not None:
            self._check()
        rms = np.stack((sizes_of(one), sizes_of(other)))
        floor = self._floor(np.nan_to_num(np.fmax(rms[0], rms[1])))
        are_merged, are_skipped = self._are_merged(steps), self._are_skipped(steps)
        found = of_rows(one, other, floor)
        self._leave_out(found, are_merged)
        present = one.present & other.present
        measure = found.argmax(axis=0)
        block = StepBlock(
            matched.modes,
            matched.places[part],
            present,
            found.max(axis=0),
            measure,
            rms,
            floor,
        )
        for i, deviation in scalars.items():
            block.present[i] = ~np.isnan(deviation[part])
            block.size[i] = np.nan_to_num(deviation[part], posinf=np.inf)
        if self.reads_values:
            self._read_values(block, steps, floor, are_merged)
        block.present[np.ix_(self._of_backward, are_skipped)] = False
        if not self.has_samples:
            block.present[self._of_samples] = False
        return block

    # --- Rows ---------------------------------------------------------------

    def _leave_out(self, found: Floats, are_merged: Bools) -> None:
        """Leave out what differs for other reasons than what was computed."""
        measures = {name: i for i, name in enumerate(ROW_MEASURES)}
        for i, role in enumerate(self.roles):
            if role is Role.UPDATE:
                # Adaptive optimizers make steps of one size from gradients of any:
                # where these are noise, the signs are, too.
                for measure in range(1, len(ROW_MEASURES)):
                    found[measure, i] = 0.0
            elif role is Role.LOSS:
                # The mean of ranks and of micro-batches is the loss of the batch.
                for name, measure in measures.items():
                    if name not in OF_LOSS:
                        found[measure, i, are_merged] = 0.0
            elif role in OF_SAMPLES:
                found[measures["elements"], i, are_merged] = 0.0

    def _are_merged(self, steps: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Bools:
        """At which steps samples lie in other parts: ranks, or micro-batches."""
        parts = []
        for trial, at in zip(self.trials, steps, strict=True):
            table = trial.step_table(int(at[0])) if len(at) else trial.step_table()
            rows = np.searchsorted(table["step"], at)
            workers = np.full(len(at), len(trial.workers()))
            parts.append((workers, table["micro_batches"][rows]))
        (a, b), (c, d) = parts
        different: Bools = (a != c) | (b != d)
        return different

    def _are_skipped(self, steps: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Bools:
        """At which steps a gradient scaler has skipped the update of either run.

        Its scale has then made Inf of gradients, as it may in 16 bits.
        """
        are_skipped = np.zeros(len(steps[0]), bool)
        for trial, at in zip(self.trials, steps, strict=True):
            table = trial.step_table(int(at[0])) if len(at) else trial.step_table()
            are_skipped |= table["skipped"][np.searchsorted(table["step"], at)]
        return are_skipped

    def _floor(self, rms: Floats) -> Floats:
        """How large tensors are at least taken to be: (n, m)."""
        floor = np.zeros_like(rms)
        for group in self._groups:
            floor[group] = SHARE_OF_LARGEST * rms[group].max(axis=0, initial=0.0)
        for group in self._siblings:
            floor[group] = np.fmax(floor[group], rms[group].max(axis=0))
        for loss, inputs in self._loss_inputs.items():
            floor[loss] = rms[inputs].max(axis=0, initial=0.0)
        return floor

    # --- Scalars ------------------------------------------------------------

    def _of_scalars(self, matched: MatchedSteps) -> dict[int, Floats]:
        """By tensor the deviations of scalars at all steps; NaN where one has none."""
        one, other = (trial.scalars() for trial in self.trials)
        found: dict[int, Floats] = {}
        for i, (name, of_other) in enumerate(zip(self.names, self.others, strict=True)):
            if name in one and of_other in other:
                a = _at(one[name], matched.steps[0])
                b = _at(other[of_other], matched.steps[1])
                found[i] = np.where(a[1] & b[1], of_numbers(a[0], b[0]), np.nan)
        return found

    # --- Values -------------------------------------------------------------

    def _read_values(
        self,
        block: StepBlock,
        steps: tuple[NDArray[np.int64], NDArray[np.int64]],
        floor: Floats,
        are_merged: Bools,
    ) -> None:
        for i, role in enumerate(self.roles):
            if role in (Role.SCALAR, Role.UPDATE, Role.UNIT_SUMMARY):
                continue
            have = self._with_values(i)
            if not all(have):
                continue
            for j, (a, b) in enumerate(zip(*(s.tolist() for s in steps), strict=True)):
                if a not in have[0] or b not in have[1]:
                    continue
                if are_merged[j] and role in OF_SAMPLES:
                    continue
                cell = self._cell(i, (a, b), float(floor[i, j]))
                block.values[i, j] = cell
                block.size[i, j] = cell.deviation.size
                block.present[i, j] = True

    def _with_values(self, i: int) -> tuple[frozenset[int], frozenset[int]]:
        """The global steps at which each run has the values of a tensor."""
        return self._steps_of(0, i), self._steps_of(1, i)

    def _steps_of(self, run: int, i: int) -> frozenset[int]:
        key = run, i
        if key not in self._values:
            name = (self.names, self.others)[run][i]
            found = self.trials[run].tensor(name).steps(ModeKeys.GLOBAL, "values")
            self._values[key] = frozenset(found)
        return self._values[key]

    def _cell(self, i: int, steps: tuple[int, int], floor: float) -> Cell:
        one, other = (
            trial.tensor(name).value(step, ModeKeys.GLOBAL)
            for trial, name, step in zip(
                self.trials, (self.names[i], self.others[i]), steps, strict=True
            )
        )
        shapes = one.shape, other.shape
        layout = layout_between(*shapes)
        if layout is None:
            return Cell(Deviation(np.inf, np.inf, None), None, shapes)
        if layout.is_transposed:
            return self._transposed(i, one, other, floor)
        found = of_values(one, layout.applied(other, one.shape), floor)
        return Cell(found, layout, shapes)

    def _transposed(
        self, i: int, one: NDArray[Any], other: NDArray[Any], floor: float
    ) -> Cell:
        """Compare in the order of dimensions in which the values are nearest."""
        known = self._layouts.get(i)
        if known is None or known.axes is None:
            tried = {
                axes: of_values(one, other.transpose(axes), floor).size
                for axes in permutations_between(one.shape, other.shape)
            }
            known = DimensionOrder(min(tried, key=lambda axes: tried[axes]))
            self._layouts[i] = known
        found = of_values(one, known.applied(other, one.shape), floor)
        return Cell(found, known, (one.shape, other.shape))

    def turned(self, i: int, steps: tuple[int, int]) -> Deviation | None:
        """How far a square matrix is from the other run's transposed one."""
        one, other = (
            trial.tensor(name).value(step, ModeKeys.GLOBAL)
            for trial, name, step in zip(
                self.trials, (self.names[i], self.others[i]), steps, strict=True
            )
        )
        if one.shape != other.shape or one.shape[0] != one.shape[1]:
            return None
        return of_values(one, other.T)

    def number(self, run: int, i: int, step: int) -> float:
        """The value of a scalar of a run at a global step."""
        name = (self.names, self.others)[run][i]
        series = self.trials[run].scalars()[name]
        values, _ = _at(series, np.array([step], np.int64))
        return float(values[0])


def _have_same_samples(trials: tuple[Trial, Trial]) -> bool:
    """Whether all ranks have written, or the same ranks of as many."""
    ranks = []
    for trial in trials:
        told = trial.configuration()
        n = len(trial.workers())
        ranks.append((told.get("world_size") or n, told.get("workers") or [*range(n)]))
    return ranks[0] == ranks[1] or all(len(each) >= size for size, each in ranks)


def _groups(names: Sequence[str], roles: Sequence[Role]) -> list[NDArray[np.intp]]:
    """Tensors that are of one kind: gradients, or optimizer states of one name."""
    found: dict[str, list[int]] = defaultdict(list)
    for i, (name, role) in enumerate(zip(names, roles, strict=True)):
        if kind := _kind(name, role):
            found[kind].append(i)
    return [np.array(each) for each in found.values()]


def _siblings(
    names: Sequence[str], roles: Sequence[Role], modules: Mapping[str, str]
) -> list[NDArray[np.intp]]:
    """Tensors of one kind and one module, as sums of one gradient over samples.

    That of a bias before a normalization cancels to nothing but rounding.
    """
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, (name, role) in enumerate(zip(names, roles, strict=True)):
        if kind := _kind(name, role):
            found[kind, modules[name]].append(i)
    return [np.array(each) for each in found.values() if len(each) > 1]


def _kind(name: str, role: Role) -> str:
    """Name the kind of a gradient or of an optimizer's state; nothing else has one."""
    if role is Role.OPTIMIZER_STATE:
        return "/".join(name.split("/")[:2])
    return role.name if role in GRADIENTS else ""


def _loss_inputs(
    names: Sequence[str], roles: Sequence[Role]
) -> dict[int, NDArray[np.intp]]:
    """By loss what it is computed of: its rounding errors are relative to that."""
    found: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(names):
        if roles[i] in ACTIVATIONS and roles[i] not in (Role.LABEL, Role.LOSS):
            found[call_of(name)[0]].append(i)
    return {
        i: np.array(found[call_of(name)[0]])
        for i, name in enumerate(names)
        if roles[i] is Role.LOSS and call_of(name)[0] in found
    }


def _at(series: ScalarSeries, steps: NDArray[np.int64]) -> tuple[Floats, Bools]:
    """The last value of a scalar at each of *steps*, and where there is one."""
    known = np.asarray(series.steps, np.int64)
    if not len(known):
        return np.zeros(len(steps)), np.zeros(len(steps), bool)
    at = np.maximum(np.searchsorted(known, steps, side="right") - 1, 0)
    return np.asarray(series.values, np.float64)[at], known[at] == steps
