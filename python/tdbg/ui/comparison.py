"""What screens of several runs show: curves, differences, the herd they form.

Thread safety: functions; the trials' locks are held inside.

Errors: as of ``tdbg.compare``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tdbg.compare import (
    FEWEST_RUNS,
    FURTHEST,
    Axis,
    Departure,
    Value,
    differences,
    divergence,
    facts_of,
    herd,
    located,
    ratios,
    settings_of,
)
from tdbg.errors import ConfigurationError
from tdbg.modes import ModeKeys
from tdbg.trial import STEP_TABLE_DTYPE, Trial
from tdbg.ui.packing import pack
from tdbg.ui.runs import OpenRun
from tdbg.ui.series import (
    Curve,
    check_cells,
    curve,
    curve_names,
    exact_number,
    marks_of,
)
from tdbg.view import in_forward_order

__all__ = ["curves", "differing", "divergence_points", "herd_of", "ratio"]

SCALAR = "scalar/"
# So many of the earliest departures are told, and looked into for the very step.
MOST_DEPARTURES = 64
# Of all runs of a herd; a page draws no more columns than a screen has.
MOST_CELLS = 1 << 24
MAX_ROWS = 300
MAX_POINTS = 12


def differing(trials: Sequence[Trial]) -> dict[str, Any]:
    """Facts and settings that are not the same in all runs.

    Returns:
        Under ``facts`` and ``settings`` rows of a name, and of each run what it says:
        words, a number, a list of the least and the greatest, or None; ``n_same`` and
        ``n_more``, how many settings are the same, and how many more differ.
    """
    facts = [facts_of(trial) for trial in trials]
    settings = [settings_of(trial) for trial in trials]
    names = {name for each in settings for name in each}
    different = differences(settings)
    return {
        "facts": [_row(*each) for each in differences(facts)],
        "settings": [_row(*each) for each in different[:MAX_ROWS]],
        "n_same": len(names) - len(different),
        "n_more": max(0, len(different) - MAX_ROWS),
    }


def _row(name: str, values: Sequence[Value | None]) -> dict[str, Any]:
    told = [
        exact_number(each) if isinstance(each, int | float) else each or None
        for each in values
    ]
    return {"name": name, "values": told}


def ratio(
    first: Trial,
    second: Trial,
    *,
    role: str,
    field: str,
    axis: Axis,
    start: int | None,
    stop: int | None,
    columns: int,
    check: Callable[[], None],
) -> bytes:
    """The binary logarithm of how many times as large the first run's tensors are.

    Args:
        first: A run.
        second: The one that it is compared with.
        role: Of which tensors.
        field: Of which statistic: one of ``tdbg.compare.RATIO_FIELDS``.
        axis: What the runs are aligned by.
        start: First place on it; None: that of the first run's first step.
        stop: Place before which to end; None: behind the last step of the first run.
        columns: At most so many columns.
        check: As of ``Trial.envelope``.
    """
    names = first.names_of_role(role)
    check_cells(len(names), columns)
    marks = marks_of(axis, first.step_table(), start, stop, columns)
    found = ratios(
        first, second, names, field=field, axis=axis, marks=marks, check=check
    )
    return pack(
        {"names": found.names, "field": field},
        {
            "edges": found.marks.astype(np.float64),
            "low": found.low,
            "high": found.high,
            "mean": found.mean,
            "rows": found.rows,
            "bad": found.bad,
        },
    )


def divergence_points(
    first: Trial,
    second: Trial,
    *,
    axis: Axis,
    tolerance: float,
    check: Callable[[], None],
) -> dict[str, Any]:
    """Return where two runs diverge, and which tensors diverge first.

    Runs that are aligned by time still diverge at a step.
    """
    aligned = Axis.STEP if axis.is_time else axis
    found = divergence(first, second, axis=aligned, tolerance=tolerance, check=check)
    return {
        "by": aligned.value,
        "n_names": found.n_names,
        "n_places": found.n_places,
        "n_points": len(found.points),
        "points": [
            {
                "name": each.name,
                "place": each.place,
                "deviation": each.deviation if np.isfinite(each.deviation) else None,
            }
            for each in found.points[:MAX_POINTS]
        ],
    }


def curves(
    runs: Sequence[OpenRun],
    label: str,
    *,
    axis: Axis,
    start: int,
    stop: int,
    columns: int,
    check: Callable[[], None],
) -> bytes:
    """One loss or metric of several runs, in columns that they share.

    Args:
        runs: The runs; one that has none of that name has no rows.
        label: Name of a loss or metric as records have it: ``val/accuracy (EVAL)``.
        axis: What a place is.
        start: First place on the axis.
        stop: Place before which to end.
        columns: At most so many columns.
        check: As of ``Trial.envelope``.
    """
    check_cells(len(runs), columns)
    name, mode = _named(label)
    found: list[Curve | None] = []
    for run in runs:
        check()
        found.append(_curve(run.trial, name, mode, axis, (start, stop), columns, check))
    marks = marks_of(axis, NO_STEPS, start, stop, columns).astype(np.float64)
    known = [each for each in found if each is not None]
    edges = known[0].edges if known else marks
    return pack(
        {"names": [run.id for run in runs]},
        {"edges": edges, **{name: _stacked(found, name, edges) for name in _ARRAYS}},
    )


# Bounds that are given need no steps.
NO_STEPS = np.empty(0, STEP_TABLE_DTYPE)
_ARRAYS = ("low", "high", "mean", "rows", "bad")


def _named(label: str) -> tuple[str, ModeKeys]:
    """Name and mode of what a record calls by a label."""
    head, _, tail = label.rpartition(" (")
    mode = tail.removesuffix(")")
    if head and mode in ModeKeys.__members__:
        return head, ModeKeys[mode]
    return label, ModeKeys.TRAIN


def _curve(
    trial: Trial,
    name: str,
    mode: ModeKeys,
    axis: Axis,
    place: tuple[int, int],
    columns: int,
    check: Callable[[], None],
) -> Curve | None:
    known = curve_names(trial)
    own = next((each for each in (name, SCALAR + name) if each in known), None)
    if own is None:
        return None
    start, stop = place
    return curve(
        trial,
        own,
        mode=mode if mode in trial.modes() else None,
        start=start,
        stop=stop,
        axis=axis,
        columns=columns,
        check=check,
    )


def _stacked(found: Sequence[Curve | None], name: str, edges: Any) -> Any:
    dtype = np.uint32 if name in ("rows", "bad") else np.float32
    nothing = np.full(len(edges) - 1, 0 if dtype is np.uint32 else np.nan, dtype)
    return np.stack(
        [nothing if each is None else getattr(each, name) for each in found]
    ).astype(dtype)


def herd_of(
    runs: Sequence[OpenRun],
    healthy: Sequence[str],
    *,
    of: str | None,
    role: str,
    field: str,
    axis: Axis,
    start: int,
    stop: int,
    columns: int,
    check: Callable[[], None],
) -> bytes:
    """The band of the healthy runs, and how one run lies to it.

    Args:
        runs: The runs of the sweep.
        healthy: Ids of those that are the herd.
        of: Id of the run that is looked at; None: the one that left first, and with
            most of its tensors.
        role: Of which tensors.
        field: One of ``tdbg.compare.RATIO_FIELDS``.
        axis: What the runs are aligned by.
        start: First place on the axis.
        stop: Place before which to end.
        columns: At most so many columns.
        check: As of ``Trial.envelope``.

    Returns:
        In the header ``of``, ``names``, ``furthest`` and ``fewest`` (bounds of the
        judgement), ``runs``: of each its ``id``, ``left`` (how many tensors left) and
        ``first`` (a place), and ``departures`` of the run, the earliest first; arrays
        ``deviation``, ``low``, ``center``, ``high`` and ``value``.
    """
    ids = [run.id for run in runs]
    if of is not None and of not in ids:
        msg = "the run that is looked at is none of the runs"
        raise ConfigurationError(msg)
    trials = [run.trial for run in runs]
    is_healthy = [each in healthy for each in ids]
    names = _names(trials, role)
    most = MOST_CELLS // max(1, len(names) * len(runs))
    marks = marks_of(axis, NO_STEPS, start, stop, min(columns, max(16, most)))
    found = herd(
        trials, is_healthy, names, field=field, axis=axis, marks=marks, check=check
    )
    left = [found.departures(i) for i in range(len(runs))]
    at = ids.index(of) if of is not None else _most_apart(left)
    exact = located(
        left[at][:MOST_DEPARTURES],
        at,
        trials,
        is_healthy,
        field=field,
        axis=axis,
        width=int(marks[1] - marks[0]) if len(marks) > 1 else 1,
        check=check,
    )
    return pack(
        {
            "of": ids[at],
            "names": found.names,
            "field": field,
            "furthest": FURTHEST,
            "fewest": FEWEST_RUNS,
            "runs": [_in_short(*each) for each in zip(ids, left, strict=True)],
            "departures": [asdict(each) for each in exact],
        },
        {
            "edges": marks.astype(np.float64),
            "deviation": found.deviations[at],
            "low": found.low,
            "center": found.center,
            "high": found.high,
            "value": found.mean[at],
        },
    )


def _in_short(id_: str, departures: Sequence[Departure]) -> dict[str, Any]:
    """How many tensors of a run left and stayed apart, or came back, and the first."""
    stayed = sum(each.until is None for each in departures)
    return {
        "id": id_,
        "left": stayed,
        "visits": len(departures) - stayed,
        "first": departures[0].place if departures else None,
    }


def _names(trials: Sequence[Trial], role: str) -> list[str]:
    """The tensors of a role that any run has, each run's in order of the forward."""
    found: dict[str, None] = {}
    for trial in trials:
        with trial.no_refresh():
            names = in_forward_order(trial, trial.names_of_role(role))
        found.update(dict.fromkeys(names))
    return list(found)


def _most_apart(left: Sequence[Sequence[Departure]]) -> int:
    """The run that most tensors of have left and not come back; of these the first."""
    stayed = [sum(each.until is None for each in departures) for departures in left]
    return max(range(len(left)), key=lambda i: (stayed[i], len(left[i])))
