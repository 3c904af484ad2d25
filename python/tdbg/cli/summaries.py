"""Summaries, sparklines and histograms of tensors, from their rows of statistics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from tdbg.cli.output import number, plain, shape, table
from tdbg.modes import ModeKeys
from tdbg.stats.histogram import Histogram
from tdbg.stats.number_formats import NARROW_TYPES

if TYPE_CHECKING:
    from rich.table import Table

    from tdbg.trial import Statistics, Trial


__all__ = [
    "TensorSummary",
    "print_histogram",
    "sparkline",
    "summarize",
    "summary_table",
    "to_json",
]


BARS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "!"
# Dots of a braille character, from the lowest: those on its left, and on its right.
BRAILLE = 0x2800
DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))

Series = Sequence[float] | NDArray[np.float64]


def sparkline(values: Series, width: int = 24) -> str:
    """Draw *values* in at most *width* characters.

    The lowest finite value stands lowest and the highest one highest; a series without
    change is drawn in the middle.  Up to *width* values are a bar each.  A longer
    series is cut into twice as many parts, and each is drawn from its lowest to its
    highest value, two to a character: what happened in one step is there, too.  A
    character that holds NaN or infinity is ``!``.

    >>> sparkline([1, 2, 3, 4])
    '▁▃▆█'
    >>> sparkline([1, 1, 1, 1, 1, 9, 1, 1, 1, 1, 1, 1], width=3)
    '⣀⣇⣀'
    """
    numbers = np.asarray(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return NOT_FINITE * min(len(numbers), width)
    bounds = float(finite.min()), float(finite.max())
    if len(numbers) <= width:
        shares = (_level(value, bounds, len(BARS)) for value in numbers.tolist())
        return "".join(NOT_FINITE if n is None else BARS[n] for n in shares)
    parts = [_range_of(part, bounds) for part in _parts(numbers, 2 * width)]
    return "".join(_character(parts[i : i + 2]) for i in range(0, len(parts), 2))


def _parts(numbers: NDArray[np.float64], n_most: int) -> list[NDArray[np.float64]]:
    n_parts = min(len(numbers), n_most)
    edges = [part * len(numbers) // n_parts for part in range(n_parts + 1)]
    return [numbers[a:b] for a, b in itertools.pairwise(edges)]


def _range_of(
    part: NDArray[np.float64], bounds: tuple[float, float]
) -> tuple[int, int] | None:
    """The lowest and the highest dot of a part; None if a value is not finite."""
    low = _level(float(part.min()), bounds, len(DOTS[0]))
    high = _level(float(part.max()), bounds, len(DOTS[0]))
    return None if low is None or high is None else (low, high)


def _level(value: float, bounds: tuple[float, float], n_levels: int) -> int | None:
    """At which of the levels a value stands; None if it is not finite."""
    if not math.isfinite(value):
        return None
    low, high = bounds
    if low == high:
        return n_levels // 2
    # Halved: the difference of two values near the largest float is not finite.
    share = (value / 2 - low / 2) / (high / 2 - low / 2)
    return min(round(share * (n_levels - 1)), n_levels - 1)


def _character(ranges: Sequence[tuple[int, int] | None]) -> str:
    """Two ranges, or one, side by side."""
    dots = 0
    for side, levels in zip(DOTS, ranges, strict=False):
        if levels is None:
            return NOT_FINITE
        low, high = levels
        dots |= sum(side[low : high + 1])
    return chr(BRAILLE + dots)


# From this width of the screen on all columns are shown.
WIDE = 112


@dataclass(frozen=True, slots=True, eq=False)
class TensorSummary:
    """One tensor over the steps at which its statistics were taken.

    ``mean`` to ``not_finite`` belong to the last of these steps; ``series`` has the
    root mean square at each of them, or the value of a tensor with one element.
    """

    name: str
    mode: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    steps: NDArray[np.int64]
    global_steps: NDArray[np.int64]
    mean: float
    std: float
    min: float
    max: float
    zero_share: float
    not_finite: int
    series: NDArray[np.float64]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        document = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in document.items()
        }


def summarize(
    trial: Trial, names: Sequence[str], mode: ModeKeys = ModeKeys.GLOBAL
) -> list[TensorSummary]:
    """Summarize those of *names* that have statistics, in the order given."""
    histories: dict[str, _History] = {}
    parts = trial.statistics_in_parts(
        names, mode=None if mode is ModeKeys.GLOBAL else mode
    )
    for rows in parts:
        for i in np.flatnonzero(rows.present.any(axis=1)).tolist():
            histories.setdefault(rows.names[i], _History()).add(rows, i)
    what = {each.name: each for each in trial.describe(list(histories))}
    summaries = []
    for name in names:
        if name not in histories:
            continue
        history = histories[name]
        steps = np.concatenate(history.steps)
        shape = what[name].shape
        if shape is None:
            shape = trial.tensor(name).shape(int(steps[-1]), ModeKeys.GLOBAL)
        summaries.append(
            TensorSummary(
                name=name,
                mode=mode.name,
                role=what[name].role,
                dtype=what[name].dtype,
                shape=shape,
                steps=np.array(trial.training_steps_at(steps.tolist()), np.int64),
                global_steps=steps,
                **history.last,
                series=history.series(),
            )
        )
    return summaries


class _History:
    """The history of a tensor for a summary, added in stretches of steps."""

    def __init__(self) -> None:
        self.steps: list[NDArray[np.int64]] = []
        self.last: dict[str, Any] = {}
        self._means: list[NDArray[np.float64]] = []
        self._rms: list[NDArray[np.float64]] = []
        self._is_single = True

    def add(self, rows: Statistics, i: int) -> None:
        """Add the rows of the tensor of that number, of which there are some."""
        at = np.flatnonzero(rows.present[i])
        count = rows.count[i, at].astype(np.float64)
        not_finite = (
            rows.nan[i, at] + rows.positive_infinity[i, at]
        ) + rows.negative_infinity[i, at]
        finite = np.maximum(count - not_finite, 1.0)
        self._is_single &= bool(np.all(count == 1))
        if not self._is_single:
            self._means.clear()
        hides = not_finite > 0
        if self._is_single:
            self._means.append(np.where(hides, np.nan, rows.mean[i, at]))
        self._rms.append(np.where(hides, np.nan, rows.l2[i, at] / np.sqrt(finite)))
        self.steps.append(rows.steps[at])
        last = at[-1]
        low, high = rows.exact_extremes(rows.names[i])
        self.last = {
            "mean": float(rows.mean[i, last]),
            "std": float(np.sqrt(rows.m2[i, last] / finite[-1])),
            "min": low[last].item(),
            "max": high[last].item(),
            "zero_share": float(rows.zero[i, last] / max(count[-1], 1.0)),
            "not_finite": int(not_finite[-1]),
        }

    def series(self) -> NDArray[np.float64]:
        """The values if there is one element at each step, else their magnitudes."""
        return np.concatenate(self._means if self._is_single else self._rms)


def summary_table(summaries: Sequence[TensorSummary], width: int) -> Table:
    """Draw a line for each summary, with a sparkline of the magnitude.

    A table of less than ``WIDE`` characters has no steps, minimum and maximum.
    """
    numbers: dict[str, Callable[[TensorSummary], str]] = {
        "steps": lambda summary: str(len(summary.steps)),
        "mean": lambda summary: number(summary.mean),
        "std": lambda summary: number(summary.std),
        "min": lambda summary: number(summary.min),
        "max": lambda summary: number(summary.max),
        "zero": lambda summary: f"{summary.zero_share:.0%}",
        "nan/inf": lambda summary: str(summary.not_finite or "-"),
    }
    if width < WIDE:
        for column in ("steps", "min", "max"):
            del numbers[column]
    if not any(summary.not_finite for summary in summaries):
        del numbers["nan/inf"]
    return table(
        ["tensor", "shape", *numbers, "rms over steps"],
        [
            [
                summary.name,
                shape(summary.shape),
                *(write(summary) for write in numbers.values()),
                sparkline(summary.series, width=14),
            ]
            for summary in summaries
        ],
        right=numbers,
    )


QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
LOSSES = ("underflow", "subnormal", "overflow", "uncertain")


def to_json(histogram: Histogram) -> dict[str, Any]:
    """The document of ``print_histogram`` for ``--json``."""
    values = histogram.quantile(QUANTILES).tolist()
    losses = {dtype: histogram.lost_in(dtype) for dtype in NARROW_TYPES}
    return {
        "count": histogram.count,
        "nan": histogram.nan,
        "zero": histogram.zero,
        "quantiles": [list(pair) for pair in zip(QUANTILES, values, strict=True)],
        "lost": {
            dtype: {name: getattr(loss, name) for name in LOSSES}
            for dtype, loss in losses.items()
        },
    }


def print_histogram(histogram: Histogram, step: int, out: Console) -> None:
    """Print quantiles, and the shares that each narrow type would lose."""
    document = to_json(histogram)
    parts = [f"{q:.0%} {number(x)}" for q, x in document["quantiles"]]
    out.print(plain(f"quantiles at step {step:,}: {', '.join(parts)}"))
    rows = [
        [dtype, *(_percent(loss[name]) for name in LOSSES)]
        for dtype, loss in document["lost"].items()
    ]
    out.print(table(("lost if cast to", *LOSSES), rows, right=LOSSES))


def _percent(share: float) -> str:
    """Write a share with two digits, as 0 % or 100 % only if it is just that."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share < 0.0001:
        return "<0.01%"
    return f"{min(share, 0.9999):.2%}"
