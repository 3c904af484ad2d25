"""AllZero: tensors of which all elements are zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tdbg.rules.builtin.tensors.tensor_rule import INPUTS, LastingRule
from tdbg.rules.registry import register
from tdbg.rules.rule import check_number
from tdbg.rules.window import Bools, Description, Evaluation, Table
from tdbg.run.findings import Evidence, Severity, Stage

__all__ = ["AllZero"]


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class AllZero(LastingRule):
    """Report tensors of which all elements are zero.

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

    def judge(self, table: Table, judged: Bools) -> Evaluation:
        """Judge each row by its number of zeros."""
        count = table["count"]
        zero = judged & (100.0 * table["zero"] >= self.threshold * count)
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
