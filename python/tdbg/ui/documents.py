"""What a page shows of runs, as JSON: all but the numbers of charts.

In the table of runs, each is told in two parts.  In short: its state, its verdict, and
how its loss goes.  Its record: settings, and the last and best of each loss and metric,
as a row of ``tdbg.query``, which says the same to SQL.

Thread safety: functions; the trial's lock is held inside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tdbg.compare import Axis
from tdbg.errors import TdbgError
from tdbg.query import record_of
from tdbg.run.annotations import NOTHING
from tdbg.run.in_use import state_at_a_glance
from tdbg.trial import Trial
from tdbg.ui.runs import OpenRun, Runs
from tdbg.ui.series import Curve, curve, curve_names
from tdbg.view import (
    RunRow,
    RunView,
    file_problems,
    in_forward_order,
    tensors_in,
    view_of,
)

__all__ = [
    "describe_run",
    "described",
    "list_runs",
    "records_of_runs",
    "tell_runs",
    "tensors_of",
    "tree_sections",
]

SPARK_COLUMNS = 48
SPARK_DIGITS = 4
# Threads that wait for the disk; Python runs in one of them at a time.
OPENERS = 4
SHORT, RECORD = "short", "record"
# What a row shows of what is said of a run.
SHOWN = (
    *("state", "steps", "evaluated", "counted_steps", "recorded", "last_step", "rate"),
    *("cost", "created", "stopped", "wall", "bytes", "damaged_files", "verdict"),
    *("counts", "last_loss", "starts", "ends", "missing"),
)
MAX_EPISODES = 500
MAX_PROBLEMS = 50


def list_runs(runs: Runs) -> dict[str, Any]:
    """Every run at once: those in training first, then the newest.

    A run of which nothing is known yet, or something else by now, is there by name,
    time and state alone, without a ``verdict``: ``tell_runs`` reads it.
    """
    listed = [_listed(runs, id_) for id_ in runs.found()]
    listed.sort(key=lambda each: str(each.get("created", "")), reverse=True)
    listed.sort(key=lambda each: each.get("state") != "running")
    return {"places": runs.places, "runs": listed}


def tell_runs(runs: Runs, ids: Sequence[str]) -> dict[str, Any]:
    """Some runs in short: what is wrong with them, and how their loss goes."""
    told = _of_each(ids, lambda id_: _told(runs, id_, SHORT, _short))
    return {"places": runs.places, "runs": told}


def records_of_runs(runs: Runs, ids: Sequence[str]) -> dict[str, Any]:
    """The records of some runs.

    Returns:
        Under ``common`` the settings that all of them share, and under ``runs`` of each
        the other ``settings``, and ``last`` and ``best`` by name.  None is a value that
        is not finite.
    """
    told = _of_each(ids, lambda id_: _told(runs, id_, RECORD, _record))
    settings = [each["settings"] for each in told if "settings" in each]
    common = {
        name: value
        for name, value in (settings[0] if settings else {}).items()
        if all(name in each and each[name] == value for each in settings)
    }
    return {"common": common, "runs": [_without(each, common) for each in told]}


def _without(record: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    settings = record.get("settings", {})
    own = {name: value for name, value in settings.items() if name not in common}
    return {**record, "settings": own}


def _of_each(
    ids: Sequence[str], tell: Callable[[str], dict[str, Any]]
) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(OPENERS) as openers:
        return list(openers.map(tell, ids))


def _listed(runs: Runs, id_: str) -> dict[str, Any]:
    try:
        known = runs.known(id_, SHORT)
        if known is None:
            run = runs.description(id_)
            known = {"created": run.created, "state": state_at_a_glance(run)}
        return {**_named(runs, id_), **known}
    except TdbgError as error:
        return _unreadable(runs, id_, error)


def _told(
    runs: Runs, id_: str, what: str, describe: Callable[[Trial], dict[str, Any]]
) -> dict[str, Any]:
    try:
        return {**_named(runs, id_), **runs.told(id_, what, describe)}
    except TdbgError as error:
        return _unreadable(runs, id_, error)


def _named(runs: Runs, id_: str) -> dict[str, Any]:
    """Name of a run, and what somebody said about it."""
    try:
        said = runs.annotation(id_).to_json()
    except TdbgError as error:
        said = {**NOTHING.to_json(), "unsaid": str(error)}
    return {"id": id_, "name": runs.name(id_), **said}


def _unreadable(runs: Runs, id_: str, error: TdbgError) -> dict[str, Any]:
    try:
        name = runs.name(id_)
    except TdbgError:
        name = id_
    return {"id": id_, "name": name, **RunRow(None, str(error)).to_json()}


def _short(trial: Trial) -> dict[str, Any]:
    with trial.no_refresh():
        view, document = _viewed(trial)
        loss = view.loss
        name = loss.name if loss else next(iter(curve_names(trial)), None)
        spark = None
        if name is not None:
            mode = loss.mode if loss else None
            spark = curve(trial, name, mode=mode, columns=SPARK_COLUMNS)
        return {
            **{each: document[each] for each in SHOWN},
            "loss": None if spark is None else {"name": name, **_spark(spark)},
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


def _record(trial: Trial) -> dict[str, Any]:
    return record_of(trial, ("last", "best", "settings")).to_json()


def _viewed(trial: Trial) -> tuple[RunView, dict[str, Any]]:
    """How a run is, and the same for JSON."""
    table = trial.step_table()
    view = view_of(trial, table=table)
    # Where its steps begin and end, on the axes that runs are compared on.
    starts = {axis.value: axis.start(table) for axis in Axis}
    ends = {axis.value: axis.end(table) for axis in Axis}
    return view, {**view.to_json(), "starts": starts, "ends": ends}


def describe_run(runs: Runs, run: OpenRun, *, may_control: bool) -> dict[str, Any]:
    """All that the screens of one run show besides charts.

    Raises:
        TdbgError: If the run cannot be read.
    """
    document = run.kept("run", lambda: _as_judged(run))
    return {
        "id": run.id,
        "name": runs.name(run.id),
        "version": run.version(),
        "may_control": may_control,
        "now": time.time(),
        **document,
    }


def _as_judged(run: OpenRun) -> dict[str, Any]:
    """Return the document of a run, with how far its judging was before it was read."""
    judging = run.seen_judging
    told = None if judging is None else judging.to_json()
    return {"judging": told, **described(run.trial)}


def described(trial: Trial) -> dict[str, Any]:
    """Return the document of a run that no server has opened."""
    with trial.no_refresh():
        view, document = _viewed(trial)
        episodes, statuses = view.diagnosis.episodes, view.diagnosis.statuses
        return {
            **document,
            "path": trial.path,
            "findings": [each.to_json() for each in episodes[:MAX_EPISODES]],
            "n_findings": len(episodes),
            "rules": {
                name: {
                    "status": str(data.get("status", "")),
                    "message": str(data.get("message", "")),
                    "applies": data.get("applies") is not False,
                }
                for name, data in statuses.items()
            },
            "workers": trial.worker_states(),
            "attempts": len(trial.attempts()),
            "modes": [mode.name for mode in trial.modes()],
            "curves": curve_names(trial),
            "problem_list": [
                {"kind": each.kind, "file": each.file, "message": each.message}
                for each in file_problems(trial)[:MAX_PROBLEMS]
            ],
            "n_tensors": tensors_in(trial).n,
            "changes": _changes(trial),
        }


def _changes(trial: Trial) -> list[dict[str, Any]]:
    """Return the requests to capture more, and what became of each."""
    return [
        {
            "step": trial.training_steps_at([event.step])[0],
            "global_step": event.step,
            "state": str(event.data.get("state", "")),
            "request": str(event.data.get("request", "")),
            "reason": str(event.data.get("reason") or ""),
            "until": event.data.get("until"),
        }
        for event in trial.events("change")
        if event.data.get("what") == "capture"
    ]


def tensors_of(trial: Trial) -> list[dict[str, Any]]:
    """Name, role, dtype and shape of each tensor, in the order of the forward.

    Parameters and their gradients stand in the order of the model, everything else as
    it first came in a step.
    """
    with trial.no_refresh():
        info = trial.model_info()
        found = trial.describe(in_forward_order(trial, trial.tensor_names()))
        return [
            {
                "name": each.name,
                "role": each.role,
                "dtype": each.dtype,
                "shape": None if each.shape is None else list(each.shape),
                "module": None if not info else info[-1].module_of(each.name),
            }
            for each in found
        ]


def tree_sections(trial: Trial) -> dict[str, Any]:
    """The sections of the report that are about trees, labels and predictions.

    Returns:
        Under ``sections`` of each its ``title`` and ``content``, a list of nodes as
        ``tdbg.drawing.markup`` has them: a page makes no markup out of text.  None for
        a run that is not one of boosted trees.
    """
    # Most runs have no trees: a server that shows none of them loads no report.
    from tdbg.drawing.markup import elements_of
    from tdbg.report import tree_sections as sections_of

    return {
        "sections": [
            {"title": title, "content": elements_of(content)}
            for title, content in sections_of(trial)
        ]
    }
