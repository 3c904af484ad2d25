"""Operators of JAX and TensorFlow, whose profilers end with a serialized message.

That of JAX is an ``XSpace``, that of TensorFlow a ``Trace``.  Their few fields are read
here, because the libraries that know the messages are heavy or not installed.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tdbg.config.profiler import WindowConfig
from tdbg.profiler.windows.calls import nest, operators_event
from tdbg.profiler.windows.engine import Clock, OperatorCall, Unavailable, WindowResult

__all__ = [
    "JaxOperators",
    "TensorFlowOperators",
    "XEvent",
    "read_trace",
    "read_xspace",
]

_REFUSED = ("shapes", "stacks", "memory")
# Times below this are since the start of the session, not since 1970.
_LEAST_WALL_NS = 10**17
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class XEvent(NamedTuple):
    """One event of a message.

    Attributes:
        plane: Name of its plane, such as ``/host:CPU`` or ``/device:GPU:0``.
        line: Number of its line; of the host, the thread.
        name: Its name.
        start_ns: As the message has it.
        duration_ns: How long it took.
    """

    plane: str
    line: int
    name: str
    start_ns: int
    duration_ns: int


def read_xspace(content: bytes) -> Iterator[XEvent]:
    """Read the events of a serialized ``XSpace``.

    Raises:
        ValueError: If it is cut.
    """
    for field, plane in _fields(memoryview(content)):
        if field == 1:
            yield from _plane(plane)


def _plane(content: Any) -> Iterator[XEvent]:
    name, lines, names = "", [], {}
    for field, value in _fields(content):
        if field == 2:
            name = _text(value)
        elif field == 3:
            lines.append(value)
        elif field == 4:
            entry = dict(_fields(value))
            metadata = dict(_fields(entry.get(2, b"")))
            names[entry.get(1, 0)] = _text(metadata.get(2, b""))
    for line in lines:
        number, start_ns, events = 0, 0, []
        for field, value in _fields(line):
            if field == 1:
                number = value
            elif field == 3:
                start_ns = value
            elif field == 4:
                events.append(value)
        for event in events:
            values = {1: 0, 2: 0, 3: 0}
            values.update(_fields(event))
            yield XEvent(
                name,
                number,
                names.get(values[1], ""),
                start_ns + values[2] // 1000,
                values[3] // 1000,
            )


def read_trace(content: bytes) -> Iterator[XEvent]:
    """Read the events of a serialized ``Trace``, whose times are since its start.

    Raises:
        ValueError: If it is cut.
    """
    devices: dict[int, str] = {}
    events = []
    for field, value in _fields(memoryview(content)):
        if field == 1:
            entry = dict(_fields(value))
            device = dict(_fields(entry.get(2, b"")))
            devices[entry.get(1, 0)] = _text(device.get(1, b""))
        elif field == 4:
            events.append(value)
    for event in events:
        values: dict[int, Any] = {1: 0, 2: 0, 3: b"", 9: 0, 10: 0}
        values.update(_fields(event))
        yield XEvent(
            devices.get(values[1], ""),
            values[2],
            _text(values[3]),
            values[9] // 1000,
            values[10] // 1000,
        )


def _fields(content: Any) -> Iterator[tuple[int, Any]]:
    """Return the fields of a message: numbers as such, all others as bytes."""
    position, end = 0, len(content)
    while position < end:
        key, position = _varint(content, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(content, position)
        elif kind == _BYTES:
            size, position = _varint(content, position)
            value, position = content[position : position + size], position + size
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            value, position = content[position : position + size], position + size
        else:
            msg = f"a field of kind {kind} in an XSpace message"
            raise ValueError(msg)
        if position > end:
            msg = "an XSpace message is cut"
            raise ValueError(msg)
        yield key >> 3, value


def _varint(content: Any, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        try:
            byte = content[position]
        except IndexError:
            msg = "an XSpace message is cut"
            raise ValueError(msg) from None
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _text(content: Any) -> str:
    return bytes(content).decode("utf-8", "replace")


class _MessageOperators(ABC):
    """Takes a window with a profiler whose sessions end with a message."""

    name = ""
    _read: Callable[[bytes], Iterator[XEvent]] = staticmethod(read_xspace)

    def __init__(self, window: WindowConfig) -> None:
        self._window = window
        self._session: Any = None
        self._start_ns = 0

    def start(self) -> None:
        """Begin."""
        for name in _REFUSED:
            if getattr(self._window, name):
                msg = f"{name} are not available from the profiler of {self.name}"
                raise Unavailable(msg)
        self._start_ns = time.monotonic_ns()
        try:
            self._session = self._make_session()
        except Exception as error:
            msg = f"the profiler of {self.name} did not start: {error}"
            raise Unavailable(msg) from error

    @abstractmethod
    def _make_session(self) -> Any:
        """Return a session of the library's profiler that has started."""

    def stop(self) -> Callable[[], WindowResult]:
        """End; return what reads the message."""
        session, self._session = self._session, None
        content, clock = bytes(session.stop()), Clock()
        return lambda: self._add_up(content, clock)

    def abandon(self) -> None:
        """Forget the session."""
        self._session = None

    def _add_up(self, content: bytes, clock: Clock) -> WindowResult:
        by_device: dict[str, list[XEvent]] = {}
        for event in self._read(content):
            is_host = event.plane.startswith("/host:")
            if event.name and (is_host or event.plane.startswith("/device:")):
                device = "cpu" if is_host else _device_of(event.plane)
                by_device.setdefault(device, []).append(event)
        found = WindowResult()
        for device in sorted(by_device, key=lambda name: (name != "cpu", name)):
            self._device(device, by_device[device], clock, found)
        if not by_device:
            found.unknown["operators"] = f"the profiler of {self.name} recorded nothing"
        return found

    def _device(
        self, device: str, events: list[XEvent], clock: Clock, found: WindowResult
    ) -> None:
        # Of several planes, lines of the same number are different ones.
        lines = {key: i for i, key in enumerate({each[:2]: 0 for each in events})}
        nesting = nest(
            [lines[each[:2]] for each in events],
            [each.start_ns for each in events],
            [each.duration_ns for each in events],
        )
        rows: dict[str, dict[str, Any]] = {}
        for i, each in enumerate(events):
            row = rows.setdefault(
                each.name, {"name": each.name, "calls": 0, "self_ns": 0, "total_ns": 0}
            )
            row["calls"] += 1
            row["self_ns"] += nesting.own_ns[i]
            row["total_ns"] += each.duration_ns
        found.events.append(operators_event(device, rows.values(), len(events)))
        if self._window.spans and device == "cpu":
            found.spans += [
                OperatorCall(
                    each.name,
                    self._monotonic(each.start_ns, clock),
                    each.duration_ns,
                    each.line,
                    nesting.depths[i],
                )
                for i, each in enumerate(events)
            ]

    def _monotonic(self, start_ns: int, clock: Clock) -> int:
        is_wall = start_ns >= _LEAST_WALL_NS
        return start_ns + (clock.offset_ns if is_wall else self._start_ns)


def _device_of(plane: str) -> str:
    """Return the kind of a device.

    Example:
        >>> _device_of("/device:GPU:0"), _device_of("/device:TPU:1")
        ('cuda', 'tpu')
    """
    kind = plane.removeprefix("/device:").split(":")[0].split(" ")[0].lower()
    return "cuda" if kind == "gpu" else kind


class JaxOperators(_MessageOperators):
    """Takes a window with the profiler of JAX."""

    name = "JAX"

    def _make_session(self) -> Any:
        library = importlib.import_module("jax.profiler")
        core = importlib.import_module("jax._src.lib")._profiler
        options = library.ProfileOptions()
        options.python_tracer_level = 0
        return core.ProfilerSession(options)


class TensorFlowOperators(_MessageOperators):
    """Takes a window with the profiler of TensorFlow."""

    name = "TensorFlow"
    _read = staticmethod(read_trace)

    def _make_session(self) -> Any:
        core = importlib.import_module(
            "tensorflow.python.profiler.internal._pywrap_profiler"
        )
        session = core.ProfilerSession()
        with contextlib.suppress(AttributeError):
            # A name of a folder, in which nothing is written unless it is exported.
            session.start("", {})
            return session
        msg = "its ProfilerSession has no start()"
        raise Unavailable(msg)
