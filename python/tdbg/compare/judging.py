"""Which deviations between two runs are differences, and which tensor differs first.

Thread safety: one thread; the trials' locks are held inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.compare.deviation import ROW_MEASURES
from tdbg.compare.difference import DiffEvidence, TensorDifference
from tdbg.compare.execution import DATA, GRADIENTS, PARAMETERS, ancestors, is_setting
from tdbg.compare.layouts import DimensionOrder
from tdbg.compare.matching import MatchedSteps
from tdbg.compare.scan import Cell, RunScan, StepBlock
from tdbg.compare.tolerance import SMALL
from tdbg.config.collections import Role
from tdbg.config.tensor_names import GRADIENT, parameter_in
from tdbg.modes import ModeKeys
from tdbg.trial import TensorStatistics

__all__ = ["Judge", "Tolerances"]

#: Gives the tolerance of each tensor at each of some steps, (tensors, steps), from the
#: places of these and the numbers of updates before them.
Tolerances = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]

# An update says no more of a gradient than its sign where the optimizer is adaptive:
# rounding turns that of the smallest ones, and in 16 bits that of many.
LEAST_OF_UPDATE = 0.1
FINE = 2.0**-20
# From this relative difference on, a gradient is noise itself.
NOISE_OF_GRADIENT = 0.01
COMPUTED = frozenset(
    {Role.OUTPUT, Role.LOSS, Role.GRADIENT, Role.PREDICTION, Role.INPUT}
)
EVIDENCE = ("rms", "mean", "min", "max")
COUNTS = ("zero", "nan", "count")


@dataclass(slots=True, eq=False)
class _Step:
    """A step at which something is beyond its tolerance."""

    block: StepBlock
    at: int
    parted: NDArray[np.bool_]
    tolerance: NDArray[np.float64]
    steps: tuple[int, int]
    n_updates: int


class Judge:
    """Collects the differences of a scan, the earliest of each tensor.

    Args:
        scan: The runs.
        tolerances: What is no difference.
        modules: The class of each module by its path.
        explains: Whether differences that follow from rounding by a known way are left
            out: those of updates, and of parameters without an effect.  Measured noise
            has them in it.
        roundoff: The coarsest of both runs.
        n_updates: After how many updates rounding still can be judged; after none if no
            gradients are compared, as these may be nothing but rounding.
        are_transposed: Whether weights are transposed in one run, so that those whose
            values match transposed are no difference.
    """

    def __init__(
        self,
        scan: RunScan,
        tolerances: Tolerances,
        modules: Mapping[str, str],
        *,
        explains: bool = True,
        roundoff: float = 0.0,
        n_updates: int = 0,
        are_transposed: bool = False,
    ) -> None:
        self._scan, self._tolerances, self._modules = scan, tolerances, modules
        self._explains, self._are_transposed = explains, are_transposed
        self._least_of_update = LEAST_OF_UPDATE if roundoff < FINE else np.inf
        gradients = [i for i, role in enumerate(scan.roles) if role in GRADIENTS]
        self._gradients, self._noisy = gradients, set[int]()
        #: After more updates than these, nothing computed is judged.
        self.n_updates = n_updates if gradients or not explains else 0
        self._open = np.ones(len(scan.names), bool)
        self._computed = np.array([role in COMPUTED for role in scan.roles], bool)
        self._exact = np.array([
            role in DATA or is_setting(name)
            for name, role in zip(scan.names, scan.roles, strict=True)
        ], bool)  # fmt: skip
        self._index = {name: i for i, name in enumerate(scan.names)}
        self._outputs: dict[str, list[int]] = {}
        for i, name in enumerate(scan.names):
            if scan.roles[i] in (Role.OUTPUT, Role.LOSS):
                path = scan.execution.modules[name]
                self._outputs.setdefault(path, []).append(i)
        self.differences: list[TensorDifference] = []
        self.compared = np.zeros(len(scan.names), bool)
        self.by_values: set[int] = set()
        self.layouts: dict[int, DimensionOrder] = {}
        self.without_effect: dict[str, None] = {}

    def judge(
        self, matched: MatchedSteps, n_updates: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Go over the matched steps of a mode.

        Returns:
            (steps,): at which of them a deviation of anything could count, and at which
            of nothing that was computed, though both runs have something there.
        """
        at = 0
        judged, left_open = np.zeros((2, len(matched)), bool)
        for block in self._scan.blocks(matched):
            part = slice(at, at + len(block.places))
            tolerance = self._tolerances(block.places, n_updates[part])
            for i, role in enumerate(self._scan.roles):
                if role is Role.UPDATE and self._explains:
                    tolerance[i] = np.maximum(tolerance[i], self._least_of_update)
            if self._explains:
                self._limit(block, tolerance, n_updates[part])
            computed = block.present & ~self._exact[:, None]
            could = computed & np.isfinite(tolerance)
            left_open[part] = computed.any(axis=0) & ~could.any(axis=0)
            judged[part] = block.present.any(axis=0) & ~left_open[part]
            parted = block.present & (block.size > tolerance)
            self._note(block)
            for j in np.flatnonzero(
                (parted & self._open[:, None]).any(axis=0)
            ).tolist():
                steps = tuple(int(each[part][j]) for each in matched.steps)
                step = _Step(
                    block, j, parted[:, j], tolerance[:, j], (steps[0], steps[1]),
                    int(n_updates[part][j]),
                )  # fmt: skip
                self._judge_step(step)
            at += len(block.places)
            # What follows the first difference follows from it.
            self._scan.reads_values = not self.differences
        return judged, left_open

    def _limit(
        self,
        block: StepBlock,
        tolerance: NDArray[np.float64],
        n_updates: NDArray[np.int64],
    ) -> None:
        """Judge nothing that follows from gradients that are nothing but rounding.

        Of a bias before a normalization, for one: an adaptive optimizer makes a whole
        step of it, in each run another.
        """
        for i, is_noise in self._noise(block, tolerance):
            name = parameter_in(self._scan.names[i])
            parameter = self._index.get(name)
            if parameter is None:
                has_parted = is_noise
            else:
                beyond = block.size[parameter] > tolerance[parameter]
                has_parted = beyond & block.present[parameter]
                has_parted &= (i in self._noisy) | (np.cumsum(is_noise) > 0)
            self._noisy.add(i)
            for n in n_updates[has_parted].tolist()[:1]:
                self.n_updates = min(
                    self.n_updates, max(0, n - (parameter is not None))
                )
        tolerance[np.ix_(~self._exact, n_updates > self.n_updates)] = np.inf

    def _noise(
        self, block: StepBlock, tolerance: NDArray[np.float64]
    ) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Yield gradients that rounding makes another one, now or before, and where."""
        for i in self._gradients:
            rms = block.rms[:, i].max(axis=0)
            with np.errstate(invalid="ignore", divide="ignore"):
                own = block.size[i] * np.fmax(rms, block.floor[i]) / rms
            found = block.present[i] & (own > SMALL) & (block.size[i] <= tolerance[i])
            if i in self._noisy or found.any():
                yield i, found

    def _note(self, block: StepBlock) -> None:
        self.compared |= block.present.any(axis=1)
        for (i, _), cell in block.values.items():
            self.by_values.add(i)
            if cell.layout is not None and cell.layout != DimensionOrder():
                self.layouts[i] = cell.layout

    def _judge_step(self, step: _Step) -> None:
        for i in np.flatnonzero(step.parted & self._open).tolist():
            if self._explains and self._is_explained(i, step):
                continue
            found = self._difference(i, step)
            if found is not None:
                self.differences.append(found)
                self._open[i] = False

    # --- What follows from rounding -----------------------------------------

    def _is_explained(self, i: int, step: _Step) -> bool:
        role, name = self._scan.roles[i], self._scan.names[i]
        if role is Role.UPDATE:
            gradient = self._index.get(GRADIENT + parameter_in(name))
            return gradient is not None and self._is_noise(gradient, step)
        if role in PARAMETERS and step.n_updates:
            if self._has_effect(i, step):
                return False
            self.without_effect[name] = None
            return True
        return False

    def _is_noise(self, gradient: int, step: _Step) -> bool:
        """Whether a gradient differs that much that its updates tell nothing."""
        one, other = (float(each) for each in step.block.rms[:, gradient, step.at])
        return abs(one - other) > NOISE_OF_GRADIENT * max(one, other)

    def _has_effect(self, parameter: int, step: _Step) -> bool:
        """Whether what is computed of a parameter differs, too."""
        module = self._scan.execution.modules[self._scan.names[parameter]]
        for path in ancestors(module):
            here = [i for i in self._outputs.get(path, ()) if self._is_there(i, step)]
            if here:
                return self._differs(np.array(here), step)
        others = np.flatnonzero(self._computed)
        if not len(others):
            return True
        return self._differs(others, step)

    def _is_there(self, i: int, step: _Step) -> bool:
        return bool(step.block.present[i, step.at])

    def _differs(self, tensors: NDArray[np.intp], step: _Step) -> bool:
        return bool((step.parted[tensors] | ~self._open[tensors]).any())

    # --- What differs -------------------------------------------------------

    def _difference(self, i: int, step: _Step) -> TensorDifference | None:
        cell = step.block.values.get((i, step.at))
        note = self._note_of(i, step, cell)
        if note is None:
            return None
        name, execution = self._scan.names[i], self._scan.execution
        module = execution.modules[name]
        return TensorDifference(
            name=name,
            other_name=self._scan.others[i],
            role=self._scan.roles[i].name.lower(),
            module=module,
            module_class=self._modules.get(module, ""),
            mode=step.block.modes[0].name,
            step=int(step.block.places[step.at]),
            by=self._by(i, step, cell),
            deviation=float(step.block.size[i, step.at]),
            tolerance=float(step.tolerance[i]),
            note=note,
            evidence=() if self.differences else tuple(self._evidence(i, step, cell)),
        )

    def _by(self, i: int, step: _Step, cell: Cell | None) -> str:
        if cell is not None:
            return "values" if cell.layout is not None else "shape"
        if self._scan.roles[i] is Role.SCALAR:
            return "number"
        measure = ROW_MEASURES[step.block.measure[i, step.at]]
        return "shape" if measure == "elements" else "statistics"

    def _note_of(self, i: int, step: _Step, cell: Cell | None) -> str | None:
        """Return what to say of a difference; None if only the layout differs."""
        if cell is None:
            if self._scan.roles[i] is Role.SCALAR:
                return ""
            return f"by {ROW_MEASURES[step.block.measure[i, step.at]]}"
        if cell.layout is None:
            return f"shape {cell.shapes[0]} against {cell.shapes[1]}"
        if not np.isfinite(cell.deviation.size) and cell.deviation.norm > 1:
            return "NaN or Inf in one run alone"
        turned = self._scan.turned(i, step.steps) if len(cell.shapes[0]) == 2 else None
        if turned is None or turned.size > step.tolerance[i]:
            return ""
        if self._are_transposed:
            self.layouts[i] = DimensionOrder((1, 0))
            return None
        return "the values match transposed"

    def _evidence(
        self, i: int, step: _Step, cell: Cell | None
    ) -> Iterator[DiffEvidence]:
        """Numbers that show the first difference."""
        names = self._scan.names[i], self._scan.others[i]
        tensors = [
            trial.tensor(name)
            for trial, name in zip(self._scan.trials, names, strict=True)
        ]
        if self._scan.roles[i] is Role.SCALAR:
            one, other = (
                self._scan.number(run, i, step.steps[run]) for run in range(2)
            )
            yield DiffEvidence("value", one, other)
            return
        rows = [
            tensor.stats(at, ModeKeys.GLOBAL)
            for tensor, at in zip(tensors, step.steps, strict=True)
        ]
        yield from _statistics(rows[0], rows[1])
        index = None if cell is None else cell.deviation.index
        if cell is not None and index is not None and cell.layout is not None:
            a, b = (
                tensor.value(at, ModeKeys.GLOBAL)
                for tensor, at in zip(tensors, step.steps, strict=True)
            )
            b = cell.layout.applied(b, a.shape)
            yield DiffEvidence(
                f"element {list(index)}", float(a[index]), float(b[index])
            )


def _statistics(
    one: TensorStatistics, other: TensorStatistics
) -> Iterator[DiffEvidence]:
    for name in EVIDENCE:
        yield DiffEvidence(name, float(getattr(one, name)), float(getattr(other, name)))
    for name in COUNTS:
        a, b = getattr(one, name), getattr(other, name)
        if a != b:
            yield DiffEvidence(name, float(a), float(b))
