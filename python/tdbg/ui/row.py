"""What the table of runs says of a run, its row; and a program that reads rows.

How it is, in short: its state, its verdict, and how its loss goes.  And its record:
settings, and the last and best of each loss and metric, as a row of ``tdbg.query``,
which says the same to SQL.

Thread safety: functions, inside which the trial's lock is held.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tdbg.compare import Axis
from tdbg.errors import TdbgError
from tdbg.query import record_of
from tdbg.trial import Trial, create_trial
from tdbg.ui.series import Curve, curve, curve_names
from tdbg.view import RunView, view_of

__all__ = ["main", "read_row", "row_of", "viewed"]

SPARK_COLUMNS = 48
SPARK_DIGITS = 4
# What a row shows of what is said of a run.
SHOWN = (
    *("state", "steps", "evaluated", "counted_steps", "recorded", "last_step", "rate"),
    *("cost", "created", "stopped", "wall", "bytes", "damaged_files", "verdict"),
    *("counts", "last_loss", "starts", "ends", "missing"),
)


def viewed(trial: Trial) -> tuple[RunView, dict[str, Any]]:
    """How a run is, and the same for JSON."""
    table = trial.step_table()
    view = view_of(trial, table=table)
    # Where its steps begin and end, on the axes that runs are compared on.
    spans = {axis.value: axis.span(table) for axis in Axis}
    starts = {axis: start for axis, (start, _) in spans.items()}
    ends = {axis: end for axis, (_, end) in spans.items()}
    return view, {**view.to_json(), "starts": starts, "ends": ends}


def row_of(trial: Trial) -> dict[str, Any]:
    """Return the row of a run.

    Returns:
        How it is, ``loss``, a curve, and ``record``: its ``settings``, and ``last`` and
        ``best`` by name, where None is a value that is not finite.
    """
    with trial.no_refresh():
        view, document = viewed(trial)
        record = record_of(trial, ("last", "best", "settings"), view=view)
        return {
            **{each: document[each] for each in SHOWN},
            "loss": _loss(trial, view),
            "record": record.to_json(),
        }


def _loss(trial: Trial, view: RunView) -> dict[str, Any] | None:
    loss = view.loss
    name = loss.name if loss else next(iter(curve_names(trial)), None)
    if name is None:
        return None
    mode = loss.mode if loss else None
    return {
        "name": name,
        **_spark(curve(trial, name, mode=mode, columns=SPARK_COLUMNS)),
    }


def _spark(found: Curve) -> dict[str, Any]:
    """A curve with as many digits as a line of text can show."""
    document = found.to_json()
    return {
        "bad": document["bad"],
        **{
            name: [
                None if x is None else float(f"{x:.{SPARK_DIGITS}g}")
                for x in document[name]
            ]
            for name in ("low", "high", "mean")
        },
    }


def read_row(path: str) -> dict[str, Any]:
    """Return the row of a run.

    Raises:
        TdbgError: If it cannot be read.
    """
    return row_of(create_trial(path))


def main() -> None:
    """Read the runs whose paths come line by line; what such a process runs."""
    says, sys.stdout = sys.stdout, sys.stderr
    print("ready", file=says, flush=True)
    for line in sys.stdin:
        told: dict[str, Any]
        try:
            told = {"row": read_row(json.loads(line))}
        except TdbgError as error:
            told = {"error": str(error)}
        print(json.dumps(told), file=says, flush=True)
