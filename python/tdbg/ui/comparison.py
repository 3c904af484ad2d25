"""What the screen that compares runs shows, as ``tdbg.compare`` finds it.

Thread safety: functions; the trials' locks are held inside.

Errors: as of ``tdbg.compare``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tdbg.compare import (
    Axis,
    Value,
    differences,
    divergence,
    facts_of,
    ratios,
    settings_of,
)
from tdbg.trial import Trial
from tdbg.ui.packing import pack
from tdbg.ui.series import check_cells, exact_number, marks_of

__all__ = ["differing", "divergence_points", "ratio"]

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
