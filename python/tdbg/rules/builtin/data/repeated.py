"""RepeatedData: models that get the same batch at every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tdbg.config.needs import Needs, with_beginning
from tdbg.config.quantities import plural
from tdbg.modes import TRAINING
from tdbg.rules.registry import register
from tdbg.rules.rule import Rule, check_number
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
from tdbg.run.findings import Severity, Stage
from tdbg.stats.row_fields import FIELDS

__all__ = ["RepeatedData"]

# The first batches whose values the rule also compares: the same numbers in another
# order have the same row.
VALUED = 2
# Relative precision of the sums in a row.
ROUNDING = 1e-9


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedData(Rule):
    """Report models whose inputs and labels are the same at each of the first steps.

    Args:
        num_steps: Number of recorded steps that must have the same batch.

    Raises:
        ConfigurationError: If a parameter is out of its range.
    """

    severities = (Severity.INFO,)
    stage = Stage.SETUP

    num_steps: int = 10

    def __post_init__(self) -> None:
        check_number(self, "num_steps", least=2, whole=True)

    @property
    def needs(self) -> tuple[Needs, ...]:
        """Rows of inputs and labels; the values of two batches of inputs."""
        inputs = frozenset({"model_inputs"})
        return (
            *with_beginning(Needs(collections=inputs | {"labels"})),
            Needs(
                collections=inputs,
                statistics=False,
                raw=True,
                interval=1,
                first_steps=VALUED,
            ),
        )

    @property
    def first_verdict(self) -> str:
        """The data that a first verdict needs."""
        return (
            f"inputs of the model at {plural(self.num_steps, 'recorded step')} of "
            "training"
        )

    @property
    def head_rows(self) -> int:
        """The first batches."""
        return self.num_steps

    def selects(self, tensor: TensorInfo) -> bool:
        """Select inputs of the model, and labels."""
        return tensor.role in ("label", "model_input")

    def evaluate(self, window: Window) -> Iterator[Evaluation]:
        """Judge the inputs of each registered module."""
        for table in window.tables(*TRAINING):
            labels = [i for i, role in enumerate(table.roles) if role == "label"]
            roots: dict[str, list[int]] = {}
            for i, name in enumerate(table.names):
                if table.roles[i] == "model_input":
                    roots.setdefault(name.rpartition("_input_")[0], []).append(i)
            differs = _differs_from_first(table)
            for inputs in roots.values():
                yield self._judge(table, differs, inputs, labels)

    def _judge(
        self, table: Table, differs: Bools, inputs: list[int], labels: list[int]
    ) -> Evaluation:
        start, first = table.start, inputs[0]
        members = inputs + labels
        is_head = (table.ordinal > 0) & (table.ordinal <= self.num_steps)
        # Whether any of the first batches differed, up to each step.
        has_differed = np.logical_or.accumulate(
            (differs & is_head)[members].any(axis=0)
        )
        is_same = ~has_differed & ~differs[members].any(axis=0)
        is_due = table.known[first] & (table.ordinal[first] >= self.num_steps)
        if (is_same & is_due)[start:].any() and not _is_telling(table, inputs):
            is_due = np.zeros_like(is_due)
        severities = np.where(is_same, int(Severity.INFO), OK)
        severities[~is_due] = UNKNOWN

        def describe(j: int) -> Description:
            n = int(table.ordinal[first, j + start])
            since = int(table.steps[table.ordinal[first] == 1][0])
            return self._describe(n, since, has_labels=bool(labels))

        return table.judge_one(table.names[first], severities[start:], describe)

    def _describe(self, n: int, since: int, *, has_labels: bool) -> Description:
        what = "inputs and labels" if has_labels else "inputs"
        return Description(
            message=(
                f"The model got the same batch at all {n:,} recorded steps: {what} "
                "are identical. That is fine if this batch is the whole data set, or "
                "if you overfit a single batch on purpose."
            ),
            value=float(n),
            threshold=float(self.num_steps),
            since=since,
            advice=(
                "Otherwise, take a new batch at each step (for x, y in loader:). "
                "next(iter(loader)) inside the loop starts over each time, and a batch "
                "that you read before the loop never changes."
            ),
        )


def _is_telling(table: Table, inputs: list[int]) -> bool:
    """Return whether equal rows of these inputs mean that the batches are equal.

    They do not for a constant, nor for zeros and ones, whose counts may agree in
    different batches, nor where values show a difference.
    """
    ordinal = table.ordinal[inputs[0]]
    first, *others = np.flatnonzero((ordinal > 0) & (ordinal <= VALUED)).tolist()
    if not table.usable[first]:
        return False
    is_told = False
    for i in inputs:
        if not table.present[i, first]:
            continue
        values = [
            table.value(table.names[i], int(table.steps[j])) for j in (first, *others)
        ]
        contents = {value.tobytes() for value in values if value is not None}
        if len(contents) > 1:
            return False
        has_values = len(contents) == 1 and all(value is not None for value in values)
        total, norm = (float(table[field][i, first]) for field in ("l1", "l2"))
        is_indicator = abs(total - norm**2) <= ROUNDING * total
        is_number = "float" in table.dtypes[i] and not is_indicator
        varies = bool(table["min"][i, first] < table["max"][i, first])
        is_told |= varies and (has_values or is_number)
    return is_told


def _differs_from_first(table: Table) -> Bools:
    """Return, names x steps, whether a row differs from its tensor's first one."""
    differs = np.zeros(table.present.shape, dtype=bool)
    firsts = table.ordinal == 1
    has_first = firsts.any(axis=1)
    at = np.argmax(firsts, axis=1)
    for name in FIELDS:
        column = table[name]
        first = np.take_along_axis(column, at[:, np.newaxis], axis=1)
        differs |= ~((column == first) | (np.isnan(column) & np.isnan(first)))
    differs &= table.known & has_first[:, np.newaxis]
    return differs
