"""Samples at which line the training's Python is, in which phase: 20 times a second.

A thread of the core sends a real-time signal to the main thread, whose handler counts
the stack.  No thread of Python could: it runs where the training gives the interpreter
up, and would see those places only.

A call in C delays the handler until it returns.  The sample then counts for all the
time since the one before, so shares are right.

Thread safety: made, closed, and called by signals on the main thread.

Errors: none reach the program.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

from tdbg.capture.session import Session
from tdbg.config.profiler import ProfilerConfig
from tdbg.profiler.part import write_off
from tdbg.run.schema import EventKind

__all__ = ["PythonSampler", "sampler_of", "start"]

_FIRST_SIGNAL = signal.SIGRTMIN + 15
_N_SIGNALS = 4
_WRITE_NS = 10_000_000_000
# Calls of a stack, from the innermost on.
_MAX_DEPTH = 48
# Stacks between two events, and in one.
_MAX_STACKS = 2000
_MAX_WRITTEN = 200
# A pause longer than this was none of the program's: the machine slept.
_MAX_GAP_NS = 600_000_000_000
_MAX_NAMES = 20_000
#: Stands for the calls, or the stacks, that are left out.
_REST = "..."

_Key = tuple[int, ...]
# Signals that an earlier sampler of this process has left ignored.
_left: set[int] = set()


class StackCounts:
    """Counts stacks by phase, and forgets them when they are taken."""

    def __init__(self) -> None:
        self._counts: dict[_Key, int] = {}
        self._codes: dict[int, CodeType] = {}
        self._names: dict[tuple[int, int], str] = {}

    def add(self, phase: int, frame: FrameType | None, n: int) -> None:
        """Count a stack, whose innermost call is *frame*."""
        key = [phase]
        codes = self._codes
        for _ in range(_MAX_DEPTH):
            if frame is None:
                break
            code = frame.f_code
            number = id(code)
            codes[number] = code
            key += (number, frame.f_lasti)
            frame = frame.f_back
        else:
            key += (0, 0)
        counts = self._counts
        found = tuple(key)
        if found not in counts and len(counts) >= _MAX_STACKS:
            found = (phase, 0, 0)
        counts[found] = counts.get(found, 0) + n

    def take(self) -> list[dict[str, Any]]:
        """Return the most frequent stacks and a rest for each phase; forget them."""
        order = sorted(self._counts.items(), key=lambda item: -item[1])
        kept, rest = order[:_MAX_WRITTEN], order[_MAX_WRITTEN:]
        samples = [
            {"phase": key[0], "stack": self._stack(key), "count": count}
            for key, count in kept
        ]
        others: dict[int, int] = {}
        for key, count in rest:
            others[key[0]] = others.get(key[0], 0) + count
        samples += [
            {"phase": phase, "stack": [_REST], "count": count}
            for phase, count in others.items()
        ]
        self._counts = {}
        if len(self._names) > _MAX_NAMES:
            self._names = {}
            self._codes = {}
        return samples

    def _stack(self, key: _Key) -> list[str]:
        calls = list(zip(key[1::2], key[2::2], strict=True))
        return [self._name(number, at) for number, at in reversed(calls)]

    def _name(self, number: int, at: int) -> str:
        if number == 0:
            return _REST
        name = self._names.get((number, at))
        if name is None:
            code = self._codes[number]
            name = f"{code.co_filename}:{_line(code, at)} {code.co_name}"
            self._names[number, at] = name
        return name


def _line(code: CodeType, at: int) -> int:
    for begin, end, line in code.co_lines():
        if begin <= at < end:
            return line or code.co_firstlineno
    return code.co_firstlineno


class PythonSampler:
    """Samples the main thread until it is closed.

    Args:
        session: Knows the phase, and writes the events.
        interval: Seconds between two samples; None: none until it changes.

    Raises:
        ValueError: If it cannot sample: it does not run on the main thread, or no
            signal is free.
    """

    def __init__(self, session: Session, interval: float | None) -> None:
        self._session = session
        self._counts = StackCounts()
        self._asked = interval
        self._most: float | None = None
        self._interval_ns = 0
        self._last_ns = self._written_ns = time.monotonic_ns()
        self._number: int | None = None
        self._timer: Any = None
        self._handler = _handler_of(weakref.ref(self))
        if interval is not None:
            self._begin(interval)
        _samplers[id(session)] = self

    def _begin(self, interval: float) -> None:
        core = import_module("tdbg._core")
        if self._number is None:
            self._number = _take_signal(self._handler, core.is_signal_free)
        self._interval_ns = int(interval * 1e9)
        self._last_ns = time.monotonic_ns()
        self._timer = core.SignalTimer(self._number, interval)
        # A signal that came before this line was handled without the timer, which
        # would wait for it for ever.
        self._timer.handled()

    def change(self, settings: ProfilerConfig) -> None:
        """Go on with another interval, or with none."""
        self._asked = settings.python_interval
        self._go_on()

    def limit(self, most: float | None) -> None:
        """Sample more often, if it samples at all.

        Args:
            most: Seconds between two samples, at most; None: as the settings say.
        """
        if most != self._most:
            self._most = most
            if self._asked is not None:
                self._go_on()

    def _go_on(self) -> None:
        interval = self._asked
        if interval is not None and self._most is not None:
            interval = min(interval, self._most)
        self._timer = None
        self._write(time.monotonic_ns())
        if interval is not None:
            try:
                self._begin(interval)
            except ValueError as error:
                write_off(self._session, "python_sampler", error)

    def sample(self, frame: FrameType | None) -> None:
        """Count the stack of the main thread; called by the handler."""
        timer = self._timer
        if timer is None:
            return
        timer.handled()
        now = time.monotonic_ns()
        elapsed = min(now - self._last_ns, _MAX_GAP_NS)
        self._last_ns = now
        n = max(1, round(elapsed / self._interval_ns))
        self._counts.add(int(self._session.clock.phase), frame, n)
        if now - self._written_ns > _WRITE_NS:
            # The training goes on whatever is wrong here.
            with contextlib.suppress(Exception):
                self._write(now)

    def _write(self, now: int) -> None:
        began, self._written_ns = self._written_ns, now
        samples = self._counts.take()
        if not samples or not self._session.is_live:
            return
        content = {
            "what": "python_lines",
            "start_ns": began,
            "end_ns": now,
            "period_ns": self._interval_ns,
            "samples": samples,
        }
        self._session.write_event(EventKind.CHANGE, content)

    def close(self) -> None:
        """Write what is there and sample no longer."""
        self.forked()
        self._write(time.monotonic_ns())

    def forked(self) -> None:
        """Sample no longer."""
        self._timer = None
        _samplers.pop(id(self._session), None)
        if self._number is None:
            return
        # A signal may be under way, which ends a process by default.
        with contextlib.suppress(ValueError):  # Not on the main thread.
            if signal.getsignal(self._number) is self._handler:
                signal.signal(self._number, signal.SIG_IGN)
                _left.add(self._number)


def _handler_of(
    sampler: weakref.ref[PythonSampler],
) -> Callable[[int, FrameType | None], None]:
    """Return the handler, which keeps no sampler, and so no session, alive."""

    def handle(_: int, frame: FrameType | None) -> None:
        found = sampler()
        if found is not None:
            found.sample(frame)

    return handle


# By the addresses of their sessions, which live as long as they do.
_samplers: weakref.WeakValueDictionary[int, PythonSampler] = (
    weakref.WeakValueDictionary()
)


def sampler_of(session: Session) -> PythonSampler | None:
    """Return what samples a session; None: nothing does."""
    return _samplers.get(id(session))


def start(session: Session, settings: ProfilerConfig) -> PythonSampler | None:
    """Sample for a session, as soon as its settings have an interval."""
    try:
        return PythonSampler(session, settings.python_interval)
    except ValueError as error:
        write_off(session, "python_sampler", error)
        return None


def _take_signal(
    handler: Callable[[int, FrameType | None], None], is_free: Callable[[int], bool]
) -> int:
    if threading.current_thread() is not threading.main_thread():
        msg = "the training does not run on the main thread"
        raise ValueError(msg)
    number = _free_signal(is_free)
    signal.signal(number, handler)
    # So that system calls of libraries are repeated by the kernel.
    signal.siginterrupt(number, False)
    return number


def _free_signal(is_free: Callable[[int], bool]) -> int:
    numbers: Iterable[int] = range(_FIRST_SIGNAL, _FIRST_SIGNAL + _N_SIGNALS)
    for number in numbers:
        if number <= signal.SIGRTMAX and (number in _left or is_free(number)):
            _left.discard(number)
            return number
    msg = f"the program uses all signals from {_FIRST_SIGNAL} on"
    raise ValueError(msg)
