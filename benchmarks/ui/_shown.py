"""What a page got of a series: how much of it, and which of the planted values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks._harness import check, check_close
from benchmarks.ui._series import Series

__all__ = ["Points", "Shown", "of_points"]

#: The name of a series, steps, and a value for each; None and words are no numbers.
Points = tuple[str, Sequence[int], Sequence[float | str | None]]


@dataclass(frozen=True)
class Shown:
    """What answers to a page hold.

    Attributes:
        n_series: Series of which there are numbers.
        n_rows: Rows that these numbers are of, of the series that has the most.
        n_spikes: Spikes that are among them.
        n_holes: NaN that are among them.
    """

    n_series: int
    n_rows: int
    n_spikes: int
    n_holes: int


def of_points(series: Series, points: Iterable[Points]) -> Shown:
    """What a page shows that gets some of the points, each of which is checked.

    Raises:
        WrongAnswer: If a point is not that of the series.
    """
    place = {name: i for i, name in enumerate(series.names)}
    found: dict[int, set[int]] = {}
    columns: dict[int, np.ndarray] = {}
    for name, steps, values in points:
        check(len(steps) == len(values), f"{name}: steps and values")
        tensor = place[name]
        for step, value in zip(steps, values, strict=True):
            if step not in columns:
                columns[step] = series.values(step)
            expected = float(columns[step][tensor])
            if np.isnan(expected):
                is_none = value is None or np.isnan(float(value))
                check(is_none, f"{name}, step {step}: {value!r}, not NaN")
            else:
                check(value is not None, f"{name}, step {step}: no value")
                check_close(float(value or 0), expected, 1e-5, f"{name}, step {step}")
        found.setdefault(tensor, set()).update(steps)
    return Shown(
        len(found),
        max(map(len, found.values()), default=0),
        sum(step in found.get(i, ()) for i, step in series.spikes.items()),
        sum(step in found.get(i, ()) for i, step in series.holes.items()),
    )
