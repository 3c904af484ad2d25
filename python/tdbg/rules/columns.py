"""What rules about tensors compute of columns: the past of a row, and facts by step.

Everything here looks at a tensor's last known rows only, however many other columns
a table holds, so that verdicts do not depend on how steps were cut into windows.

Thread safety: pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tdbg.rules.window import Bools, Floats, Table, UnitTable, Window

if TYPE_CHECKING:
    from tdbg.facts import Facts, ParameterFacts

__all__ = [
    "GRADIENT",
    "UPDATE",
    "KnownRows",
    "facts_of_steps",
    "first_of_columns",
    "held_before",
    "is_matrix",
    "others",
    "parameter_of",
    "streak_of_known",
]

Ints = NDArray[np.intp]

# Before the name of a parameter: that of its gradient, and of its update.
GRADIENT, UPDATE = "gradient/", "update/"
PREFIXES = (GRADIENT, "gradient_unclipped/", UPDATE)


class KnownRows:
    """The values of each tensor at its known rows, close together.

    Args:
        values: Names x steps; NaN where a row says nothing.
        known: Which of them are rows.
    """

    def __init__(self, values: Floats, known: Bools) -> None:
        counted = np.cumsum(known, axis=1)
        self._before: NDArray[np.int64] = counted - known
        n_rows = int(counted[:, -1].max(initial=0)) if counted.size else 0
        self._rows = np.full((len(values), n_rows), np.nan)
        i, j = np.nonzero(known)
        self._rows[i, counted[i, j] - 1] = values[i, j]

    def before(self, i: Ints, j: Ints, n: int) -> Floats:
        """The last *n* rows before each of these cells, oldest first: cells x n.

        NaN where there were not so many.
        """
        padded = np.pad(self._rows, ((0, 0), (n, 0)), constant_values=np.nan)
        return np.asarray(sliding_window_view(padded, n, axis=1)[i, self._before[i, j]])


def held_before(holds: Bools, known: Bools) -> Bools:
    """Whether it held for the last known row of each tensor before each column."""
    at = np.arange(holds.shape[1])
    last = np.maximum.accumulate(np.where(known, at, -1), axis=1)
    before = np.full_like(last, -1)
    before[:, 1:] = last[:, :-1]
    held = np.take_along_axis(holds, np.maximum(before, 0), axis=1)
    return np.asarray(held & (before >= 0))


def first_of_columns(holds: Bools) -> tuple[Ints, Ints]:
    """Row and column of the first row at which it holds, for columns where it does."""
    columns = np.flatnonzero(holds.any(axis=0))
    if not len(columns):
        return columns, columns
    return np.argmax(holds[:, columns], axis=0), columns


def streak_of_known(holds: Bools, known: Bools) -> NDArray[np.int64]:
    """For how many known cells in a row it has held; those between are passed over."""
    counted = np.cumsum(known, axis=-1)
    reset = np.where(known & ~holds, counted, 0)
    return np.where(holds, counted - np.maximum.accumulate(reset, axis=-1), 0)


def facts_of_steps(
    window: Window, table: Table | UnitTable
) -> Iterator[tuple[Facts | None, slice]]:
    """What is known of the model, with the columns, old and new, where it holds."""
    start = 0
    n_steps = len(table.steps)
    while start < n_steps:
        facts = window.facts_at(int(table.steps[start]))
        # Facts hold for a long time: look for the end by halves.
        low, high = start + 1, n_steps
        while low < high:
            middle = (low + high) // 2
            if window.facts_at(int(table.steps[middle])) is facts:
                low = middle + 1
            else:
                high = middle
        yield facts, slice(start, low)
        start = low


def parameter_of(facts: Facts | None, name: str) -> ParameterFacts | None:
    """What is known of the parameter that a weight, gradient or update is of."""
    if facts is None:
        return None
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return facts.parameters.get(name)


def is_matrix(parameter: ParameterFacts | None) -> bool:
    """Whether it has several units with several weights each.

    Scales and shifts of normalizations, layer scales and biases have not.
    """
    if parameter is None or len(parameter.shape) < 2:
        return False
    n_units = parameter.shape[0]
    return n_units > 1 and math.prod(parameter.shape[1:]) > 1


def others(names: Sequence[str], most: int = 3) -> str:
    """Some of these names in words, and how many there are besides."""
    shown = ", ".join(names[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown
