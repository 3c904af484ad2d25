"""Functions of Python: cProfile counts their calls, pyinstrument takes samples."""

from __future__ import annotations

import cProfile
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from tdbg.config.profiler import WindowConfig
from tdbg.profiler.windows.calls import largest
from tdbg.profiler.windows.engine import Unavailable, WindowResult

__all__ = ["CProfile", "Pyinstrument"]

_PYINSTRUMENT_INTERVAL = 0.001


def _off_cpu() -> float:
    return time.perf_counter() - time.process_time()


_TIMERS: dict[str, Callable[[], float]] = {
    "total_time": time.perf_counter,
    "cpu_time": time.process_time,
    "off_cpu_time": _off_cpu,
}


def _refuse_if_profiled() -> None:
    if sys.getprofile() is not None:
        msg = "the program runs a profiler of Python functions of its own"
        raise Unavailable(msg)


class CProfile:
    """Takes a window with ``cProfile``, on the training's thread.

    Args:
        window: What it takes.
    """

    def __init__(self, window: WindowConfig) -> None:
        timer = _TIMERS.get(window.timer)
        self._timer = window.timer
        self._profile = cProfile.Profile() if timer is None else cProfile.Profile(timer)

    def start(self) -> None:
        """Begin."""
        _refuse_if_profiled()
        try:
            self._profile.enable()
        except ValueError as error:  # From Python 3.12 on there is one at a time.
            raise Unavailable(str(error)) from error

    def stop(self) -> Callable[[], WindowResult]:
        """End; return what reads the functions."""
        self._profile.disable()
        return self._read

    def abandon(self) -> None:
        """End."""
        self._profile.disable()

    def _read(self) -> WindowResult:
        rows = [
            {
                "name": _name_of(entry.code),
                "calls": entry.callcount,
                "primitive_calls": entry.callcount - entry.reccallcount,
                "self_ns": round(entry.inlinetime * 1e9),
                "total_ns": round(entry.totaltime * 1e9),
            }
            for entry in self._profile.getstats()
        ]
        return WindowResult([_event("cprofile", rows, timer=self._timer)])


class Pyinstrument:
    """Takes a window with pyinstrument, a sampler that is not part of tdbg.

    Args:
        window: What it takes.
    """

    def __init__(self, window: WindowConfig) -> None:
        del window
        self._profiler: Any = None

    def start(self) -> None:
        """Begin."""
        _refuse_if_profiled()
        try:
            from pyinstrument import Profiler
        except ImportError as error:
            msg = "pyinstrument is not installed: pip install pyinstrument"
            raise Unavailable(msg) from error
        self._profiler = Profiler(_PYINSTRUMENT_INTERVAL, async_mode="disabled")
        try:
            self._profiler.start()
        except RuntimeError as error:
            msg = f"pyinstrument did not start: {error}"
            raise Unavailable(msg) from error

    def stop(self) -> Callable[[], WindowResult]:
        """End; return what adds the frames up."""
        session = self._profiler.stop()
        return lambda: _functions_of(session)

    def abandon(self) -> None:
        """End."""
        sys.setprofile(None)


def _functions_of(session: Any) -> WindowResult:
    rows: dict[str, dict[str, Any]] = {}
    root = session.root_frame()
    waiting: list[tuple[Any, frozenset[str]]] = [(root, frozenset())] if root else []
    while waiting:
        frame, around = waiting.pop()
        name = f"{frame.file_path}:{frame.line_no} {frame.function}"
        row = rows.setdefault(name, {"name": name, "self_ns": 0, "total_ns": 0})
        children = [child for child in frame.children if not child.is_synthetic]
        inside = sum(child.time for child in children)
        row["self_ns"] += max(0, round((frame.time - inside) * 1e9))
        if name not in around:  # A function that calls itself counts once.
            row["total_ns"] += round(frame.time * 1e9)
        waiting += [(child, around | {name}) for child in children]
    event = _event("pyinstrument", list(rows.values()), interval=_PYINSTRUMENT_INTERVAL)
    return WindowResult([event])


def _event(profiler: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    chosen, rest_ns = largest(rows)
    return {
        "what": "functions",
        "profiler": profiler,
        "phase": "step",
        "functions": chosen,
        "n_names": len(rows),
        "rest_ns": rest_ns,
        **more,
    }


def _name_of(code: types.CodeType | str) -> str:
    if isinstance(code, str):  # Of a built-in function.
        return code
    return f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
