"""Encodes a timeline as a trace of Perfetto: protocol buffers, without a package.

Of the format's messages only those are written that a timeline needs; their numbers
are those of perfetto/trace/trace_packet.proto and what it imports.  Names are interned,
and times are differences to the packet before: about 30 bytes a slice.

Thread safety: functions over values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from tdbg.export.timeline.model import Timeline, nested_lanes

__all__ = ["perfetto_trace"]

# Clocks; ours counts from the packet before it.
_REALTIME, _MONOTONIC, _BOOTTIME, _OURS = 1, 3, 6, 64
_SEQUENCE = 1
# TrackEvent.Type
_BEGIN, _END, _COUNTER = 1, 2, 4
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering
_UNITS = {"ns": 1, "": 2, "bytes": 3}
_VARINT, _FIXED64, _BYTES = 0, 1, 2
_BLOCK = 1 << 20


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    """A field that is an integer; a negative one takes ten bytes."""
    return _varint(field << 3 | _VARINT) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode(errors="backslashreplace"))


_SEQUENCE_FIELD = _number(10, _SEQUENCE)


def _packet(content: bytes) -> bytes:
    return _message(1, content + _SEQUENCE_FIELD)


def perfetto_trace(timeline: Timeline) -> Iterator[bytes]:
    """Yield the bytes of a trace, in pieces of about a megabyte.

    Times are MONOTONIC, and a clock snapshot says what they are as wall time.
    """
    yield _head(timeline)
    events = _Events(timeline)
    yield b"".join(events.descriptors())
    block = bytearray()
    for packet in events.packets():
        block += packet
        if len(block) >= _BLOCK:
            yield bytes(block)
            block.clear()
    yield bytes(block)


def _head(timeline: Timeline) -> bytes:
    """The clocks, and what holds for all packets."""
    start = max(timeline.start_ns, 0)  # Of a host that was booted before the first.
    ours = _number(1, _OURS) + _number(2, start) + _number(3, 1)
    clocks = b"".join(
        _message(1, _number(1, clock) + _number(2, time))
        for clock, time in (
            (_MONOTONIC, start),
            (_BOOTTIME, start),
            (_REALTIME, timeline.wall_ns),
        )
    )
    snapshot = clocks + _message(1, ours) + _number(2, _MONOTONIC)
    defaults = _message(59, _number(58, _OURS)) + _number(13, 1)
    return _packet(_message(6, snapshot)) + _packet(defaults)


class _Events:
    """All events of a timeline, by time."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._names: dict[str, int] = {}
        self._notes: dict[str, int] = {}
        self._descriptors: list[bytes] = []
        self._times: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        self._bodies: list[bytes] = []
        self._interned: list[bytes] = []  # Names, each once.
        self._n_rows = 0
        self._describe_processes()
        for track in timeline.tracks:
            for nth, lane in enumerate(nested_lanes(track)):
                title = track.name if nth == 0 else f"{track.name} ({nth + 1})"
                uuid = self._describe_row(track.process, title)
                begin = _number(9, _BEGIN) + _number(11, uuid)
                end = _message(11, _number(9, _END) + _number(11, uuid))
                for event in lane:
                    if event.begins:
                        notes = track.notes[event.slice] if track.notes else {}
                        self._add_begin(begin, track.names[event.slice], notes)
                    else:
                        self._bodies.append(end)
                self._times.append(np.array([each.time for each in lane], np.int64))
        for counter in timeline.counters:
            unit = counter.unit
            known = _UNITS.get(unit)
            described = _text(6, unit) if known is None else _number(3, known)
            uuid = self._describe_row(counter.process, counter.name, described)
            head = _number(9, _COUNTER) + _number(11, uuid)
            self._bodies += [
                _message(11, head + _double(44, value))
                for value in counter.values.tolist()
            ]
            self._times.append(counter.time.astype(np.int64))

    def _describe_processes(self) -> None:
        for order, (number, name) in enumerate(self._timeline.processes.items()):
            process = _number(1, number) + _text(6, name) + _number(3, order)
            self._descriptors.append(
                _packet(
                    _message(
                        60,
                        _number(1, number) + _text(2, name) + _message(3, process)
                        + _number(11, _EXPLICIT),
                    )
                )
            )  # fmt: skip
        self._n_rows = max(self._timeline.processes, default=0)

    def _describe_row(self, process: int, name: str, counter: bytes = b"") -> int:
        self._n_rows += 1
        content = _number(1, self._n_rows) + _number(5, process) + _text(2, name)
        content += _number(12, self._n_rows)
        if counter:
            content += _message(8, counter)
        self._descriptors.append(_packet(_message(60, content)))
        return self._n_rows

    def _add_begin(
        self, begin: bytes, name: str, notes: dict[str, str | int | float]
    ) -> None:
        body = begin + _number(10, self._intern(self._names, 2, name))
        for key, value in notes.items():
            note = _number(1, self._intern(self._notes, 3, key))
            body += _message(4, note + _value(value))
        self._bodies.append(_message(11, body))

    def _intern(self, known: dict[str, int], field: int, text: str) -> int:
        number = known.get(text)
        if number is None:
            number = known[text] = len(known) + 1
            entry = _number(1, number) + _text(2, text)
            self._interned.append(_message(field, entry))
        return number

    def descriptors(self) -> list[bytes]:
        """Return the packets that name processes, tracks and counters."""
        return self._descriptors

    def packets(self) -> Iterator[bytes]:
        """Yield a packet for each event, by time."""
        times = np.concatenate([*self._times, np.empty(0, np.int64)])
        order = np.argsort(times, kind="stable")
        previous = self._timeline.start_ns
        deltas = np.diff(times[order], prepend=previous)
        yield _packet(_message(12, b"".join(self._interned)))
        head = _varint(8 << 3 | _VARINT)
        for i, delta in zip(order.tolist(), deltas.tolist(), strict=True):
            content = head + _varint(delta) + self._bodies[i] + _SEQUENCE_FIELD
            yield b"\x0a" + _varint(len(content)) + content


def _value(value: str | float) -> bytes:
    """The value of a debug annotation."""
    if isinstance(value, int):
        return _number(4, value)
    return _double(5, value) if isinstance(value, float) else _text(6, value)
