"""The engines of a window: chosen by the framework, and their results written.

Thread safety: the training's thread starts them, and hands their results over; one
thread at a time works these out.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tdbg.capture.events import INFORMATION
from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.config.profiler import WindowConfig
from tdbg.profiler.windows.engine import (
    OperatorCall,
    Unavailable,
    WindowEngine,
    WindowResult,
)
from tdbg.profiler.windows.functions import CProfile, Pyinstrument
from tdbg.profiler.windows.torch_operators import TorchOperators
from tdbg.profiler.windows.xspace import JaxOperators, TensorFlowOperators
from tdbg.run.schema import EventKind

__all__ = ["Results", "Started", "start_engines"]

# A window stores no more of its spans: 48 bytes each.
_MOST_SPANS = 200_000
_SPANS_OF_A_RECORD = 8192
_OPERATORS: dict[str, Callable[[WindowConfig], WindowEngine]] = {
    "pytorch": TorchOperators,
    "torch": TorchOperators,
    "jax": JaxOperators,
    "tensorflow": TensorFlowOperators,
}
_FUNCTIONS: dict[str, Callable[[WindowConfig], WindowEngine]] = {
    "cprofile": CProfile,
    "pyinstrument": Pyinstrument,
}


class Started(NamedTuple):
    """The engines of a window that has begun.

    Attributes:
        engines: Those that run.
        window: What they take, which may be less or other than was asked for.
        unknown: What is not taken, each with the reason.
    """

    engines: tuple[WindowEngine, ...]
    window: WindowConfig
    unknown: dict[str, str]


def start_engines(window: WindowConfig, framework: str) -> Started:
    """Start what a window asks for.

    A framework without a profiler of operators has its functions timed instead.

    Args:
        window: What it asks for.
        framework: Name of the framework's adapter.

    Raises:
        Unavailable: If nothing can be taken; the message says why.
    """
    engines: list[WindowEngine] = []
    unknown: dict[str, str] = {}
    make = _OPERATORS.get(_backend(framework))
    if window.operators and make is None:
        unknown["operators"] = (
            f"{framework or 'the framework'} has no profiler of operators that tdbg "
            "knows, so functions are timed instead"
        )
        window = replace(
            window,
            operators=False,
            shapes=False,
            stacks=False,
            memory=False,
            spans=False,
            functions=window.functions or "cprofile",
        )
    requested = [("operators", make)] if window.operators else []
    if window.functions:
        requested.append((window.functions, _FUNCTIONS[window.functions]))
    for kind, make_engine in requested:
        try:
            engine = make_engine(window)  # type: ignore[misc]
            engine.start()
        except Unavailable as error:
            unknown[kind] = str(error)
        else:
            engines.append(engine)
    if not engines:
        raise Unavailable("; ".join(unknown.values()))
    return Started(tuple(engines), window, unknown)


def _backend(framework: str) -> str:
    if framework != "keras":
        return framework
    keras = sys.modules.get("keras")
    return "" if keras is None else str(keras.backend.backend())


class Results:
    """Works windows out, one after the other.

    Args:
        session: Its writer gets the events and the spans.
    """

    def __init__(self, session: Session) -> None:
        self._writer: Any = session.writer
        self._thread: threading.Thread | None = None
        self._names: dict[str, int] = {}

    def work_out(
        self,
        finish: Sequence[Callable[[], WindowResult]],
        told: dict[str, Any],
        step: int,
        cost_ns: Callable[[int], int],
    ) -> None:
        """Write what a window has found, and then that it has ended.

        Args:
            finish: Work the results out, one for each engine.
            told: Content of the event that ends the window.
            step: Global step of the window.
            cost_ns: Returns the cost of the window, given that of its results.
        """
        before = self._thread

        def work() -> None:
            if before is not None:
                before.join()
            self._write_all(finish, told, step, cost_ns)

        self._thread = threading.Thread(target=work, name="tdbg-window", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Wait for the results, for a while."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _write_all(
        self,
        finish: Sequence[Callable[[], WindowResult]],
        told: dict[str, Any],
        step: int,
        cost_ns: Callable[[int], int],
    ) -> None:
        begin_ns = time.thread_time_ns()
        unknown, window = dict(told.pop("unknown")), told["id"]
        for each in finish:
            try:
                found = each()
                for content in found.events:
                    self._event(step, {**content, "window": window})
                told["n_spans"] = told.get("n_spans", 0) + len(found.spans)
                self._write_spans(step, found.spans[:_MOST_SPANS])
                unknown.update(found.unknown)
            except Exception as error:  # Of a profiler that is not tdbg's.
                unknown["results"] = f"{type(error).__name__}: {error}"[:300]
        cost = cost_ns(time.thread_time_ns() - begin_ns)
        more = {"state": "ended", "unknown": unknown, "cost_ns": cost}
        self._event(step, {"what": "profile_window", **told, **more})

    def _event(self, step: int, content: dict[str, Any]) -> None:
        text = json.dumps(content, separators=(",", ":")).encode()
        self._writer.event(step, EventKind.CHANGE, INFORMATION, text)

    def _write_spans(self, step: int, spans: Sequence[OperatorCall]) -> None:
        from tdbg._core import SPAN_DTYPE

        for first in range(0, len(spans), _SPANS_OF_A_RECORD):
            chosen = spans[first : first + _SPANS_OF_A_RECORD]
            rows = np.zeros(len(chosen), SPAN_DTYPE)
            rows["step"] = step
            rows["definition"] = [self._name(span.name) for span in chosen]
            for field in ("start_ns", "duration_ns", "thread", "depth"):
                rows[field] = [getattr(span, field) for span in chosen]
            self._writer.spans(step, rows)

    def _name(self, name: str) -> int:
        found = self._names.get(name)
        if found is None:
            found = self._names[name] = self._writer.define(name[:300], int(Role.SPAN))
        return found
