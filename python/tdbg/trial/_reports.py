"""What writers and the engine reported, put in order.

Thread safety: functions over a ``RunState`` whose lock is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.collections import BUILT_IN, Collection, Role
from tdbg.errors import ConfigurationError
from tdbg.findings import Finding
from tdbg.modes import ModeKeys
from tdbg.trial._roles import role_of
from tdbg.trial._run import RunState
from tdbg.trial._writer_view import EventRecord

__all__ = [
    "ScalarSeries",
    "collections",
    "configuration",
    "counters",
    "events",
    "findings",
    "rule_statuses",
    "scalars",
]


# Statuses of a rule that somebody is at, and what becomes of them without him.
UNDER_WAY = ("InProgress", "Stopping")
STOPPED = {"status": "Stopped", "message": "the process that judged is gone"}


@dataclass(frozen=True, slots=True, eq=False)
class ScalarSeries:
    """The values of a scalar, in the order in which they were saved.

    Attributes:
        name: Its name.
        steps: Steps, in the count that was asked for.
        values: The values.
        wall_ns: When each was saved, in ns since 1970 UTC.
    """

    name: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    wall_ns: NDArray[np.int64]


def events(run: RunState, kind: str | None = None) -> list[EventRecord]:
    """Events of everybody who wrote, by time."""
    found = [
        event
        for writer in run.everyone
        for event in writer.events
        if kind is None or event.kind == kind
    ]
    return sorted(found, key=lambda event: event.wall_ns)


def findings(run: RunState) -> list[Finding]:
    """Findings of all engines, by step; what two of them found is there once."""
    found: dict[tuple[str, str, int, str], Finding] = {}
    for event in events(run, "finding"):
        try:
            finding = Finding.from_json(event.data)
        except ValueError:
            continue  # A later tdbg's; the event itself is in events().
        key = (finding.rule, finding.tensor, finding.step, finding.phase)
        found[key] = finding
    return sorted(found.values(), key=lambda finding: finding.step)


def rule_statuses(run: RunState) -> dict[str, dict[str, Any]]:
    """What the engine last said about each rule, by the rule's name.

    An engine that was killed says no more: what it had under way has stopped.
    """
    gone = {writer.name for writer in run.everyone if writer.liveness == "dead"}
    found: dict[str, dict[str, Any]] = {}
    for event in events(run, "status"):
        rule = event.data.get("rule")
        if not isinstance(rule, str):
            continue
        found[rule] = event.data
        if event.writer in gone and event.data.get("status") in UNDER_WAY:
            found[rule] = {**event.data, **STOPPED}
    return dict(sorted(found.items()))


def configuration(run: RunState) -> dict[str, Any]:
    """What the first worker said of its configuration; empty if nothing."""
    for writer in run.newest:
        for event in reversed(writer.events):
            # One that is about something in particular is not that.
            if event.kind == "configuration" and "what" not in event.data:
                return _with_attached(event.data, writer.events)
    return {}


def _with_attached(
    data: dict[str, Any], events: Sequence[EventRecord]
) -> dict[str, Any]:
    """The same, with what rules need that somebody asked for meanwhile."""
    needs = [
        need
        for event in events
        if event.kind == "change" and event.data.get("state") == "accepted"
        for need in _list(_mapping(event.data.get("asked")).get("needs"))
    ]
    if not needs:
        return data
    hook = data.get("hook", data)
    hook = {**hook, "needs": [*_list(hook.get("needs")), *needs]}
    return {**data, "hook": hook} if "hook" in data else hook


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def collections(run: RunState) -> dict[str, Collection]:
    """The built-in collections and the run's own, with the names in them."""
    found = {name: Collection(name) for name in BUILT_IN}
    for writer in run.newest:
        for event in writer.events:
            if event.kind == "collections":
                found |= _collections_of(event.data)
    roles: dict[str, Role] = {}
    for lane in run.lanes:
        for definition in lane.writer.definitions.values():
            roles[definition.name] = role_of(definition)
    for collection in found.values():
        names = (name for name, role in roles.items() if collection.has(name, role))
        collection.tensor_names.update(names)
    return found


def _collections_of(data: Mapping[str, Any]) -> dict[str, Collection]:
    content = data.get("collections", data)
    found: dict[str, Collection] = {}
    if not isinstance(content, Mapping):
        return found
    for name, description in content.items():
        if not isinstance(description, Mapping):
            continue
        try:
            collection = Collection(
                name,
                description.get("include_regex") or None,
                save_histogram=description.get("save_histogram"),
            )
        except ConfigurationError:
            continue  # A later tdbg's; the event itself is in events().
        names = description.get("tensor_names")
        if isinstance(names, list):
            collection.tensor_names.update(n for n in names if isinstance(n, str))
        found[name] = collection
    return found


def scalars(
    run: RunState,
    mode: ModeKeys,
    start: int | None = None,
    end: int | None = None,
) -> dict[str, ScalarSeries]:
    """Every scalar, of the first worker that saved it, at ``start <= step < end``."""
    steps, at = run.table.of_mode(mode)
    recorded = run.table.steps[at]
    found: dict[str, ScalarSeries] = {}
    for rank in sorted({lane.writer.rank for lane in run.lanes}):
        of_rank: dict[str, list[NDArray[np.void]]] = {}
        for lane in run.lanes:
            if lane.writer.rank != rank:
                continue
            first = lane.start if start is None else max(start, lane.start)
            stop = lane.stop if end is None else min(end, lane.stop)
            rows, _ = lane.writer.reader.find_scalars(first, stop)
            for number in np.unique(rows["definition"]).tolist():
                if number in lane.writer.definitions:
                    name = lane.writer.definitions[number].name
                    mine = rows[rows["definition"] == number]
                    of_rank.setdefault(name, []).append(mine)
        for name, parts in of_rank.items():
            rows = np.concatenate(parts)
            numbers = rows["step"]
            if mode is not ModeKeys.GLOBAL:
                rows = rows[np.isin(numbers, recorded)]
                order = np.argsort(recorded)
                where = np.searchsorted(recorded[order], rows["step"])
                numbers = steps[order][where]
            series = ScalarSeries(name, numbers, rows["value"], rows["wall_ns"])
            found.setdefault(name, series)
    return dict(sorted(found.items()))


def counters(run: RunState) -> dict[str, int]:
    """Records offered, written, dropped and failed, over all recorded steps."""
    table = run.table.data
    names = ("offered", "written", "dropped", "failed")
    return {name: int(table[name].sum()) for name in names}
