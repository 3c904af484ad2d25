"""Layers of which too many units are in a bad state, judged over several batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import TRAINING
from tdbg.needs import Needs, with_beginning
from tdbg.rules._base import Rule
from tdbg.rules._checks import check_number, check_regex, finds
from tdbg.rules.columns import GRADIENT, facts_of_steps
from tdbg.rules.table import steps_of
from tdbg.rules.window import (
    UNKNOWN,
    Floats,
    Judgement,
    TensorInfo,
    UnitTable,
    Window,
)

if TYPE_CHECKING:
    from tdbg.facts import Facts

__all__ = ["OfUnits", "Recent"]


@dataclass(frozen=True, slots=True)
class Recent:
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

    def percent(self, holds: NDArray[np.bool_]) -> Floats:
        """The percentage of units for which it holds, at each new step.

        NaN where there were too few values to say; a unit without any counts as good.
        """
        result = np.full(len(self.taken), np.nan)
        result[self.at] = 100.0 * (holds & (self.count > 0)).mean(axis=1)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class OfUnits(Rule):
    """Base of rules about layers of which too many units are in a bad state.

    Args:
        threshold_layer: A layer with more than this percentage of such units is
            reported.
        min_steps: Recorded steps to judge by, at least.
        min_samples: Values of each unit to judge by, at least; so many steps are
            taken together as are needed for it.
        max_steps: Recorded steps to judge by, at most.
        tensor_regex: Judge tensors of such names only.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    # Of PyTorch, whose outputs are judged.
    modules: ClassVar[frozenset[str]]

    threshold_layer: float = 50.0
    min_steps: int = 3
    min_samples: int = 100
    max_steps: int = 20
    tensor_regex: str | None = None

    def __post_init__(self) -> None:
        check_number(self, "threshold_layer", least=0.0, most=100.0)
        check_number(self, "min_steps", least=1, whole=True)
        check_number(self, "min_samples", least=1, whole=True)
        check_number(self, "max_steps", least=self.min_steps, whole=True)
        check_regex(self, "tensor_regex")

    @property
    def needs(self) -> tuple[Needs, ...]:
        """The unit summaries of these modules."""
        return with_beginning(
            Needs(
                collections=frozenset({"outputs"}),
                modules=self.modules,
                statistics=False,
                unit_summaries=True,
            )
        )

    @property
    def look_back(self) -> int:
        """The batches that are taken together."""
        return self.max_steps - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Unit summaries of outputs."""
        name = tensor.name.removeprefix("unit/")
        if name == tensor.name or name.startswith(GRADIENT):
            return False
        return self.tensor_regex is None or finds(self.tensor_regex, name)

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge every layer by its last batches of training."""
        for table in window.units(*TRAINING):
            applies = np.zeros(len(table.steps), dtype=np.bool_)
            for facts, steps in facts_of_steps(window, table):
                applies[steps] = self.applies(facts, table.name)
            if applies[table.start :].any():
                judged = self.judge(table)
                judged.levels[:, ~applies[table.start :]] = UNKNOWN
                yield judged

    @abstractmethod
    def applies(self, facts: Facts | None, name: str) -> bool:
        """Whether an output is of a module that the rule is about."""

    @abstractmethod
    def judge(self, table: UnitTable) -> Judgement:
        """Judge the new steps of a layer."""

    def recent(self, table: UnitTable, part: NDArray[np.uint64]) -> Recent:
        """Sums over as few of the last usable steps as are enough.

        Args:
            table: The counts of a layer.
            part: Which of them are asked for.
        """
        usable = np.flatnonzero(table.usable)
        # Sums before each of these steps; counts are exact in float64.
        parts = _before(part[usable])
        counts = _before(table.count[usable])
        most = table.count[usable].max(axis=1, initial=0)
        samples = _before(most[:, np.newaxis])[:, 0]
        ends = np.arange(len(usable)) + 1
        # The latest step from which on there are enough samples, and enough steps.
        begin = np.searchsorted(samples, samples[1:] - self.min_samples, "right") - 1
        begin = np.minimum(begin, ends - self.min_steps)
        # Some batches one after the other pass in a moment.
        steps = table.steps[usable]
        since = steps - steps_of(self.min_steps) + 1
        lasting = np.searchsorted(steps, since, "right") - 1
        begin = np.minimum(begin, lasting)
        enough = (begin >= 0) & (ends - begin <= self.max_steps)
        enough &= usable >= table.start
        begin, ends = begin[enough], ends[enough]
        at = usable[enough] - table.start
        taken = np.zeros(len(table.steps) - table.start, dtype=np.int64)
        taken[at] = ends - begin
        return Recent(
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
