"""The table of runs: what a page shows of many runs, and may do with them.

A run is told in two parts.  In short: its state, its verdict, and how its loss goes.
Its record: settings, and the last and best of each loss and metric, as a row of
``tdbg.query``, which says the same to SQL.

Thread safety: functions; the trials' locks are held inside.

Errors: a run that cannot be read is listed with the reason; one that cannot be changed
or deleted keeps no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tdbg.config.messages import check_flag, check_known
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.query import record_of
from tdbg.run.annotations import NOTHING, annotate
from tdbg.run.in_use import state_at_a_glance
from tdbg.run.json_values import list_of
from tdbg.run.removal import remove_run
from tdbg.trial import Trial
from tdbg.ui.run_view import viewed
from tdbg.ui.runs import Runs
from tdbg.ui.series import Curve, curve, curve_names
from tdbg.view import RunRow

__all__ = [
    "annotate_runs",
    "delete_runs",
    "list_runs",
    "records_of_runs",
    "tell_runs",
]

SPARK_COLUMNS = 48
SPARK_DIGITS = 4
# Threads that wait for the disk; Python runs in one of them at a time.
OPENERS = 4
SHORT, RECORD = "short", "record"
# So many runs are changed by one request.
MOST_RUNS = 4000
# What a row shows of what is said of a run.
SHOWN = (
    *("state", "steps", "evaluated", "counted_steps", "recorded", "last_step", "rate"),
    *("cost", "created", "stopped", "wall", "bytes", "damaged_files", "verdict"),
    *("counts", "last_loss", "starts", "ends", "missing"),
)


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
        view, document = viewed(trial)
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


# --- What may be done with runs ------------------------------------------------


def annotate_runs(runs: Runs, body: Mapping[str, Any]) -> dict[str, Any]:
    """Change what is said about some runs.

    Args:
        runs: The runs of the server.
        body: ``runs``, a list of ids, and ``add_tags``, ``remove_tags``, ``note`` and
            ``archived`` as ``tdbg.run.annotations.annotate`` has them.

    Raises:
        ConfigurationError: If the body says anything else.
    """
    check_known(body, ["runs", "add_tags", "remove_tags", "note", "archived"])
    said = {name: body[name] for name in body if name != "runs"}
    for name in ("add_tags", "remove_tags"):
        if not isinstance(said.get(name, []), list):
            msg = f"{name} must be a list of words"
            raise ConfigurationError(msg)

    def change(id_: str) -> dict[str, Any]:
        return annotate(runs.place(id_), **said).to_json()

    return {"runs": [_outcome(id_, change) for id_ in _ids(body)]}


def delete_runs(runs: Runs, body: Mapping[str, Any]) -> dict[str, Any]:
    """Delete some runs for good; one that is being written to stays.

    Args:
        runs: The runs of the server.
        body: ``runs``, a list of ids, and ``confirmed``: true.

    Raises:
        ConfigurationError: If the body says anything else, or nobody has confirmed it.
    """
    check_known(body, ["runs", "confirmed"])
    check_flag("confirmed", body.get("confirmed", False))
    if not body.get("confirmed"):
        msg = "confirm that these runs are to be deleted: confirmed must be true"
        raise ConfigurationError(msg)

    def delete(id_: str) -> dict[str, Any]:
        place = runs.place(id_)
        try:
            return {"kept": list(remove_run(place).left)}
        finally:
            runs.forget(id_)

    return {"runs": [_outcome(id_, delete) for id_ in _ids(body)]}


def _ids(body: Mapping[str, Any]) -> list[str]:
    found = [each for each in list_of(body.get("runs")) if isinstance(each, str)]
    if not 1 <= len(found) <= MOST_RUNS or found != body["runs"]:
        msg = f"runs must be a list of 1 to {MOST_RUNS} ids"
        raise ConfigurationError(msg)
    return found


def _outcome(id_: str, change: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"id": id_, "error": None, **change(id_)}
    except TdbgError as error:
        return {"id": id_, "error": str(error)}
