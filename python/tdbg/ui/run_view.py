"""How a run is, with where its steps lie on each axis: for its screens, and for a list.

Thread safety: a function; the trial's lock is held inside.
"""

from __future__ import annotations

from typing import Any

from tdbg.compare import Axis
from tdbg.trial import Trial
from tdbg.view import RunView, view_of

__all__ = ["viewed"]


def viewed(trial: Trial) -> tuple[RunView, dict[str, Any]]:
    """How a run is, and the same for JSON."""
    table = trial.step_table()
    view = view_of(trial, table=table)
    # Where its steps begin and end, on the axes that runs are compared on.
    starts = {axis.value: axis.start(table) for axis in Axis}
    ends = {axis.value: axis.end(table) for axis in Axis}
    return view, {**view.to_json(), "starts": starts, "ends": ends}
