"""Python's garbage collector: its time in the steps, and an event for each long pause.

Thread safety: the collector runs in any thread, with the interpreter's lock.

Errors: none.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler.part import ProfilerPart
from tdbg.run.schema import EventKind

__all__ = ["CollectorPauses", "start"]

# A shorter pause is only in the row of its step.
_LONG_NS = 20_000_000
# Events in a second, at most.
_MOST = 16

_Collects = Callable[[str, Mapping[str, Any]], None]


def start(session: Session, _: ProfilerConfig) -> ProfilerPart:
    """Measure the collector until the part is closed."""
    return CollectorPauses(session)


class CollectorPauses:
    """Measures the collector of a session's process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._clock = session.clock
        self._start_ns = 0
        self._long: list[dict[str, Any]] = []
        self._callback = _callback_of(weakref.ref(self))
        gc.callbacks.append(self._callback)
        # Nor does it outlast a training that nobody closes.
        weakref.finalize(self, _remove, self._callback).atexit = False
        session.listen(rows=self._write)

    def collects(self, phase: str, info: Mapping[str, Any]) -> None:
        """Note that the collector starts or stops."""
        self._clock.collects(phase, info)
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._start_ns = now_ns
        elif now_ns - self._start_ns >= _LONG_NS and len(self._long) < _MOST:
            pause = {
                "what": "gc",
                "start_ns": self._start_ns,
                "duration_ns": now_ns - self._start_ns,
                "generation": info.get("generation", -1),
                "collected": info.get("collected", -1),
            }
            self._long.append(pause)

    def _write(self) -> None:
        long, self._long = self._long, []
        for pause in long:
            self._session.write_event(EventKind.CHANGE, pause)

    def close(self) -> None:
        """Measure no longer, and write what is left."""
        _remove(self._callback)
        self._session.run(self._write)

    def forked(self) -> None:
        """Measure no longer: this is a child."""
        _remove(self._callback)


def _callback_of(pauses: weakref.ref[CollectorPauses]) -> _Collects:
    def collects(phase: str, info: Mapping[str, Any]) -> None:
        found = pauses()
        if found is not None:
            found.collects(phase, info)

    return collects


def _remove(callback: _Collects) -> None:
    if callback in gc.callbacks:
        gc.callbacks.remove(callback)
