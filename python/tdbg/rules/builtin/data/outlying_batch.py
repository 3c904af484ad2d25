"""The batch that stands out: an input or target unlike those of the steps before.

Thread safety: reads only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tdbg.rules.window import (
    Floats,
    Table,
    TensorInfo,
    Window,
)

__all__ = ["Outlier", "data_of", "is_data", "outlier_at"]

# A batch is unlike the others if its largest number is this many times theirs.
_OUTLYING = 10.0


@dataclass(frozen=True, slots=True)
class Outlier:
    """A tensor whose largest number at one step is unlike those before.

    Attributes:
        name: The input or target.
        size: Its largest magnitude.
        before: The largest magnitude in the rows before.
    """

    name: str
    size: float
    before: float


def is_data(tensor: TensorInfo) -> bool:
    """Return whether a tensor is an input of the model or a target, in floats."""
    return tensor.role in {"model_input", "label"} and "float" in tensor.dtype


def data_of(window: Window, table: Table) -> Table:
    """Return the inputs and targets that no model has made."""
    info = window.model_info_at(int(table.steps[-1]))
    made = () if info is None else info.made_inputs
    roles = {"model_input", "label"}
    if info is not None and info.makes_targets:
        roles.remove("label")
    kinds = zip(table.names, table.roles, strict=True)
    return table.select(
        [
            i
            for i, (name, role) in enumerate(kinds)
            if role in roles and name not in made
        ]
    )


def outlier_at(data: Table, j: int, n_rows: int, min_rows: int) -> Outlier | None:
    """Return the input or target that stands out most at a column; None: none does.

    Args:
        data: The inputs and targets.
        j: The column.
        n_rows: How many rows before it to compare with.
        min_rows: Least number of them.
    """
    known = data.known
    sizes = np.where(known, np.fmax(np.abs(data["min"]), np.abs(data["max"])), np.nan)
    found = [
        Outlier(name, float(row[j]), float(before.max()))
        for name, row in zip(data.names, sizes, strict=True)
        if len(before := _last_known(row[:j], n_rows)) >= min_rows
    ]
    found = [each for each in found if each.size > _OUTLYING * each.before > 0]
    return max(found, key=lambda each: each.size / each.before, default=None)


def _last_known(row: Floats, n: int) -> Floats:
    return np.asarray(row[np.isfinite(row)][-n:])
