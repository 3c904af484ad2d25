"""Activations: ReLUs that have died, and units that are saturated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tdbg.findings import Severity
from tdbg.modes import ModeKeys
from tdbg.needs import Needs
from tdbg.rules._base import Rule, check_number, check_regex, finds
from tdbg.rules.columns import facts_of_steps
from tdbg.rules.registry import register
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Description,
    Judgement,
    TensorInfo,
    UnitTable,
    Window,
)

if TYPE_CHECKING:
    from tdbg.facts import Facts

__all__ = ["DeadRelu", "SaturatedActivation"]

Floats = NDArray[np.float64]

RELUS = frozenset({"ReLU", "ReLU6", "Threshold"})
SATURATING = frozenset({"Tanh", "Sigmoid", "Hardtanh", "Hardsigmoid"})
# What a summary is of, if not of an output.
GRADIENT = "gradient/"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRelu(Rule):
    """Report layers of ReLUs of which most are never active.

    Args:
        threshold_inactivity: A unit that is active for less than this percentage of
            the values it was given is dead.
        threshold_layer: A layer with more than this percentage of dead units is
            reported, as a warning.
        error_layer: As an error, if this percentage of units was never active.
        min_steps: Recorded steps to judge by, at least.
        min_samples: Values of each unit to judge by, at least; so many steps are
            taken together as are needed for it.
        max_steps: Recorded steps to judge by, at most.
        tensor_regex: Judge tensors of such names only.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    threshold_inactivity: float = 1.0
    threshold_layer: float = 50.0
    error_layer: float = 90.0
    min_steps: int = 3
    min_samples: int = 100
    max_steps: int = 20
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "threshold_inactivity", above=0.0, most=100.0)
        check_number(self, "threshold_layer", least=0.0, most=100.0)
        check_number(self, "error_layer", least=self.threshold_layer)
        check_number(self, "min_steps", least=1, whole=True)
        check_number(self, "min_samples", least=1, whole=True)
        check_number(self, "max_steps", least=self.min_steps, whole=True)
        check_regex(self, "tensor_regex")

    @property
    def needs(self) -> Needs:
        """The unit summaries of ReLUs."""
        return Needs(
            collections=frozenset({"outputs"}),
            modules=RELUS,
            statistics=False,
            unit_summaries=True,
        )

    @property
    def look_back(self) -> int:
        """The batches that are taken together."""
        return self.max_steps - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Unit summaries of outputs."""
        return _is_summary(tensor, self.tensor_regex)

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge every layer by its last batches of training."""
        for table in window.units(ModeKeys.TRAIN, ModeKeys.GLOBAL):
            yield from _where(window, table, self._applies, self._judge)

    @staticmethod
    def _applies(facts: Facts | None, name: str) -> bool:
        module = None if facts is None else facts.module_of(name)
        return module is None or module in RELUS

    def _judge(self, table: UnitTable) -> Judgement:
        n_new = len(table.steps) - table.start
        recent = _recent(table, table.active, self)
        share = recent.part / np.maximum(recent.count, 1.0)
        below = (share < self.threshold_inactivity / 100.0) & (recent.count > 0)
        never = (recent.part == 0) & (recent.count > 0)
        dead, gone = np.full(n_new, np.nan), np.full(n_new, np.nan)
        dead[recent.at] = 100.0 * below.mean(axis=1)
        gone[recent.at] = 100.0 * never.mean(axis=1)
        taken = recent.taken
        levels = np.full(n_new, HEALTHY, dtype=np.int8)
        levels[dead > self.threshold_layer] = Severity.WARNING
        severe = (dead > self.threshold_layer) & (gone >= self.error_layer)
        levels[severe] = Severity.ERROR
        levels[np.isnan(dead)] = UNKNOWN
        n_units = table.active.shape[1]

        def describe(_: int, j: int) -> Description:
            n_dead = round(dead[j] * n_units / 100.0)
            n_gone = round(gone[j] * n_units / 100.0)
            return Description(
                message=(
                    f"{n_dead} of {n_units} units ({dead[j]:.0f} %) are dead: active "
                    f"for less than {self.threshold_inactivity:g} % of their values "
                    f"over the last {taken[j]} recorded steps, {n_gone} of them never"
                ),
                value=float(dead[j]),
                threshold=self.threshold_layer,
                advice=(
                    "dead units get no gradient and do not come back: restart with a "
                    "lower learning rate, initialize biases at zero and weights by "
                    "He, normalize before the activation, or use LeakyReLU or GELU"
                ),
            )

        return Judgement(
            names=(table.name,),
            steps=table.steps[table.start :],
            mode=table.mode,
            levels=levels[np.newaxis, :],
            describe=describe,
        )


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class SaturatedActivation(Rule):
    """Report layers of tanh or sigmoid of which most units are saturated.

    Their derivative is next to nothing, so that little of the gradient passes.
    Activations behind the last weights of a model are left out: there it is the
    answer that is sure.

    Args:
        threshold_activity: A unit of which less than this percentage of values is
            within the range where the derivative is not next to nothing is saturated.
        threshold_layer: A layer with more than this percentage of saturated units is
            reported.
        min_steps: Recorded steps to judge by, at least.
        min_samples: Values of each unit to judge by, at least; so many steps are
            taken together as are needed for it.
        max_steps: Recorded steps to judge by, at most.
        tensor_regex: Judge tensors of such names only.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    threshold_activity: float = 10.0
    threshold_layer: float = 50.0
    min_steps: int = 3
    min_samples: int = 100
    max_steps: int = 20
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "threshold_activity", above=0.0, most=100.0)
        check_number(self, "threshold_layer", least=0.0, most=100.0)
        check_number(self, "min_steps", least=1, whole=True)
        check_number(self, "min_samples", least=1, whole=True)
        check_number(self, "max_steps", least=self.min_steps, whole=True)
        check_regex(self, "tensor_regex")

    @property
    def needs(self) -> Needs:
        """The unit summaries of modules that saturate."""
        return Needs(
            collections=frozenset({"outputs"}),
            modules=SATURATING,
            statistics=False,
            unit_summaries=True,
        )

    @property
    def look_back(self) -> int:
        """The batches that are taken together."""
        return self.max_steps - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Unit summaries of outputs."""
        return _is_summary(tensor, self.tensor_regex)

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge every layer by its last batches of training."""
        for table in window.units(ModeKeys.TRAIN, ModeKeys.GLOBAL):
            yield from _where(window, table, self._applies, self._judge)

    @staticmethod
    def _applies(facts: Facts | None, name: str) -> bool:
        if facts is None or facts.module_of(name) not in SATURATING:
            return False
        return not _is_last(facts, name)

    def _judge(self, table: UnitTable) -> Judgement:
        n_new = len(table.steps) - table.start
        recent = _recent(table, table.beyond, self)
        inside = 1.0 - recent.part / np.maximum(recent.count, 1.0)
        below = (inside < self.threshold_activity / 100.0) & (recent.count > 0)
        share, mean = np.full(n_new, np.nan), np.full(n_new, np.nan)
        share[recent.at] = 100.0 * below.mean(axis=1)
        total = np.maximum(recent.count.sum(axis=1), 1.0)
        mean[recent.at] = 100.0 * recent.part.sum(axis=1) / total
        levels = np.full(n_new, HEALTHY, dtype=np.int8)
        levels[share > self.threshold_layer] = Severity.WARNING
        levels[np.isnan(share)] = UNKNOWN
        n_units = table.active.shape[1]

        def describe(_: int, j: int) -> Description:
            n_saturated = round(share[j] * n_units / 100.0)
            return Description(
                message=(
                    f"{n_saturated} of {n_units} units ({share[j]:.0f} %) are "
                    f"saturated for more than "
                    f"{100 - self.threshold_activity:g} % of their values over the "
                    f"last {recent.taken[j]} recorded steps ({mean[j]:.0f} % of all "
                    "values are)"
                ),
                value=float(share[j]),
                threshold=self.threshold_layer,
                advice=(
                    "what goes in is too large: normalize the inputs, initialize by "
                    "Glorot (Xavier), lower the learning rate, put a normalization "
                    "before the activation, or use ReLU or GELU"
                ),
            )

        return Judgement(
            names=(table.name,),
            steps=table.steps[table.start :],
            mode=table.mode,
            levels=levels[np.newaxis, :],
            describe=describe,
        )


class _Batches(Protocol):
    """How many batches are taken together."""

    @property
    def min_steps(self) -> int: ...
    @property
    def min_samples(self) -> int: ...
    @property
    def max_steps(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Recent:
    """Sums over the last batches, where there were enough.

    Attributes:
        at: At which of the new steps.
        part: Of each of these, and each unit, the counts that were asked for.
        count: The same of all values.
        taken: How many steps were taken together at each new step.
    """

    at: NDArray[np.intp]
    part: Floats
    count: Floats
    taken: NDArray[np.int64]


def _recent(table: UnitTable, part: NDArray[np.uint64], batches: _Batches) -> _Recent:
    """Sums over as few of the last usable steps as are enough."""
    usable = np.flatnonzero(table.usable)
    # Sums before each of these steps; counts are exact in float64.
    parts = _before(part[usable])
    counts = _before(table.count[usable])
    samples = _before(table.count[usable].max(axis=1, initial=0)[:, np.newaxis])[:, 0]
    ends = np.arange(len(usable)) + 1
    # The latest step from which on there are enough samples, and enough steps.
    begin = np.searchsorted(samples, samples[1:] - batches.min_samples, "right") - 1
    begin = np.minimum(begin, ends - batches.min_steps)
    enough = (begin >= 0) & (ends - begin <= batches.max_steps)
    enough &= usable >= table.start
    begin, ends = begin[enough], ends[enough]
    at = usable[enough] - table.start
    taken = np.zeros(len(table.steps) - table.start, dtype=np.int64)
    taken[at] = ends - begin
    return _Recent(
        at=at,
        part=parts[ends] - parts[begin],
        count=counts[ends] - counts[begin],
        taken=taken,
    )


def _before(counts: NDArray[np.uint64]) -> Floats:
    """Sums of what is before each row, and of all."""
    result = np.zeros((len(counts) + 1, counts.shape[1]))
    np.cumsum(counts, axis=0, dtype=np.float64, out=result[1:])
    return result


def _is_summary(tensor: TensorInfo, regex: str | None) -> bool:
    """Whether it is a summary of the units of an output, of such a name."""
    name = tensor.name.removeprefix("unit/")
    if name == tensor.name or name.startswith(GRADIENT):
        return False
    return regex is None or finds(regex, name)


def _where(
    window: Window,
    table: UnitTable,
    applies: Callable[[Facts | None, str], bool],
    judge: Callable[[UnitTable], Judgement],
) -> Iterator[Judgement]:
    """Verdicts on those new steps at which the rule applies to the module."""
    for facts, steps in facts_of_steps(window, table):
        first, last = max(steps.start, table.start), steps.stop
        if first < last and applies(facts, table.name):
            yield _part(judge(table), first - table.start, last - table.start)


def _part(judged: Judgement, first: int, last: int) -> Judgement:
    """The verdicts on some of the steps."""
    return Judgement(
        names=judged.names,
        steps=judged.steps[first:last],
        mode=judged.mode,
        levels=judged.levels[:, first:last],
        describe=lambda i, j: judged.describe(i, j + first),
    )


def _is_last(facts: Facts, name: str) -> bool:
    """Whether no weights come after this module, in the order of the model."""
    path = name.rpartition("_output_")[0]
    order = {module: i for i, module in enumerate(facts.modules)}
    own = order.get(path, len(order))
    owners = (parameter.rpartition(".")[0] for parameter in facts.parameters)
    return not any(order.get(owner, -1) > own for owner in owners)
