"""Windows of a profile, and what else the run's events say of it.

Thread safety: values; ask under the trial's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdbg.run.json_values import is_integer, list_of, mapping_of
from tdbg.trial.writers import WriterReader

__all__ = [
    "OPERATOR_DTYPE",
    "PYTHON_LINE_DTYPE",
    "RecordedWindow",
    "collective_words_of",
    "functions_of",
    "operators_of",
    "python_lines_of",
    "windows_of",
]

#: Of ``operators``; times in ns over the window.  ``name`` and ``window`` are text.
OPERATOR_DTYPE = np.dtype(
    [
        ("window", "O"),
        ("device", "O"),
        ("name", "O"),
        ("calls", "<i8"),
        ("self_ns", "<i8"),
        ("total_ns", "<i8"),
        ("device_ns", "<i8"),  # -1: unknown
        ("bytes", "<i8"),  # -1: unknown
        ("worker", "<i4"),
    ]
)

#: Of ``python_lines``; ``line`` and ``stack`` are text, innermost line last.
PYTHON_LINE_DTYPE = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("period_ns", "<i8"),
        ("phase", "<i4"),
        ("count", "<i8"),
        ("line", "O"),
        ("stack", "O"),
        ("worker", "<i4"),
    ]
)


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """A range of steps that was profiled in detail, or refused.

    Attributes:
        id: Its identity.
        worker: Index of the worker.
        state: accepted, started, ended or refused: the last that was reported.
        reason: Why it was asked for, or refused.
        kinds: What was measured: operators, python, ...
        first_step: Its first global step; -1 if unknown.
        last_step: Its last one, likewise.
        start_ns: When it began, on the run's clock; -1 if unknown.
        end_ns: When it ended, likewise.
        cost_ns: What it cost the training.
    """

    id: str
    worker: int
    state: str = ""
    reason: str = ""
    kinds: tuple[str, ...] = ()
    first_step: int = -1
    last_step: int = -1
    start_ns: int = -1
    end_ns: int = -1
    cost_ns: int = -1


#: Writers, the index of the worker of each, and what to add to its times.
Placed = Iterable[tuple[WriterReader, int, int]]


def _changes(writers: Placed, what: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    for writer, worker, shift in writers:
        for event in writer.events:
            if event.kind == "change" and event.data.get("what") == what:
                yield event.data, worker, shift


def _integer(value: object, otherwise: int = -1) -> int:
    return int(value) if is_integer(value) else otherwise


def _time(value: object, shift: int) -> int:
    found = _integer(value)
    return found if found < 0 else found + shift


def windows_of(writers: Placed) -> list[RecordedWindow]:
    """Return the windows, each once, in the order in which they were first told of."""
    found: dict[tuple[str, int], RecordedWindow] = {}
    for data, worker, shift in _changes(writers, "profile_window"):
        key = str(data.get("id", "")), worker
        known = found.get(key) or RecordedWindow(*key)
        told: dict[str, Any] = {
            name: str(data[name]) for name in ("state", "reason") if data.get(name)
        }
        told |= {
            name: _integer(data[name])
            for name in ("first_step", "last_step", "cost_ns")
            if is_integer(data.get(name))
        }
        told |= {
            name: _time(data[name], shift)
            for name in ("start_ns", "end_ns")
            if is_integer(data.get(name))
        }
        if list_of(data.get("kinds")):
            told["kinds"] = tuple(str(kind) for kind in list_of(data["kinds"]))
        found[key] = replace(known, **told)
    return list(found.values())


def operators_of(writers: Placed, window: str | None) -> NDArray[np.void]:
    """Return the operators of all windows, or of one, as ``OPERATOR_DTYPE``."""
    rows = [
        (
            str(data.get("window", "")),
            str(data.get("device", "")),
            str(each.get("name", "")),
            *(_integer(each.get(name), 0) for name in ("calls", "self_ns", "total_ns")),
            *(_integer(each.get(name)) for name in ("device_ns", "bytes")),
            worker,
        )
        for data, worker, _ in _changes(writers, "operators")
        if window is None or str(data.get("window", "")) == window
        for each in map(mapping_of, list_of(data.get("operators")))
        if each
    ]
    return np.array(rows, OPERATOR_DTYPE)


def functions_of(writers: Placed, window: str | None) -> list[dict[str, Any]]:
    """Return the functions of all windows, or of one, as they were written down."""
    return [
        {
            "window": str(data.get("window", "")),
            "worker": worker,
            "profiler": str(data.get("profiler", "")),
            "phase": data.get("phase"),
            **mapping_of(each),
        }
        for data, worker, _ in _changes(writers, "functions")
        if window is None or str(data.get("window", "")) == window
        for each in list_of(data.get("functions"))
    ]


def collective_words_of(writers: Placed) -> dict[int, list[str]]:
    """Return the kinds of collective operations, in their order, of each worker."""
    return {
        worker: list(map(str, list_of(data.get("kinds"))))
        for data, worker, _ in _changes(writers, "collectives")
    }


def python_lines_of(writers: Placed) -> NDArray[np.void]:
    """Return the samples of Python stacks, as ``PYTHON_LINE_DTYPE``."""
    rows = []
    for data, worker, shift in _changes(writers, "python_lines"):
        span = [_time(data.get(name), shift) for name in ("start_ns", "end_ns")]
        for each in map(mapping_of, list_of(data.get("samples"))):
            stack = [str(line) for line in list_of(each.get("stack"))]
            if not stack:
                continue
            rows.append(
                (
                    *span,
                    _integer(data.get("period_ns")),
                    _integer(each.get("phase"), 0),
                    _integer(each.get("count"), 0),
                    stack[-1],
                    "\n".join(stack),
                    worker,
                )
            )
    return np.array(rows, PYTHON_LINE_DTYPE)
