"""The band in which healthy runs of a sweep stay; who leaves it, where and when.

Runs of a sweep differ in their settings, so no single one of them is the reference.
The herd is: of each tensor and each stretch of steps, the median of the healthy runs
and how far they usually lie from it.  A run is judged by the Hampel identifier:

    deviation = (log2 v - median) / max(scale of the cell, scale of the tensor, floor)

where *scale* is the median absolute deviation from the median, times 1.4826 (to equal
the standard deviation of normal values) and times the factor for few values of Croux
and Rousseeuw (Time-efficient algorithms for two highly robust estimators of scale,
1992).  Both estimators stay sound while fewer than half of the runs are wrong, so a run
that nobody has accused may be part of the herd and still be found apart from it.
Of a stretch, the least value is compared with the least ones, the mean with the means
and the greatest with the greatest ones, so that a spike is seen however wide it is.

Thread safety: values, and functions that hold a trial's lock inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tdbg.compare.axis import Axis
from tdbg.compare.ratio import RATIO_FIELDS
from tdbg.errors import ConfigurationError, QueryError
from tdbg.trial import Trial

__all__ = ["FEWEST_RUNS", "FURTHEST", "Departure", "Herd", "herd", "located"]

#: A band needs so many healthy runs.
FEWEST_RUNS = 5
#: A run is apart where it lies so many scales from the median.
FURTHEST = 6.0
# It has left where it is apart in so many recorded columns, one after the other.
LASTING = 3
# Of an infinite deviation, so that it can be drawn.
BEYOND = 99.0
# Runs that agree to the last bit still are no closer than 2 % to each other.
FLOOR = float(np.log2(1.02))
# The logarithm of what is zero: below that of the least number of float32.
ZERO = -150.0
NORMAL = 1.4826
# By which the scale of so many values is too small; of more it is n / (n - 0.8).
FEW = (1.0, 1.0, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)
# Cells of a part that is compared at once: some 100 MB while it is.
PART_CELLS = 1 << 21
_SIDES = ("low", "mean", "high")

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a tensor of a run left the herd.

    Attributes:
        name: The tensor.
        place: The first place on the axis at which it was apart.
        until: The place at which it was back; None if it stayed apart.
        deviation: The largest deviation while it was apart, in scales of the herd:
            negative below the band, at most 99 in either direction, which is what a
            NaN or Inf counts as, too.
    """

    name: str
    place: int
    until: int | None
    deviation: float


@dataclass(frozen=True, slots=True, eq=False)
class Herd:
    """The band of the healthy runs, and how far each run lies from its middle.

    Attributes:
        names: The tensors, each a row of the arrays.
        marks: int64 (columns + 1,): bounds of the columns on the axis.
        center: float32 (names, columns): the median of the healthy runs; NaN where
            fewer than ``FEWEST_RUNS`` of them recorded something.
        low: The lower bound of the band, ``FURTHEST`` scales below the median.
        high: The upper bound, likewise.
        n_healthy: uint32 (names, columns): how many healthy runs recorded something.
        mean: float32 (runs, names, columns): the mean of each run; NaN where it
            recorded nothing.
        deviations: float32 (runs, names, columns): the deviation of each run, in
            scales; NaN where the run or the herd recorded nothing.
    """

    names: list[str]
    marks: NDArray[np.int64]
    center: Floats
    low: Floats
    high: Floats
    n_healthy: NDArray[np.uint32]
    mean: Floats
    deviations: Floats

    def departures(self, run: int) -> list[Departure]:
        """Return where the tensors of a run left the herd, the earliest first.

        Tensors that leave at the same place stay in the order of ``names``.

        Args:
            run: Its place among the runs that the herd was made of.
        """
        found = []
        for i, name in enumerate(self.names):
            left = _first_departure(self.deviations[run, i])
            if left is not None:
                start, end, deviation = left
                until = None if end is None else int(self.marks[end])
                place = int(self.marks[start])
                found.append(Departure(name, place, until, deviation))
        return sorted(found, key=lambda each: each.place)


def herd(
    runs: Sequence[Trial],
    healthy: Sequence[bool],
    names: Sequence[str],
    *,
    field: str = "rms",
    axis: Axis = Axis.STEP,
    marks: NDArray[np.int64],
    check: Callable[[], None] | None = None,
) -> Herd:
    """Compare runs with the band of those that are healthy.

    Args:
        runs: The runs of a sweep.
        healthy: Of each, whether it is part of the herd.
        names: Tensors, in the order in which they are to be told; those that fewer
            than ``FEWEST_RUNS`` healthy runs have are left out.
        field: One of ``RATIO_FIELDS``.
        axis: What the runs are aligned by.
        marks: int64 (columns + 1,), ascending: bounds of the columns on the axis.
        check: As of ``Trial.envelope``.

    Raises:
        ConfigurationError: If the field is no magnitude.
        QueryError: If too few runs are healthy, or have tensors in common.

    Example:
        found = herd(trials, [True] * 9 + [False], names, marks=np.arange(0, 501, 5))
        for left in found.departures(9)[:3]:
            print(f"{left.name} left the herd at step {left.place}")
    """
    if field not in RATIO_FIELDS:
        msg = f"{field!r} has no band: use one of {', '.join(RATIO_FIELDS)}"
        raise ConfigurationError(msg)
    members = np.asarray(healthy, bool)
    _refuse_few(int(members.sum()), "healthy runs")
    known = [frozenset(run.tensor_names()) for run in runs]
    shared = [name for name in names if _n_having(name, known, members) >= FEWEST_RUNS]
    if not shared:
        msg = (
            f"no tensor is in {FEWEST_RUNS} of the {int(members.sum())} healthy runs: "
            "their models have no names in common"
        )
        raise QueryError(msg)
    n_columns = len(marks) - 1
    size = max(1, PART_CELLS // max(1, len(runs) * n_columns))
    edges = [axis.edges(run.step_table(), marks) for run in runs]
    parts = []
    for i in range(0, len(shared), size):
        part = shared[i : i + size]
        cells = [
            _cells(
                run, [name for name in part if name in has], part, field, each, check
            )
            for run, has, each in zip(runs, known, edges, strict=True)
        ]
        parts.append(_judged(np.stack(cells), members))
    joined = [
        np.concatenate(each, axis=each[0].ndim - 2) for each in zip(*parts, strict=True)
    ]
    return Herd(shared, marks, *joined)


def located(
    departures: Sequence[Departure],
    run: int,
    runs: Sequence[Trial],
    healthy: Sequence[bool],
    *,
    field: str = "rms",
    axis: Axis = Axis.STEP,
    width: int,
    check: Callable[[], None] | None = None,
) -> list[Departure]:
    """Return the departures of a run with the very places where it left.

    A column of a herd may cover many steps.  The columns around each departure are
    compared again, place by place; where too few healthy runs recorded the same places,
    the departure stays where its column begins.

    Args:
        departures: Of ``Herd.departures``, in columns that are *width* wide.
        run: The place of the run among the runs.
        runs: As of ``herd``, like those below.
        healthy: Which of the runs are the herd.
        field: The statistic.
        axis: What the runs are aligned by.
        width: Places that a column covers.
        check: As of ``Trial.envelope``.
    """
    if width <= 1:
        return list(departures)
    found = []
    for place, names in _by_place(departures).items():
        start = max(0, place - width)
        marks = np.arange(start, place + LASTING * width + 1, dtype=np.int64)
        near = herd(
            runs, healthy, names, field=field, axis=axis, marks=marks, check=check
        )
        exact = {each.name: each.place for each in near.departures(run)}
        found += [
            replace(each, place=exact.get(each.name, each.place))
            for each in departures
            if each.place == place
        ]
    return sorted(found, key=lambda each: each.place)


def _by_place(departures: Sequence[Departure]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for each in departures:
        found.setdefault(each.place, []).append(each.name)
    return found


def _n_having(
    name: str, known: Sequence[frozenset[str]], members: NDArray[np.bool_]
) -> int:
    pairs = zip(known, members, strict=True)
    return sum(bool(is_healthy) and name in has for has, is_healthy in pairs)


def _refuse_few(n: int, what: str) -> None:
    if n < FEWEST_RUNS:
        msg = (
            f"a band needs {FEWEST_RUNS} {what}, and there "
            f"{'is' if n == 1 else 'are'} {n or 'none'}: choose more runs"
        )
        raise QueryError(msg)


def _cells(
    run: Trial,
    has: Sequence[str],
    names: Sequence[str],
    field: str,
    edges: NDArray[np.int64],
    check: Callable[[], None] | None,
) -> NDArray[np.float64]:
    """Return logarithms of a run's values, (sides, names, columns).

    NaN: nothing was recorded; +Inf: not all of it is finite.
    """
    found = np.full((len(_SIDES), len(names), len(edges) - 1), np.nan)
    if not has:
        return found
    read = run.envelope(list(has), edges=edges, fields=field, check=check)
    at = [names.index(name) for name in read.names]
    for k, side in enumerate(_SIDES):
        with np.errstate(divide="ignore"):
            logarithms = np.log2(getattr(read, side)[field].astype(np.float64))
        found[k, at] = np.maximum(logarithms, ZERO)
    found[:, at] = np.where(read.bad > 0, np.inf, found[:, at])
    return found


def _judged(
    cells: NDArray[np.float64], members: NDArray[np.bool_]
) -> tuple[NDArray[np.generic], ...]:
    """Return what ``Herd`` has, of cells (runs, sides, names, columns)."""
    within = np.where(np.isfinite(cells[members]), cells[members], np.nan)
    n = np.isfinite(within[:, 1]).sum(axis=0)
    few = n < FEWEST_RUNS
    center = _median(within)
    scale = _median(np.abs(within - center)) * NORMAL * _factor(n)
    with np.errstate(invalid="ignore"):
        usual = _median(np.moveaxis(scale, -1, 0))[..., np.newaxis]
    scale = np.fmax(np.fmax(scale, usual), FLOOR)
    center[:, few] = np.nan
    bad = np.isposinf(cells)
    with np.errstate(invalid="ignore"):
        apart = np.clip((cells - center) / scale, -BEYOND, BEYOND)
    apart[bad & np.isfinite(center)] = BEYOND
    furthest = _furthest(apart)
    middle, width = center[1], FURTHEST * scale[1]
    mean = np.where(bad[:, 1], np.nan, cells[:, 1])
    return (
        _power(middle),
        _power(middle - width),
        _power(middle + width),
        n.astype(np.uint32),
        _power(mean),
        furthest.astype(np.float32),
    )


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median over the first axis of what is no NaN; NaN without any."""
    ordered = np.sort(values, axis=0)  # NaN comes last.
    n = np.isfinite(ordered).sum(axis=0)
    last = np.maximum(n - 1, 0)
    lower, upper = (
        np.take_along_axis(ordered, at[np.newaxis], axis=0)[0]
        for at in (last // 2, (last + 1) // 2)
    )
    middle: NDArray[np.float64] = (lower + upper) / 2
    return middle


def _factor(n: NDArray[np.int64]) -> NDArray[np.float64]:
    """By what the scale of *n* values is multiplied to be right on average."""
    few = np.asarray(FEW)[np.minimum(n, len(FEW) - 1)]
    return np.where(n < len(FEW), few, n / np.maximum(n - 0.8, 1.0))


def _furthest(apart: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return that of the sides which is furthest from zero, (runs, names, columns)."""
    size = np.where(np.isnan(apart), -1.0, np.abs(apart))
    at = size.argmax(axis=1)[:, np.newaxis]
    found: NDArray[np.float64] = np.take_along_axis(apart, at, axis=1)[:, 0]
    return found


def _power(logarithms: NDArray[np.float64]) -> Floats:
    """Return what the logarithms are of; what stood for zero is zero again."""
    with np.errstate(over="ignore", under="ignore"):
        found = np.exp2(logarithms).astype(np.float32)
    return np.where(logarithms <= ZERO, np.float32(0), found)


def _first_departure(
    deviations: Floats,
) -> tuple[int, int | None, float] | None:
    """Return where a tensor leaves, where it is back (columns), and how far it was."""
    recorded = np.flatnonzero(~np.isnan(deviations))
    size = np.abs(deviations[recorded])
    is_apart = size > FURTHEST
    # What is not finite has left at once.
    starts = _lasting(is_apart) | (size >= BEYOND)
    if not starts.any():
        return None
    start = int(starts.argmax())
    back = np.flatnonzero(_lasting(~is_apart)[start:])
    end = start + int(back[0]) if len(back) else None
    within = deviations[recorded[start:end]]
    furthest = float(within[np.abs(within).argmax()])
    return int(recorded[start]), None if end is None else int(recorded[end]), furthest


def _lasting(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where a flag is set and stays so in the next columns."""
    found = np.zeros(len(flags), bool)
    n = len(flags) - LASTING + 1
    if n > 0:
        found[:n] = np.logical_and.reduce([flags[k : k + n] for k in range(LASTING)])
    return found
