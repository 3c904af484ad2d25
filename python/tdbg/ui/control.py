"""What a page may change: a training that it asks to stop or capture, and runs.

Runs get tags and notes, are put away, and are deleted.

The training that owns the run decides; see ``tdbg.run.requests``.  Before a page asks
for a capture, it shows the cost.  Sizes come from the tensors recorded so far and from
what the training said of its model; time from the cost of capture so far, by element.

Thread safety: functions that hold the trial's lock inside; files appear whole.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from tdbg.config.collections import BUILT_IN, Role
from tdbg.config.messages import check_flag, check_known, printable
from tdbg.config.patterns import NamePattern
from tdbg.errors import ConfigurationError, TdbgError
from tdbg.remote import asked
from tdbg.run.annotations import annotate
from tdbg.run.json_values import list_of
from tdbg.run.removal import remove_run
from tdbg.run.requests import request_capture, request_stop
from tdbg.trial import TensorDescription, Trial
from tdbg.ui.runs import Runs

__all__ = [
    "annotate_runs",
    "answer_of",
    "ask_to_capture",
    "ask_to_stop",
    "delete_runs",
    "estimate",
]

MAX_REASON = 500
# So many runs are changed by one request.
MOST_RUNS = 4000
ENDED = ("closed", "dead")


def ask_to_stop(trial: Trial, body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the training to stop at its next forward.

    Args:
        trial: The run.
        body: ``reason``: why, in one sentence.

    Raises:
        ConfigurationError: If the body says anything else, or nobody may ask.
        StorageError: If the request cannot be written.
    """
    check_known(body, ["reason"])
    reason = body.get("reason", "")
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        msg = f"reason must be text of at most {MAX_REASON} characters"
        raise ConfigurationError(msg)
    if trial.loaded_all_steps:
        return {"state": "ended", "request": None}
    said = printable(reason.strip()) or "stopped from the dashboard"
    request = request_stop(asked(trial.path), reason=f"{said} ({getpass.getuser()})")
    return {"state": "asked", "request": request.id}


def ask_to_capture(trial: Trial, body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the training to capture what it does not capture by itself.

    Args:
        trial: The run.
        body: ``collections``, ``regex``, ``interval``, ``steps``, ``raw`` and ``end``
            as ``tdbg.run.requests.request_capture`` has them.

    Raises:
        ConfigurationError: If it can never work.
        StorageError: If the request cannot be written.
    """
    check_known(body, ["collections", "regex", "interval", "steps", "raw", "end"])
    for name in ("raw", "end"):
        check_flag(name, body.get(name, False))
    if trial.loaded_all_steps:
        return {"state": "ended", "request": None}
    request = request_capture(asked(trial.path), **body)
    return {"state": "asked", "request": request.id}


def answer_of(trial: Trial, request: str) -> dict[str, Any]:
    """What became of a request so far.

    Returns:
        ``state``: asked, accepted, refused, stopped, or ended where the training ended
        without an answer; ``reason`` and ``step`` where it said so.
    """
    stop = None
    for event in trial.events():
        if event.kind == "change" and event.data.get("request") == request:
            return {
                "state": str(event.data.get("state", "")),
                "reason": str(event.data.get("reason") or ""),
                "step": trial.training_steps_at([event.step])[0],
                "until": event.data.get("until"),
            }
        if event.kind == "status" and event.data.get("training") == "stopped":
            stop = event
    if stop is not None:
        reason = str(stop.data.get("reason") or "")
        (step,) = trial.training_steps_at([stop.step])
        return {"state": "stopped", "reason": reason, "step": step}
    state = "ended" if trial.status in ENDED else "asked"
    return {"state": state, "reason": "", "step": None}


# A row of statistics with its place in the index: 2.4 GB for 1e7 of them.
ROW_BYTES = 240
# Among so many of the newest steps are those by which an element's time is measured:
# the newest at which much was captured, or at least half as many tensors as at any.
RECENT_STEPS = 1024
MEASURED_STEPS = 8
# Nothing follows for what has a hundred times as many elements as were measured.
LEAST_SHARE = 0.01
BITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a request would bring about.

    Attributes:
        tensors: How many tensors it is about; 0: of none is anything known so far.
        bytes: What is written at most, before compression.
        seconds: Time that each captured step takes longer, for statistics; None where
            nothing was measured.
        share: The same, relative to a step.
    """

    tensors: int
    bytes: int
    seconds: float | None
    share: float | None

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return asdict(self)


def estimate(
    trial: Trial,
    *,
    collections: Sequence[str],
    regex: Sequence[str],
    interval: int,
    steps: int,
    raw: bool,
) -> Estimate:
    """Estimate a request, as ``tdbg.run.requests.request_capture`` has it.

    Args:
        trial: The run.
        collections: Built-in collections.
        regex: Expressions that names are searched with.
        interval: Every so many steps.
        steps: For so many steps.
        raw: Whether values are captured, too.

    Raises:
        ConfigurationError: If an expression is none, or there is no such collection.
    """
    is_asked = _filter(collections, regex)
    with trial.no_refresh():
        recorded = trial.describe(trial.tensor_names())
        known = _known(trial, [each for each in recorded if each.dtype])
        measured, duration = _measured(trial)
    asked = [size for name, role, size in known if is_asked(name, role)]
    n_elements = sum(n for n, _ in asked)
    times = -(-steps // max(1, interval))
    n_bytes = times * len(asked) * ROW_BYTES
    if raw:
        n_bytes += times * sum(n * width for n, width in asked)
    seconds = None
    if measured is not None and measured.elements >= LEAST_SHARE * n_elements:
        seconds = measured.seconds / measured.elements * n_elements
    share = seconds / duration if seconds is not None and duration else None
    return Estimate(len(asked), n_bytes, seconds, share)


def _filter(
    collections: Sequence[str], regex: Sequence[str]
) -> Callable[[str, str], bool]:
    roles: set[str] = set()
    for name in collections:
        if name not in BUILT_IN:
            msg = f"there is no collection {name!r}; use one of {', '.join(BUILT_IN)}"
            raise ConfigurationError(msg)
        roles |= {role.name.lower() for role in BUILT_IN[name]}
    patterns = [NamePattern.of_setting("regex", each) for each in regex]
    return lambda name, role: role in roles or any(p.search(name) for p in patterns)


def _known(
    trial: Trial, recorded: Sequence[TensorDescription]
) -> list[tuple[str, str, tuple[int, int]]]:
    """Name, role, and number and width of elements, of recorded tensors and others."""
    found: dict[str, tuple[str, tuple[int, int]]] = {}
    for info in trial.model_info():
        for name, facts in info.parameters.items():
            size = prod(facts.shape), _width(facts.dtype)
            # A parameter of one dimension is a bias or alike.
            role = Role.WEIGHT if len(facts.shape) > 1 else Role.BIAS
            found[name] = role.name.lower(), size
            if facts.requires_grad:
                found[f"gradient/{name}"] = Role.GRADIENT.name.lower(), size
    for each in recorded:
        if each.shape is not None:
            found[each.name] = each.role, (prod(each.shape), _width(each.dtype))
    return [(name, role, size) for name, (role, size) in found.items()]


@cache
def _width(dtype: str) -> int:
    """Bytes of an element, by the name of its type."""
    bits = BITS.search(dtype)
    return max(1, int(bits[1]) // 8) if bits else 1


@dataclass(frozen=True, slots=True)
class _Measured:
    """The measured cost of capture at a step: seconds for a number of elements."""

    seconds: float
    elements: int


def _measured(trial: Trial) -> tuple[_Measured | None, float]:
    """What a step took lately at which much was captured, and seconds of any step.

    Most steps of a training may have nothing but losses: they say what an element
    costs as little as the first, which prepares everything else.  Medians leave out
    single steps at which something else took time.
    """
    table = trial.step_table()[-RECENT_STEPS:]
    table = table[table["duration_ns"] > 0]
    if not len(table):
        return None, 0.0
    duration = float(np.median(table["duration_ns"] - table["capture_ns"])) / 1e9
    is_full = table["offered"] * 2 >= table["offered"].max()
    # What capture takes where there is next to nothing to capture.
    base = 0.0 if is_full.all() else float(np.median(table["capture_ns"][~is_full]))
    full = table[is_full][-MEASURED_STEPS:]
    steps = [int(step) for step in full["step"]]
    counts = [trial.count_elements(at) for at in steps]
    n_elements = int(np.median(counts))
    if not n_elements:
        return None, duration
    seconds = max(0.0, float(np.median(full["capture_ns"])) - base) / 1e9
    return _Measured(seconds, n_elements), duration


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
