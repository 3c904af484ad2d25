"""Cores, GPUs and memory over time; and what the machine did, in percentiles.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.config.quantities import reach
from tdbg.run.profile_tables import core_shares
from tdbg.stats.estimates import lasting_growth
from tdbg.view.time.bins import BinColumns, Floats, Integers, covered

__all__ = [
    "Forecast",
    "UsageMap",
    "UsageRow",
    "core_name",
    "forecast_of",
    "growth",
    "usage_map",
    "usage_row",
]

# More cores than rows share them.
MOST_ROWS = 64
# A forecast is of so many medians of neighbouring samples.
BLOCKS = 60
LEAST_BLOCKS = 12
# What memory must have risen by, as a share of its limit.
LEAST_RISE = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class UsageMap:
    """How busy cores and GPUs were.

    Attributes:
        names: Name of each row.
        columns: The shares, 0 to 1, by row and column; NaN where nothing was recorded.
    """

    names: tuple[str, ...]
    columns: BinColumns

    def selected(self, chosen: Sequence[int]) -> UsageMap:
        """Return some of the rows, by their numbers."""
        found = self.columns
        low, high, mean = (each[chosen] for each in (found.low, found.high, found.mean))
        names = tuple(self.names[i] for i in chosen)
        return UsageMap(names, BinColumns(found.edges, low, high, mean, found.rows))


def usage_map(
    cores: Sequence[tuple[str, NDArray[np.void]]],
    gpus: Sequence[tuple[str, NDArray[np.void]]],
    edges: Integers,
) -> UsageMap:
    """Return how busy cores and GPUs were in columns of time; no sample is left out.

    Args:
        cores: Of each node its name, empty if there is one alone, and its rows of the
            table ``core``.
        gpus: Of each GPU its name and its rows of the table ``gpu``.
        edges: Bounds of the columns, in ns of the monotonic clock.
    """
    parts, names = [], []
    for node, rows in cores:
        busy = core_shares(rows)
        groups = _groups(busy.shape[1], MOST_ROWS // max(1, len(cores)))
        shares = np.stack([_mean(busy[:, g], axis=1) for g in groups], axis=1)
        parts.append(covered(rows["time"], shares, edges))
        names += [core_name(node, int(g[0]), int(g[-1])) for g in groups]
    for name, rows in gpus:
        shares = rows["busy"].astype(np.float64)[:, np.newaxis]
        parts.append(covered(rows["time"], shares, edges))
        names.append(name)
    if not parts:
        empty = np.empty((0, len(edges) - 1))
        nothing = np.zeros(len(edges) - 1, np.int64)
        return UsageMap((), BinColumns(edges, empty, empty, empty, nothing))
    low, high, mean = (
        np.concatenate([getattr(each, name) for each in parts])
        for name in ("low", "high", "mean")
    )
    rows_in = np.max([each.rows for each in parts], axis=0)
    return UsageMap(tuple(names), BinColumns(edges, low, high, mean, rows_in))


def _groups(n: int, most: int) -> list[NDArray[np.int64]]:
    return np.array_split(np.arange(n), min(n, max(1, most))) if n else []


def core_name(node: str, first: int, last: int | None = None) -> str:
    """Return what a core is called, or neighbours that share a row.

    Example:
        >>> core_name("", 3), core_name("node 1", 0, 2)
        ('core 3', 'node 1 core 0 to 2')
    """
    return f"{node} core {reach(first, first if last is None else last)}".strip()


def _mean(values: Floats, axis: int) -> Floats:
    known = np.isfinite(values)
    n = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(n > 0, total / np.maximum(n, 1), np.nan)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A metric of a machine over a run.

    Attributes:
        name: What was measured, with its unit.
        least: The least value.
        p50: The median.
        p95: What 95 of 100 samples do not exceed.
        p99: What 99 of 100 do not exceed.
        greatest: The greatest value.
        unit: "share", "bytes", "bytes/s" or "W".
        node: Where it was measured; empty if there is one node alone.
    """

    name: str
    least: float
    p50: float
    p95: float
    p99: float
    greatest: float
    unit: str
    node: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)


def usage_row(name: str, values: Floats, unit: str, node: str = "") -> UsageRow | None:
    """Return the percentiles of a metric; None if nothing was measured."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    least, p50, p95, p99, greatest = np.percentile(known, [0, 50, 95, 99, 100]).tolist()
    return UsageRow(name, least, p50, p95, p99, greatest, unit, node)


def growth(times: Integers, totals: Floats) -> Floats:
    """Return how fast a total grows, a second, between each two samples."""
    seconds = np.diff(times) / 1e9
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.diff(totals) / seconds
    # A counter that fell was reset.
    return np.where((seconds > 0) & (rate >= 0), rate, np.nan)


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a memory that grows reaches its limit.

    Attributes:
        slope: Bytes a second.
        now: Bytes at the end, by the line.
        seconds: From there to the limit.
        limit: The limit, in bytes.
    """

    slope: float
    now: float
    seconds: float
    limit: float

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)


def forecast_of(times: Integers, used: Floats, limit: float) -> Forecast | None:
    """Return when memory reaches its limit, or None if it does not grow for certain.

    The samples count as medians of neighbours, and must rise by 1 % of the limit; what
    is certain, ``tdbg.stats.estimates.lasting_growth`` says.

    Args:
        times: When each sample was taken, in ns.
        used: Bytes in use.
        limit: The limit in bytes; NaN: there is none.
    """
    known = np.isfinite(used)
    times, used = times[known], used[known]
    if len(used) < LEAST_BLOCKS or not math.isfinite(limit):
        return None
    blocks = np.array_split(np.arange(len(used)), min(BLOCKS, len(used) // 2))
    at = np.array([np.median(times[b]) for b in blocks]) / 1e9
    value = np.array([np.median(used[b]) for b in blocks])
    if len(blocks) < LEAST_BLOCKS:
        return None
    slope = lasting_growth(at, value, LEAST_RISE * limit)
    if not slope:
        return None
    now = float(np.median(value - slope * at) + slope * times[-1] / 1e9)
    return Forecast(slope, now, max(0.0, (limit - now) / slope), limit)
