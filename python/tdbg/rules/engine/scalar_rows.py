"""Scalars as rules see them: as rows of one element.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tdbg.rules.engine.block import as_index
from tdbg.rules.source import ColumnSource, ScalarSource

__all__ = ["SCALAR", "WithScalars"]

# The role of what has no rows of its own.
SCALAR = "scalar"

Floats = NDArray[np.float64]


class WithScalars:
    """Columns, to which scalars are added.

    Args:
        columns: Rows of tensors; of scalars there is a name without any.
        scalars: The scalars by name.
        first: The first step that counts.
        last: The last one.
    """

    def __init__(
        self,
        columns: ColumnSource,
        scalars: Mapping[str, ScalarSource],
        first: int,
        last: int,
    ) -> None:
        self._columns = columns
        self.names: Sequence[str] = columns.names
        found = []
        for i, name in enumerate(self.names):
            series = scalars.get(name)
            if series is not None:
                at = (series.steps >= first) & (series.steps <= last)
                # Of several values at a step the last one counts.
                steps, back = np.unique(series.steps[at][::-1], return_index=True)
                found.append((i, steps, series.values[at][::-1][back]))
        every = [columns.steps, *(steps for _, steps, _ in found)]
        self.steps: NDArray[np.int64] = np.unique(np.concatenate(every))
        self._at = as_index(np.searchsorted(self.steps, columns.steps))
        self.present = np.zeros((len(self.names), len(self.steps)), dtype=bool)
        self.present[:, self._at] = columns.present
        self._values = np.full((len(found), len(self.steps)), np.nan)
        self._rows = np.array([i for i, _, _ in found], dtype=np.intp)
        for row, (i, steps, values) in enumerate(found):
            where = np.searchsorted(self.steps, steps)
            self._values[row, where] = values
            self.present[i, where] = True

    def column(self, name: str) -> Floats:
        """A field of the rows; NaN where there is none."""
        column = self._columns.column(name)
        if column.shape != self.present.shape:
            # There are steps with scalars only.
            wider = np.full(self.present.shape, np.nan)
            wider[:, self._at] = column
            column = wider
        of_scalars = _field(name, self._values)
        of_scalars[~self.present[self._rows]] = np.nan
        column[self._rows] = of_scalars
        return column


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
