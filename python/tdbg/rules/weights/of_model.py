"""Gradients beside what is known of a model's parameters and optimizers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tdbg.facts import Facts
from tdbg.findings import Severity
from tdbg.modes import TRAINING
from tdbg.needs import Needs, with_beginning
from tdbg.rules._base import Rule
from tdbg.rules._checks import check_number
from tdbg.rules.columns import facts_of_steps, first_of_columns
from tdbg.rules.table import steps_of
from tdbg.rules.window import (
    HEALTHY,
    UNKNOWN,
    Bools,
    Description,
    Judgement,
    Table,
    TensorInfo,
    Window,
)

__all__ = ["OfModel", "have_passed", "one_for_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfModel(Rule):
    """Base of rules that compare gradients with what is known of the model.

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
        """The rows of gradients."""
        return with_beginning(Needs(collections=frozenset({"gradients"})))

    @property
    def anchor(self) -> int:
        """The first row of each gradient, from which on steps count."""
        return 1

    def selects(self, tensor: TensorInfo) -> bool:
        """Gradients."""
        return tensor.role == "gradient"

    def evaluate(self, window: Window) -> Iterator[Judgement]:
        """Judge the steps of training at which something is known of the model."""
        for table in window.tables(*TRAINING):
            for facts, steps in facts_of_steps(window, table):
                start = max(steps.start, table.start)
                if facts is not None and start < steps.stop:
                    thawed = window.thawed_at(facts.step)
                    new = slice(start, steps.stop)
                    yield from self.judge(table, facts, thawed, new)

    @abstractmethod
    def judge(
        self, table: Table, facts: Facts, thawed: Mapping[str, int], steps: slice
    ) -> Iterator[Judgement]:
        """Judge these steps, at which these facts hold.

        Parameters that were *thawed* have not required a gradient before that step.
        """


def have_passed(table: Table, rows: int) -> Bools:
    """At which steps so many have passed since the first gradients that this lasts.

    Args:
        table: The gradients.
        rows: How many recorded steps are asked for.
    """
    seen = table.present.any(axis=0)
    first = table.steps[np.argmax(seen)] if seen.any() else table.steps[-1]
    return np.asarray(table.steps - first + 1 >= steps_of(rows))


def one_for_all(
    table: Table,
    steps: slice,
    names: Sequence[str],
    *,
    bad: Bools,
    decided: Bools,
    severity: Severity,
    describe: Callable[[int], Description],
) -> Judgement:
    """One finding a step, at the first name that is bad.

    Args:
        table: Holds the steps.
        steps: Which of its columns are judged.
        names: What is judged.
        bad: Names x steps: what is a finding; the others are left undecided.
        decided: Names x steps: where a verdict is possible.
        severity: Of the finding.
        describe: Called with the index of the step.
    """
    levels = np.where(decided & ~bad, HEALTHY, UNKNOWN).astype(np.int8)
    levels[first_of_columns(bad)] = severity
    return Judgement(
        names=tuple(names),
        steps=table.steps[steps],
        mode=table.mode,
        levels=levels,
        describe=lambda _, j: describe(j),
    )
