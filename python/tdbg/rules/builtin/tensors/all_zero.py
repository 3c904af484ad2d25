"""AllZero: tensors whose elements are all zero."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tdbg.config.kinds import Kind
from tdbg.config.quantities import percent, plural
from tdbg.rules.builtin.tensors.tensor_rule import INPUTS, LastingRule
from tdbg.rules.columns import kind_of
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Bools, Description, Evaluation, Table
from tdbg.run.findings import Evidence, Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["AllZero"]

# The name of an output, its number, and its call if that is not the first.
PARTS = re.compile(r"(.*_output_)(\d+)(?:@\d+)?")


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class AllZero(LastingRule):
    """Report tensors whose elements are all zero.

    The rule skips a further output of a module, such as a mask, a position bias or a
    state, while the first output is not zero.  It also skips an input beside another
    one that is not zero, and one call of a module, such as a step in time, while
    another call returns something.  This does not hold for ReLUs, since one module may
    stand for several layers.

    Args:
        threshold: Least percentage of zeros in a tensor to report.

    Raises:
        ConfigurationError: If a parameter is out of its range or not of its kind.
    """

    stage = Stage.ZEROS

    threshold: float = 100.0

    def __post_init__(self) -> None:
        check_number(self, "threshold", above=0.0, most=100.0)
        LastingRule.__post_init__(self)

    def judge(
        self, table: Table, judged: Bools, model_info: ModelInfo | None
    ) -> Evaluation:
        """Judge each row by its number of zeros."""
        count = table["count"]
        zero = judged & (100.0 * table["zero"] >= self.threshold * count)
        passes = table.known & (table["zero"] < count)
        for i, others in _others(table, model_info).items():
            if not self.is_chosen(table.names[i]):
                zero[i] &= ~passes[others].any(axis=0)
        lasting = table.lasts(zero, judged, rows=self.patience)

        def describe(i: int, j: int) -> Description:
            share = 100.0 * table["zero"][i, j] / count[i, j]
            n = int(np.count_nonzero(lasting[:, j]))
            n_elements = int(count[i, j])
            what = f"{percent(share)} of the {n_elements:,} elements"
            if share == 100.0:
                what = f"All {n_elements:,} elements"
            others = f" {plural(n - 1, 'other tensor')} too." if n > 1 else ""
            return Description(
                message=(
                    f"{what} of this {table.roles[i].replace('_', ' ')} were zero at "
                    f"{plural(self.patience, 'recorded step')} in a row.{others}"
                ),
                value=float(share),
                threshold=self.threshold,
                evidence=Evidence("zero_share", self.threshold / 100.0),
                advice=_zero_advice(table.roles[i]),
            )

        return table.judge_lasting(zero, lasting, Severity.WARNING, describe, judged)


def _others(table: Table, model_info: ModelInfo | None) -> dict[int, list[int]]:
    """Return, for outputs, the rows of other calls and of the first output.

    For inputs of a model, return those of its other inputs: a recurrent model may get
    its initial state first.
    """
    calls: dict[str, list[int]] = {}
    parts: dict[int, tuple[str, str]] = {}
    for i, name in enumerate(table.names):
        part = PARTS.fullmatch(name) if table.roles[i] == "output" else None
        if part is not None:
            parts[i] = part[1], part[2]
            calls.setdefault(part[1] + part[2], []).append(i)
    result: dict[int, list[int]] = {}
    for i, (output, number) in parts.items():
        others = set[int]()
        if number != "0":
            others.update(calls.get(output + "0", ()))
        if kind_of(model_info, table.names[i]) != Kind.RELU:
            others.update(calls[output + number])
        if others - {i}:
            result[i] = sorted(others - {i})
    given: dict[str, list[int]] = {}
    for i, name in enumerate(table.names):
        if table.roles[i] == "model_input":
            given.setdefault(name.rpartition("_")[0], []).append(i)
    for same in given.values():
        result |= {i: [k for k in same if k != i] for i in same if len(same) > 1}
    return result


def _zero_advice(role: str) -> str:
    if role in INPUTS:
        return "The data is empty: check how you load and normalize it."
    if role == "output":
        return (
            "Nothing passes this layer. Look for dead ReLUs, weights that are all "
            "zero, a mask that hides everything, or inputs that are zero."
        )
    return "Check how you initialize it, and whether anything reaches it."
