"""Compilations: their time in the steps, and an event for each.

PyTorch reports that one starts and ends (``torch._dynamo.callback``, which is private:
where it is other than expected, nothing is measured).  JAX reports how long one was
when it is over.  TensorFlow reports nothing: the function that traces all others is
replaced meanwhile.

What tdbg compiles for itself (``Session.compiles_own``) is none of the training's.

Thread safety: any thread may compile.

Errors: none.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler.part import ProfilerPart
from tdbg.profiler.patches import LibraryPatches
from tdbg.run.profile_tables import Phase
from tdbg.run.schema import EventKind

__all__ = ["Compilations", "start"]

_COMPILE = int(Phase.COMPILE)
# What JAX calls the durations that follow each other in one compilation.
_OF_JAX = frozenset(
    {
        "/jax/core/compile/jaxpr_trace_duration",
        "/jax/core/compile/jaxpr_to_mlir_module_duration",
        "/jax/core/compile/backend_compile_duration",
    }
)
# Of TensorFlow: traces functions into graphs, also those inside of others.
_TRACING = "tensorflow.python.framework.func_graph"
_TRACES = "func_graph_from_py_func"
# Shorter ones, of single operations, are only in the rows of steps.
_LEAST_NS = 1_000_000
# Events in a second, at most.
_MOST = 16


def start(session: Session, _: ProfilerConfig) -> ProfilerPart:
    """Measure compilations until the part is closed."""
    return Compilations(session)


class Compilations:
    """Measures the compilations of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._start_ns: list[int] = []
        self._new: list[dict[str, Any]] = []
        me = weakref.ref(self)
        self._starts = _calling(me, Compilations._torch_starts)
        self._ends = _calling(me, Compilations._torch_ends)
        self._lasted = _calling(me, Compilations._jax_ends)
        self._listens_to_jax = False
        # Threads that trace, and what they call for it.
        self._tracing: set[int] = set()
        self._patches = LibraryPatches()
        self._watch()
        weakref.finalize(
            self, _forget, self._starts, self._ends, self._lasted, self._patches
        )
        session.listen(rows=self._write)

    def _watch(self) -> None:
        """Watch those compilers that are loaded by now."""
        handler = _handler()
        if handler is not None and self._starts not in handler.start_callbacks:
            handler.start_callbacks.append(self._starts)
            handler.end_callbacks.append(self._ends)
        monitoring: Any = sys.modules.get("jax.monitoring")
        if monitoring is not None and not self._listens_to_jax:
            self._listens_to_jax = True
            with contextlib.suppress(Exception):
                monitoring.register_event_duration_secs_listener(self._lasted)
        tracing = sys.modules.get(_TRACING)
        if tracing is not None and not self._patches.are_in_place:
            with contextlib.suppress(Exception):
                me = weakref.ref(self)
                self._patches.put(tracing, _TRACES, lambda f: _traced(me, f))

    def trace(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Let TensorFlow trace a function."""
        session, thread = self._session, threading.get_ident()
        if session.compiles_own or thread in self._tracing:
            return function(*args, **kwargs)
        start_ns = time.monotonic_ns()
        self._tracing.add(thread)
        session.clock.enter(_COMPILE)
        try:
            return function(*args, **kwargs)
        finally:
            session.clock.leave(_COMPILE)
            self._tracing.discard(thread)
            self._add(start_ns, time.monotonic_ns() - start_ns, "tensorflow")

    def _torch_starts(self, *_: Any) -> None:
        self._session.clock.enter(_COMPILE)
        self._start_ns.append(time.monotonic_ns())

    def _torch_ends(self, *_: Any) -> None:
        self._session.clock.leave(_COMPILE)
        if self._start_ns:
            start_ns = self._start_ns.pop()
            self._add(start_ns, time.monotonic_ns() - start_ns, "torch")

    def _jax_ends(self, name: str, seconds: float, **_: Any) -> None:
        if name in _OF_JAX and not self._session.compiles_own:
            duration_ns = int(seconds * 1e9)
            self._session.clock.move(_COMPILE, duration_ns)
            self._add(time.monotonic_ns() - duration_ns, duration_ns, "jax")

    def _add(self, start_ns: int, duration_ns: int, compiler: str) -> None:
        if duration_ns >= _LEAST_NS and len(self._new) < _MOST:
            event = {
                "what": "compilation",
                "compiler": compiler,
                "start_ns": start_ns,
                "duration_ns": duration_ns,
            }
            self._new.append(event)

    def _write(self) -> None:
        self._watch()
        new, self._new = self._new, []
        for event in new:
            self._session.write_event(EventKind.CHANGE, event)

    def close(self) -> None:
        """Measure no longer, and write what is left."""
        self.forked()
        self._session.run(self._write_last)

    def _write_last(self) -> None:
        self._watch = lambda: None  # type: ignore[method-assign]
        self._write()

    def forked(self) -> None:
        """Measure no longer: this is a child."""
        _forget(self._starts, self._ends, self._lasted, self._patches)


def _calling(
    compilations: weakref.ref[Compilations], method: Callable[..., None]
) -> Callable[..., None]:
    """Return a function that calls a method, and keeps nothing alive."""

    def call(*args: Any, **kwargs: Any) -> None:
        found = compilations()
        if found is not None:
            method(found, *args, **kwargs)

    return call


def _traced(
    compilations: weakref.ref[Compilations], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what stands in for the function with which TensorFlow traces."""

    def trace(*args: Any, **kwargs: Any) -> Any:
        found = compilations()
        if found is None:
            return function(*args, **kwargs)
        return found.trace(function, args, kwargs)

    return trace


def _handler() -> Any:
    """Return what calls back at each compilation of PyTorch; None: nothing does."""
    callback: Any = sys.modules.get("torch._dynamo.callback")
    handler = getattr(callback, "callback_handler", None)
    lists = [getattr(handler, f"{each}_callbacks", None) for each in ("start", "end")]
    return handler if all(isinstance(each, list) for each in lists) else None


def _forget(
    starts: Callable[..., None],
    ends: Callable[..., None],
    lasted: Callable[..., None],
    patches: LibraryPatches,
) -> None:
    patches.undo()
    handler = _handler()
    if handler is not None:
        for each, callback in (
            (handler.start_callbacks, starts),
            (handler.end_callbacks, ends),
        ):
            if callback in each:
                each.remove(callback)
    monitoring: Any = sys.modules.get("jax._src.monitoring")
    with contextlib.suppress(Exception):
        if monitoring is not None:
            monitoring._unregister_event_duration_listener_by_callback(lasted)
