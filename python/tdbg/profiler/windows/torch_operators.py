"""Operators and kernels of PyTorch, by its own profiler.

The results are read as they are: building the tree of ``key_averages`` would cost 97 us
an event in the training's process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from tdbg.config.profiler import WindowConfig
from tdbg.profiler.windows.calls import Nesting, nest, operators_event
from tdbg.profiler.windows.engine import Clock, OperatorCall, Unavailable, WindowResult

__all__ = ["TorchOperators"]

# Of PyTorch and tdbg; those of PyTorch begin with the name of the package.
_OWN = ("/torch/", "/tdbg/")
_MEMORY = "[memory]"
_TAKEN_OVER = "the program started a torch.profiler of its own in the window"


class TorchOperators:
    """Takes a window with ``torch.autograd.profiler``.

    Args:
        window: What it takes.
    """

    def __init__(self, window: WindowConfig) -> None:
        self._window = window
        self._profile: Any = None
        self._prepare: Any = None
        self._is_taken_over = False
        self._has_cuda = False

    def start(self) -> None:
        """Begin."""
        torch = sys.modules.get("torch")
        if torch is None:
            msg = "PyTorch is not loaded"
            raise Unavailable(msg)
        import torch.autograd.profiler as library

        if torch._C._autograd._profiler_enabled():
            msg = "the program runs a torch.profiler of its own"
            raise Unavailable(msg)
        window = self._window
        self._has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        try:
            self._profile = library.profile(
                use_device="cuda" if self._has_cuda else None,
                use_kineto=True,
                record_shapes=window.shapes,
                with_stack=window.stacks,
                profile_memory=window.memory,
            )
            with _quiet():
                self._profile._prepare_trace()
                self._profile._start_trace()
        except (AttributeError, TypeError, RuntimeError) as error:
            msg = (
                f"torch.profiler of PyTorch {torch.__version__} did not start: {error}"
            )
            raise Unavailable(msg) from error
        self._watch(library.profile)

    def stop(self) -> Callable[[], WindowResult]:
        """End; return what adds the events up."""
        self._unwatch()
        if self._is_taken_over:
            return lambda: WindowResult(unknown={"operators": _TAKEN_OVER})
        with _quiet():
            self._profile.__exit__(None, None, None)
        results, self._profile = self._profile.kineto_results, None
        clock = Clock()
        return lambda: self._add_up(results.events(), clock)

    def abandon(self) -> None:
        """Forget the results: the child has no thread of the profiler."""
        self._unwatch()
        self._profile = None

    # ---- a profiler that the program starts ------------------------------------

    def _watch(self, owner: Any) -> None:
        """Notice if the program starts a profiler, which silently ends this one."""
        prepare = owner._prepare_trace

        def taken_over(profile: Any) -> Any:
            self._is_taken_over = True
            self._unwatch()
            return prepare(profile)

        self._prepare = (owner, prepare, taken_over)
        owner._prepare_trace = taken_over

    def _unwatch(self) -> None:
        if self._prepare is not None:
            owner, prepare, taken_over = self._prepare
            self._prepare = None
            if owner._prepare_trace is taken_over:
                owner._prepare_trace = prepare

    # ---- results ---------------------------------------------------------------

    def _add_up(self, events: list[Any], clock: Clock) -> WindowResult:
        host, device = events, []
        if self._has_cuda:
            on_cpu = import_module("torch.autograd").DeviceType.CPU
            device = [each for each in events if each.device_type() != on_cpu]
            host = [each for each in events if each.device_type() == on_cpu]
        found = WindowResult()
        device_ns = self._kernels(device, found)
        if host:
            self._operators(host, device_ns, clock, found)
        if self._has_cuda and not device:
            found.unknown["cuda"] = (
                "no activity of the device was recorded: another program may hold "
                "CUPTI (nsys, DCGM profiling), or the driver refuses it"
            )
        return found

    def _kernels(self, events: list[Any], found: WindowResult) -> dict[int, int]:
        """Add the kernels up; return the device's time by correlation."""
        rows: dict[str, dict[str, Any]] = {}
        by_correlation: dict[int, int] = {}
        for event in events:
            if event.is_user_annotation() or event.is_hidden_event():
                continue
            name, duration = event.name(), event.duration_ns()
            row = rows.setdefault(name, _row(name))
            row["calls"] += 1
            row["self_ns"] += duration
            row["device_ns"] = row["total_ns"] = row["self_ns"]
            linked = event.linked_correlation_id()
            if linked > 0:
                by_correlation[linked] = by_correlation.get(linked, 0) + duration
        if rows:
            found.events.append(operators_event("cuda", rows.values(), len(events)))
        return by_correlation

    def _operators(
        self,
        events: list[Any],
        device_ns: dict[int, int],
        clock: Clock,
        found: WindowResult,
    ) -> None:
        kind = type(events[0])  # Its functions are found once, not for each event.
        names = list(map(kind.name, events))
        starts = list(map(kind.start_ns, events))
        durations = list(map(kind.duration_ns, events))
        threads = list(map(kind.start_thread_id, events))
        nesting = nest(threads, starts, durations)
        is_python = [False] * len(events)
        if self._window.stacks:
            is_python = [event.is_python_function() for event in events]
            nesting = _without(nesting, is_python, durations)
        if device_ns or self._window.shapes or self._window.stacks:
            skipped = [is_python[i] or name == _MEMORY for i, name in enumerate(names)]
            rows = self._rows(events, names, nesting, durations, skipped, device_ns)
        else:
            rows = _summed(names, nesting.own_ns, durations)
        if self._window.memory:
            self._add_memory(events, names, nesting.parents, rows)
        found.events.insert(0, operators_event("cpu", rows.values(), len(events)))
        if self._window.spans:
            offset = clock.offset_ns
            found.spans = [
                OperatorCall(
                    names[i],
                    starts[i] + offset,
                    durations[i],
                    max(0, events[i].device_resource_id()),
                    nesting.depths[i],
                )
                for i in range(len(events))
                if names[i] != _MEMORY
            ]

    def _rows(
        self,
        events: list[Any],
        names: list[str],
        nesting: Nesting,
        durations: list[int],
        skipped: list[bool],
        device_ns: dict[int, int],
    ) -> dict[Any, dict[str, Any]]:
        """Add calls up by name, shapes and line, with the device's time of each."""
        rows: dict[Any, dict[str, Any]] = {}
        for i, event in enumerate(events):
            if skipped[i]:
                continue
            key = self._key(i, events, names, nesting.parents)
            if key not in rows:
                rows[key] = _row(names[i])
                rows[key].update(zip(("shapes", "line"), key[1:], strict=False))
            row = rows[key]
            row["calls"] += 1
            row["self_ns"] += nesting.own_ns[i]
            row["total_ns"] += durations[i]
            if device_ns:
                row["device_ns"] += device_ns.get(event.correlation_id(), 0)
        return rows

    def _key(
        self, i: int, events: list[Any], names: list[str], parents: list[int]
    ) -> Any:
        """Return what tells rows apart: the name, and shapes and line on request."""
        window = self._window
        if not (window.shapes or window.stacks):
            return (names[i],)
        shapes = str(events[i].shapes()) if window.shapes else ""
        return (
            names[i],
            shapes,
            _line(i, events, names, parents) if window.stacks else "",
        )

    def _add_memory(
        self,
        events: list[Any],
        names: list[str],
        parents: list[int],
        rows: dict[Any, dict[str, Any]],
    ) -> None:
        """Add what is allocated to the operator that allocates it."""
        for row in rows.values():
            row["bytes"] = 0
        for i, name in enumerate(names):
            parent = parents[i]
            if name == _MEMORY and parent >= 0 and events[i].nbytes() > 0:
                key = self._key(parent, events, names, parents)
                if key in rows:
                    rows[key]["bytes"] += events[i].nbytes()


def _without(nesting: Nesting, is_python: list[bool], durations: list[int]) -> Nesting:
    """Give operators their time, as if no function of Python lay between them."""
    own = list(durations)
    for i, parent in enumerate(nesting.parents):
        if is_python[i]:
            continue
        while parent >= 0 and is_python[parent]:
            parent = nesting.parents[parent]  # noqa: PLW2901
        if parent >= 0:
            own[parent] -= durations[i]
    return nesting._replace(own_ns=own)


def _line(i: int, events: list[Any], names: list[str], parents: list[int]) -> str:
    """Return the innermost line of the program around a call."""
    i = parents[i]
    while i >= 0:
        name = names[i]
        is_line = ".py(" in name and events[i].is_python_function()
        if is_line and not any(own in f"/{name}" for own in _OWN):
            return name
        i = parents[i]
    return ""


def _summed(
    names: list[str], own: list[int], durations: list[int]
) -> dict[Any, dict[str, Any]]:
    """Add calls up by their names alone, which is quicker than by several keys."""
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(name, len(numbers)) for name in names]
    # Sums of nanoseconds below 2^53, so that float64 has them exactly.
    columns = [
        np.bincount(codes),
        *(np.bincount(codes, each) for each in (own, durations)),
    ]
    rows: dict[Any, dict[str, Any]] = {}
    for name, calls, self_ns, total_ns in zip(
        numbers, *(column.tolist() for column in columns), strict=True
    ):
        if name != _MEMORY:
            row = {"calls": calls, "self_ns": int(self_ns), "total_ns": int(total_ns)}
            rows[(name,)] = {**_row(name), **row}
    return rows


def _row(name: str) -> dict[str, Any]:
    return {"name": name, "calls": 0, "self_ns": 0, "total_ns": 0, "device_ns": 0}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler's own log off the terminal, unless the user asks for it."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "6"
    try:
        yield
    finally:
        os.environ.pop(name, None)
