"""What the screen TIME shows: the values of ``tdbg.view.time``, as JSON and as arrays.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tdbg.errors import QueryError
from tdbg.trial import Trial
from tdbg.ui.packing import pack
from tdbg.ui.series import MAX_PLACE
from tdbg.view.time import (
    NO_PROFILE,
    BinColumns,
    LoaderUse,
    MemoryUse,
    TimeView,
    even_edges,
    lateness_in,
    time_of,
)

__all__ = ["facts", "maps", "view_of_time"]


def view_of_time(trial: Trial) -> TimeView:
    """Return where the time of a run went, as of now."""
    with trial.no_refresh():
        return time_of(trial)


def facts(trial: Trial, view: TimeView) -> dict[str, Any]:
    """Return all that the screen shows apart from charts over steps.

    A run without a profile has ``"said"``, which says so, and nothing else.
    """
    with trial.no_refresh():
        if view.is_empty:
            return {"said": NO_PROFILE}
        return {"said": "", **_of_steps(view), **_of_machine(view)}


def _of_steps(view: TimeView) -> dict[str, Any]:
    """Where the time of steps went, and what to change."""
    n_slow, slowest = view.slow
    return {
        "sentence": view.sentence,
        "change": _or_none(view.change),
        "breakdowns": _all(view.breakdowns),
        "job": _all(view.job),
        "goodput": view.goodput if math.isfinite(view.goodput) else None,
        "throughput": _or_none(view.throughput),
        "remarks": list(view.remarks),
        "n_slow": n_slow,
        "slow": _all(slowest),
    }


def _of_machine(view: TimeView) -> dict[str, Any]:
    """Loaders, ranks, operators, lines, and what was measured of the machine."""
    return {
        "loaders": [_loader(each) for each in view.loading],
        "lateness": _or_none(view.lateness),
        "operators": _all(view.operators),
        "lines": _all(view.python_lines),
        "machine": _all(view.machine.table()),
        "memory": [_memory(each) for each in view.machine.memories()],
        "energy": view.energy.statement,
        "own_cost": _or_none(view.own_cost),
        "lacks": list(view.lacks),
    }


class _Told(Protocol):
    def to_json(self) -> dict[str, Any]: ...


def _or_none(value: _Told | None) -> dict[str, Any] | None:
    return None if value is None else value.to_json()


def _all(values: Iterable[_Told]) -> list[dict[str, Any]]:
    return [each.to_json() for each in values]


def _loader(use: LoaderUse) -> dict[str, Any]:
    said = use.what_if.text(use.workers) if use.what_if else ""
    return {**use.to_json(), "said": said}


def _memory(use: MemoryUse) -> dict[str, Any]:
    return {
        "name": use.name,
        "limit": use.limit if math.isfinite(use.limit) else None,
        "forecast": None if use.forecast is None else use.forecast.to_json(),
    }


def maps(
    trial: Trial, view: TimeView, start: int | None, stop: int | None, columns: int
) -> bytes:
    """Return what the screen draws over training steps; every row is in a column.

    Args:
        trial: The run.
        view: Of the run.
        start: The first training step; None: the first that there is.
        stop: The training step after the last one; None: the one after the newest.
        columns: At most so many columns.

    Returns:
        Arrays, of which each column of steps is a column: ``phases`` (phases, columns),
        ms a step; ``duration_low``, ``_high`` and ``_mean``, ms, and ``steps``, how
        many they are of; ``usage``, ``usage_low`` and ``usage_high`` (cores and GPUs,
        columns), 0 to 1; ``depth_*``, batches; ``late`` (ranks, columns), ms;
        ``memory_*`` (memories, columns), GB.  NaN: not recorded.

    Raises:
        QueryError: If the run has no step of training in its profile.
    """
    with trial.no_refresh():
        if not view.has_steps:
            msg = "the profile of this run has no step of training"
            raise QueryError(msg)
        first, last = view.span
        begin = first if start is None else min(start, MAX_PLACE)
        end = last + 1 if stop is None else min(stop, MAX_PLACE)
        edges = even_edges(begin, max(end, begin + 1), columns)
        bands, usage, depth = view.bands(edges), view.usage(edges), view.depth_in(edges)
        memory = view.memory_in(edges)
        late = view.lateness
        header = {
            "phases": [phase.value for phase in bands.phases],
            "phase_names": bands.names,
            "usage_names": list(usage.names),
            "ranks": [] if late is None else [each.worker for each in late.ranks],
            "memory_names": [name for name, _ in memory],
        }
        arrays: dict[str, NDArray[Any]] = {
            "edges": edges.astype(np.float64),
            "phases": _single(bands.mean_ns / 1e6),
            **_reach("duration", bands.durations, 1e6),
            "usage": _single(usage.columns.mean),
            "usage_low": _single(usage.columns.low),
            "usage_high": _single(usage.columns.high),
            **_reach("depth", depth),
        }
        if late is not None:
            arrays["late"] = _single(lateness_in(late, edges).mean / 1e6)
        for i, (_, columns_of) in enumerate(memory):
            arrays |= _reach(f"memory{i}", columns_of, 1e9)
        return pack(header, arrays)


def _reach(
    name: str, columns: BinColumns, unit: float = 1.0
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a chart of low, high and mean."""
    return {
        f"{name}_low": _single(columns.low / unit),
        f"{name}_high": _single(columns.high / unit),
        f"{name}_mean": _single(columns.mean / unit),
        f"{name}_rows": columns.rows.astype(np.uint32),
    }


def _single(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return values.astype(np.float32)
