"""AllZero: tensors of which all elements are zero."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tdbg.config.kinds import Kind
from tdbg.rules.builtin.tensors.tensor_rule import INPUTS, LastingRule
from tdbg.rules.columns import kind_of
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Bools, Description, Evaluation, Table
from tdbg.run.findings import Evidence, Severity, Stage
from tdbg.run.model_info import ModelInfo

__all__ = ["AllZero"]

# The name of an output, its number, and the call that it is of, after the first.
PARTS = re.compile(r"(.*_output_)(\d+)(?:@\d+)?")


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class AllZero(LastingRule):
    """Report tensors of which all elements are zero.

    A further output of a module, as a mask, a bias of positions or a state, is none
    while the first one is not zero: something passes there.  Nor is that of one call
    of a module, as of a step in time, while another call gives something; ReLUs apart,
    of which one may stand for several layers.

    Args:
        threshold: Percentage of zeros from which on a tensor is reported.

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
            affected = int(np.count_nonzero(lasting[:, j]))
            return Description(
                message=(
                    f"{share:.4g} % of {count[i, j]:.0f} elements are zero, at "
                    f"{self.patience} recorded steps in a row"
                ),
                value=float(share),
                threshold=self.threshold,
                evidence=Evidence("zero_share", self.threshold / 100.0),
                advice=_zero_advice(table.roles[i], affected),
            )

        return table.judge_lasting(zero, lasting, Severity.WARNING, describe, judged)


def _others(table: Table, model_info: ModelInfo | None) -> dict[int, list[int]]:
    """Of outputs: the rows of other calls, and of the first outputs of the module."""
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
    return result


def _zero_advice(role: str, affected: int) -> str:
    if role in INPUTS:
        return "the data holds nothing: see how it is loaded and normalized"
    if role == "output":
        return (
            f"nothing passes this layer ({affected} tensors are affected): look for "
            "dead ReLUs, weights that are all zero, a mask that hides everything, or "
            "inputs that are zero"
        )
    return (
        f"{affected} tensors are affected: see how it is initialized, and whether "
        "anything reaches it"
    )
