"""Scalars as rules see them: as rows of one element.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.rules.source import ColumnSource, ScalarSource
from tdbg.rules.table import FIELDS

__all__ = ["SCALAR", "add_scalars"]

# The role of what has no rows of its own.
SCALAR = "scalar"

Floats = NDArray[np.float64]


def add_scalars(
    columns: ColumnSource,
    names: Sequence[str],
    steps: NDArray[np.int64],
    scalars: Mapping[str, ScalarSource],
) -> None:
    """Fill in the rows of scalars.

    Args:
        columns: Rows of tensors; of scalars there is a name without any.
        names: Whose rows they are.
        steps: At which steps, ascending.
        scalars: The scalars by name.
    """
    for i, name in enumerate(names):
        series = scalars.get(name)
        if series is None:
            continue
        at = np.flatnonzero(np.isin(series.steps, steps))
        # Of several values at a step the last one counts.
        found, back = np.unique(series.steps[at][::-1], return_index=True)
        where = np.searchsorted(steps, found)
        values = series.values[at][::-1][back]
        columns.present[i, where] = True
        for column, field in zip(columns.fields, FIELDS, strict=True):
            column[i, where] = _field(field, values)


def _field(name: str, value: Floats) -> Floats:
    """A field of the row of one element."""
    if name == "count":
        return np.ones_like(value)
    if name == "nan":
        return np.where(np.isnan(value), 1.0, 0.0)
    if name == "positive_infinity":
        return np.where(value == np.inf, 1.0, 0.0)
    if name == "negative_infinity":
        return np.where(value == -np.inf, 1.0, 0.0)
    if name == "zero":
        return np.where(value == 0, 1.0, 0.0)
    finite = np.where(np.isfinite(value), value, np.nan)
    if name in ("min", "max", "mean"):
        return finite
    if name == "m2":
        return np.zeros_like(value)
    return np.abs(finite)
