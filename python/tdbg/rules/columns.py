"""Functions on columns of tables, which several rules share.

They read the last known rows of a tensor only, however many other steps a table holds,
so that verdicts do not depend on how steps were cut into windows.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tdbg.config.class_kinds import kind_of_loss
from tdbg.config.tensor_names import GRADIENT, UPDATE, parameter_in
from tdbg.rules.window import Bools, Floats, Table, UnitTable, Window
from tdbg.run.model_info import owner_of

if TYPE_CHECKING:
    from tdbg.run.model_info import ModelInfo, ParameterFacts


__all__ = [
    "GRADIENT",
    "MAD_TO_DEVIATION",
    "UPDATE",
    "KnownRows",
    "by_unit",
    "first_of_columns",
    "held_before",
    "is_bias",
    "is_matrix",
    "kind_of",
    "median",
    "median_and_deviation",
    "model_info_of_steps",
    "parameter_of",
    "streak_of_known",
]


Ints = NDArray[np.intp]


class KnownRows:
    """The values of each tensor at its known rows, without gaps.

    Args:
        values: Names x steps; NaN where a row has no value.
        known: Names x steps: where there is a row.
    """

    def __init__(self, values: Floats, known: Bools) -> None:
        counted = np.cumsum(known, axis=1)
        self._before: NDArray[np.int64] = counted - known
        n_rows = int(counted[:, -1].max(initial=0)) if counted.size else 0
        self._rows = np.full((len(values), n_rows), np.nan)
        i, j = np.nonzero(known)
        self._rows[i, counted[i, j] - 1] = values[i, j]

    def before(self, i: Ints, j: Ints, n: int) -> Floats:
        """Return the *n* rows before each of the indices (i, j), oldest first.

        Returns:
            Indices x n; NaN where there were fewer rows.
        """
        padded = np.pad(self._rows, ((0, 0), (n, 0)), constant_values=np.nan)
        return np.asarray(sliding_window_view(padded, n, axis=1)[i, self._before[i, j]])


def held_before(holds: Bools, known: Bools) -> Bools:
    """Return whether *holds* was true at the last known row before each column."""
    at = np.arange(holds.shape[1])
    last = np.maximum.accumulate(np.where(known, at, -1), axis=1)
    before = np.full_like(last, -1)
    before[:, 1:] = last[:, :-1]
    held = np.take_along_axis(holds, np.maximum(before, 0), axis=1)
    return np.asarray(held & (before >= 0))


def first_of_columns(holds: Bools) -> tuple[Ints, Ints]:
    """Return row and column of the first True in each column that has one."""
    columns = np.flatnonzero(holds.any(axis=0))
    if not len(columns):
        return columns, columns
    return np.argmax(holds[:, columns], axis=0), columns


def streak_of_known(holds: Bools, known: Bools) -> NDArray[np.int64]:
    """Count the known entries in a row where *holds* is true; skip unknown ones."""
    counted = np.cumsum(known, axis=-1)
    reset = np.where(known & ~holds, counted, 0)
    return np.where(holds, counted - np.maximum.accumulate(reset, axis=-1), 0)


def model_info_of_steps(
    window: Window, table: Table | UnitTable
) -> Iterator[tuple[ModelInfo | None, slice]]:
    """Yield the model info with the columns, old and new, for which it is valid."""
    start = 0
    n_steps = len(table.steps)
    while start < n_steps:
        model_info = window.model_info_at(int(table.steps[start]))
        # Model info stays the same for long: find the end by bisection.
        low, high = start + 1, n_steps
        while low < high:
            middle = (low + high) // 2
            if window.model_info_at(int(table.steps[middle])) is model_info:
                low = middle + 1
            else:
                high = middle
        yield model_info, slice(start, low)
        start = low


def parameter_of(model_info: ModelInfo | None, name: str) -> ParameterFacts | None:
    """Return the info of the parameter of a weight, gradient or update, or None."""
    if model_info is None:
        return None
    return model_info.parameters.get(parameter_in(name))


def kind_of(model_info: ModelInfo | None, name: str) -> str | None:
    """Return the kind of the module or loss that a tensor is of, or None."""
    return kind_of_loss(name) if model_info is None else model_info.kind_of(name)


def is_matrix(parameter: ParameterFacts | None) -> bool:
    """Return whether a parameter has several units with several weights each.

    Scales and shifts of normalizations, layer scales and biases do not.
    """
    if parameter is None or len(parameter.shape) < 2:
        return False
    return parameter.n_units > 1 and parameter.n_inputs > 1


def is_bias(name: str) -> bool:
    """Return whether a parameter, or what belongs to it, is a bias, by its name."""
    return "bias" in name[len(owner_of(name)) :]


def by_unit(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return a weight with the dimension of units first, then that of inputs.

    Args:
        values: The weight.
        axis: Its dimension of units; where that is 0, inputs are the next one, and
            else the one next to it.
    """
    return values if axis == 0 else np.moveaxis(values, (axis, axis - 1), (0, 1))


# The standard deviation of a normal sample is this many times the median of its
# absolute deviations from its median.
MAD_TO_DEVIATION = 1.4826


def median(values: Floats, axis: int = -1) -> Floats:
    """Return the median of the finite values along an axis; NaN if there is none.

    Example:
        >>> median(np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan]]))
        array([ 2., nan])
    """
    # NumPy's nanmedian takes ten times as long for lines of some hundreds.
    lines = np.moveaxis(np.where(np.isfinite(values), values, np.nan), axis, -1)
    lines = np.sort(lines, axis=-1)
    if not lines.shape[-1]:
        return np.full(lines.shape[:-1], np.nan)
    n = np.count_nonzero(np.isfinite(lines), axis=-1)[..., np.newaxis]
    # NaN is sorted to the end.
    low = np.take_along_axis(lines, np.maximum(n - 1, 0) // 2, axis=-1)
    high = np.take_along_axis(lines, np.where(n > 0, n // 2, 0), axis=-1)
    middle: Floats = ((low + high) / 2.0)[..., 0]
    return middle


def median_and_deviation(rows: Floats) -> tuple[Floats, Floats]:
    """Return the median of each row, and a robust standard deviation about it.

    Both are NaN for a row that holds a NaN.
    """
    middle = np.median(rows, axis=1)
    spread = np.median(np.abs(rows - middle[:, np.newaxis]), axis=1)
    return middle, MAD_TO_DEVIATION * spread
