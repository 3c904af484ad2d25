"""Tables that are read as a whole: scalars, steps, findings and events.

Thread safety: functions that run with the trial's lock held.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.modes import ModeKeys
from tdbg.run.findings import Finding
from tdbg.trial import reports
from tdbg.trial.run import RunState
from tdbg.trial.tables.batch import Batch, Scope, Values, Words
from tdbg.trial.tables.columns import TABLES, Column
from tdbg.trial.tables.step_numbers import STEP_COLUMNS, StepNumbers

__all__ = ["SHORT_TABLES"]

_NS = 1e9
# Columns of the table of steps that are called otherwise, and in ns, there.
_STEP_TIMES = {"duration": "duration_ns", "capture": "capture_ns"}


def scalars_batch(run: RunState, columns: Sequence[str], scope: Scope) -> Batch:
    """Return the scalars by name, each in the order of its steps."""
    found = reports.scalars(run, ModeKeys.GLOBAL, scope.start, scope.end)
    series = [found[name] for name in scope.chosen(list(found), "scalar")]
    numbers = StepNumbers.of(run, scope)
    steps = _joined([each.steps for each in series], np.int64)
    # A scalar of a step that was not ended belongs to none.
    at = np.minimum(np.searchsorted(numbers.steps, steps), max(0, len(numbers) - 1))
    keep = numbers.steps[at] == steps if len(numbers) else np.zeros(len(steps), bool)
    at = at[keep]
    lengths = [len(each.steps) for each in series]

    def column(name: str) -> Values:
        if name == "name":
            codes = np.repeat(np.arange(len(series), dtype=np.int32), lengths)
            return Words(codes[keep], [each.name for each in series])
        if name == "value":
            return np.asarray(
                _joined([each.values for each in series], np.float64)[keep]
            )
        if name == "time":
            return _times(_joined([each.wall_ns for each in series], np.int64)[keep])
        return numbers.column(name, at)

    return {name: column(name) for name in columns}


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *parts])


def _times(ns: NDArray[np.integer]) -> NDArray[np.datetime64]:
    return ns.astype("M8[ns]")


def steps_batch(run: RunState, columns: Sequence[str], scope: Scope) -> Batch:
    """Return the recorded steps, in the order of global steps."""
    numbers = StepNumbers.of(run, scope)
    at = np.searchsorted(run.table.steps, numbers.steps)

    def column(name: str) -> Values:
        if name in STEP_COLUMNS:
            return numbers.column(name, slice(None))
        if name == "time":
            return _times(run.table.column("wall_ns")[at])
        if name in _STEP_TIMES:
            return np.asarray(run.table.column(_STEP_TIMES[name])[at] / _NS)
        kind = TABLES["steps"].named([name])[0].kind
        return np.asarray(run.table.column(name)[at], _DTYPES[kind])

    return {name: column(name) for name in columns}


def findings_batch(run: RunState, columns: Sequence[str], scope: Scope) -> Batch:
    """Return the findings, in the order in which rules noticed them."""
    found = [
        each
        for each in reports.findings(run)
        if (scope.names is None or each.tensor in scope.names)
        and (scope.mode is ModeKeys.GLOBAL or each.mode is scope.mode)
        and scope.has_step(each.step if each.global_step is None else each.global_step)
    ]
    table = TABLES["findings"]
    return {
        each.name: _values(each, [_of_finding(each.name)(one) for one in found])
        for each in table.named(columns)
    }


def _of_finding(name: str) -> Callable[[Finding], Any]:
    if name == "severity":
        return lambda each: each.severity.label
    if name == "mode":
        return lambda each: each.mode.name
    if name == "cause":
        return lambda each: None if each.cause is None else each.cause.rule
    return lambda each: getattr(each, name)


def events_batch(run: RunState, columns: Sequence[str], scope: Scope) -> Batch:
    """Return what writers reported, by time."""
    found = [
        each
        for each in reports.events(run)
        if scope.has_step(each.step) or scope.start is scope.end is None
    ]
    rows: dict[str, list[Any]] = {
        "kind": [each.kind for each in found],
        "severity": [each.severity for each in found],
        "global_step": [None if each.step < 0 else each.step for each in found],
        "time": [each.wall_ns for each in found],
        "writer": [each.writer for each in found],
    }
    if "data" in columns:
        rows["data"] = [json.dumps(each.data) for each in found]
    table = TABLES["events"]
    return {each.name: _values(each, rows[each.name]) for each in table.named(columns)}


_DTYPES = {"int64": np.int64, "uint64": np.uint64, "float64": np.float64, "bool": bool}


def _values(column: Column, values: Sequence[Any]) -> Values:
    """Return the values of a column of Python objects."""
    if column.kind == "word":
        return Words.of(values)
    if column.kind == "text":
        return np.array([*values, None], object)[:-1]
    if column.kind == "time":
        return _times(np.array(values, np.int64))
    if not column.nullable:
        return np.array(values, _DTYPES[column.kind])
    lacks = [each is None for each in values]
    known = [0 if each is None else each for each in values]
    return np.ma.MaskedArray(np.array(known, _DTYPES[column.kind]), lacks)


#: Reads each of these tables.
SHORT_TABLES = {
    "scalars": scalars_batch,
    "steps": steps_batch,
    "findings": findings_batch,
    "events": events_batch,
}
