"""ModelInfoRule: base class of rules that compare gradients with model info."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.config.needs import Needs, with_beginning
from tdbg.modes import TRAINING
from tdbg.rules.columns import first_of_columns, model_info_of_steps
from tdbg.rules.rule import Rule, check_number
from tdbg.rules.table import min_span
from tdbg.rules.window import (
    OK,
    UNKNOWN,
    Bools,
    Description,
    Evaluation,
    Table,
    TensorInfo,
    Window,
)
from tdbg.run.findings import Severity
from tdbg.run.model_info import ModelInfo

__all__ = ["ModelInfoRule", "evaluate_first", "have_lasted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfoRule(Rule):
    """Base class of rules that compare gradients with parameters and optimizers.

    Args:
        patience: Recorded steps that must have passed.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    patience: int = 1

    def __post_init__(self) -> None:
        check_number(self, "patience", least=1, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of gradients."""
        return with_beginning(Needs(collections=frozenset({"gradients"})))

    @property
    def head_rows(self) -> int:
        """The first row of each gradient, from which steps are counted."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Select gradients."""
        return tensor.role == "gradient"

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the steps of training that have model info."""
        for table in window.tables(*TRAINING):
            for model_info, steps in model_info_of_steps(window, table):
                start = max(steps.start, table.start)
                if model_info is not None and start < steps.stop:
                    thawed = window.thawed_at(model_info.step)
                    new = slice(start, steps.stop)
                    yield from self.judge(table, model_info, thawed, new)

    @abstractmethod
    def judge(
        self,
        table: Table,
        model_info: ModelInfo,
        thawed: Mapping[str, int],
        steps: slice,
    ) -> Iterator[Evaluation]:
        """Judge the steps for which the model info is valid.

        *thawed* has the step at which parameters began to require a gradient, by name.
        """


def have_lasted(table: Table, rows: int) -> Bools:
    """Return the steps that are late enough after the first gradients.

    Args:
        table: The gradients.
        rows: Number of recorded steps for which a rule waits.
    """
    seen = table.present.any(axis=0)
    first = table.steps[np.argmax(seen)] if seen.any() else table.steps[-1]
    return np.asarray(table.steps - first + 1 >= min_span(rows))


def evaluate_first(
    table: Table,
    steps: slice,
    names: Sequence[str],
    *,
    bad: Bools,
    decided: Bools,
    severity: Severity,
    describe: Callable[[int], Description],
) -> Evaluation:
    """Make one finding for each step, at the first name that is bad.

    Args:
        table: Holds the steps.
        steps: The columns to judge.
        names: The names to judge.
        bad: Names x steps: where there is a finding; only the first is reported.
        decided: Names x steps: where a verdict is possible.
        severity: Severity of the findings.
        describe: Called with the index of the step.
    """
    severities = np.where(decided & ~bad, OK, UNKNOWN).astype(np.int8)
    severities[first_of_columns(bad)] = severity
    return Evaluation(
        names=tuple(names),
        steps=table.steps[steps],
        mode=table.mode,
        severities=severities,
        describe=lambda _, j: describe(j),
    )
