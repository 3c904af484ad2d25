"""UnitRule: base class of rules that count a layer's units over several batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import plural
from tdbg.modes import TRAINING
from tdbg.rules.columns import GRADIENT, model_info_of_steps
from tdbg.rules.rule import Rule, check_number, check_regex, finds
from tdbg.rules.table import min_span
from tdbg.rules.window import (
    UNKNOWN,
    Evaluation,
    Floats,
    TensorInfo,
    UnitTable,
    Window,
)

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo

__all__ = ["Recent", "UnitRule", "needs_of_units"]


@dataclass(frozen=True, slots=True)
class Recent:
    """Sums over the last batches, at the new steps with enough of them.

    Attributes:
        at: Indices of these steps among the new ones.
        part: Steps x units: the sums of the requested counts.
        count: Steps x units: the sums of the number of values.
        taken: Number of steps in the sum at each new step; 0: too few.
    """

    at: NDArray[np.intp]
    part: Floats
    count: Floats
    taken: NDArray[np.int64]

    def row(self, holds: NDArray[np.bool_], j: int) -> NDArray[np.bool_]:
        """Return for which units *holds* is true at a new step that was summed up."""
        k = int(np.searchsorted(self.at, j))
        return np.asarray((holds & (self.count > 0))[k])

    def percent(self, holds: NDArray[np.bool_]) -> Floats:
        """Return the percentage of units for which *holds* is true, at each new step.

        NaN where there are too few values.  A unit without values counts as healthy.
        """
        result = np.full(len(self.taken), np.nan)
        result[self.at] = 100.0 * (holds & (self.count > 0)).mean(axis=1)
        return result


def needs_of_units(modules: frozenset[str]) -> tuple[Needs, ...]:
    """Return the need of unit summaries of the outputs of modules of these kinds."""
    return with_beginning(
        Needs(
            collections=frozenset({"outputs"}),
            modules=modules,
            statistics=False,
            unit_summaries=True,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRule(Rule):
    """Base class of rules about layers with too many units in a bad state.

    Args:
        threshold_layer: The rule reports a layer with more than this percentage of bad
            units.
        min_steps: Least number of recorded steps to judge by.
        min_samples: Least number of values to judge a unit by; the rule combines as
            many steps as this needs.
        max_steps: Largest number of recorded steps to judge by.
        tensor_regex: Judge only tensors with matching names.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    # Kinds of modules whose outputs the rule judges.
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
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        kinds = ", ".join(sorted(self.modules))
        steps = plural(self.min_steps, "recorded step")
        return f"{steps}, and modules of the kind: {kinds}"

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Unit summaries of the outputs of ``modules``."""
        return needs_of_units(self.modules)

    @property
    def lookback(self) -> int:
        """The batches that one verdict sums up."""
        return self.max_steps - 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select unit summaries of outputs."""
        name = tensor.name.removeprefix("unit/")
        if name == tensor.name or name.startswith(GRADIENT):
            return False
        return self.tensor_regex is None or finds(self.tensor_regex, name)

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge each layer by its last batches of training."""
        for table in window.units(*TRAINING):
            applies = np.zeros(len(table.steps), dtype=np.bool_)
            for model_info, steps in model_info_of_steps(window, table):
                applies[steps] = self.applies(model_info, table.name)
            if applies[table.start :].any():
                judged = self.judge(table, window)
                judged.severities[:, ~applies[table.start :]] = UNKNOWN
                yield judged

    @abstractmethod
    def applies(self, model_info: ModelInfo | None, name: str) -> bool:
        """Return whether the rule judges the module of an output."""

    @abstractmethod
    def judge(self, table: UnitTable, window: Window) -> Evaluation:
        """Judge the new steps of a layer."""

    def recent(self, table: UnitTable, part: NDArray[np.uint64]) -> Recent:
        """Sum up the fewest last usable steps with enough values.

        Args:
            table: The counts of a layer.
            part: The counts to sum up, steps x units.
        """
        usable = np.flatnonzero(table.usable)
        # Sums before each of these steps; counts are exact in float64.
        parts = _before(part[usable])
        counts = _before(table.count[usable])
        most = table.count[usable].max(axis=1, initial=0)
        samples = _before(most[:, np.newaxis])[:, 0]
        ends = np.arange(len(usable)) + 1
        # The latest step from which there are enough samples, and enough steps.
        begin = np.searchsorted(samples, samples[1:] - self.min_samples, "right") - 1
        begin = np.minimum(begin, ends - self.min_steps)
        # Consecutive batches pass in a moment: require a minimum span of steps.
        steps = table.steps[usable]
        since = steps - min_span(self.min_steps) + 1
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
    """Return the sums of the rows before each row, and of all rows at last."""
    result = np.zeros((len(counts) + 1, counts.shape[1]))
    np.cumsum(counts, axis=0, dtype=np.float64, out=result[1:])
    return result
