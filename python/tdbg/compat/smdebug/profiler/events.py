"""The events of a profile, and the parsers of smdebug's files of them.

``smdebug.profiler.system_profiler_file_parser``, ``trace_event_file_parser`` and
``tf_profiler_parser``.  Times are microseconds since the epoch; those of metrics of
the system are seconds.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tdbg.compat.smdebug.profiler.damage import (
    LAST_SECOND,
    Damage,
    Flaws,
    elements,
    lines,
    number,
    text_of,
    word,
)
from tdbg.compat.smdebug.profiler.utils import (
    TimeUnits,
    convert_utc_datetime_to_microseconds,
    convert_utc_timestamp_to_microseconds,
    convert_utc_timestamp_to_nanoseconds,
    get_node_id_from_tracefilename,
    read_tf_profiler_metadata_file,
)

_OF_SAGEMAKER = re.compile(r"(.*)-(algo.*)")
_UNKNOWN = "Unknown"


class ProfilerSystemEvent:
    """A metric of the system at one time.

    Attributes:
        type: ``cpu``, ``gpu``, ``memory``, ``i/o`` or ``network``.
        name: The core, the device or the metric: ``cpu5``, ``MemoryUsedPercent``.
        dimension: ``CPUUtilization``, ``GPUUtilization``, ``GPUMemoryUtilization``,
            ``I/OWaitPercentage``, ``Algorithm``, or "".
        value: In per cent, or in bytes or operations a second.
        node_id: The node: ``algo-1``.
        timestamp: In seconds since the epoch.
    """

    def __init__(
        self,
        event_type: str,
        name: str | None,
        dimension: str,
        value: float,
        node_id: str,
        timestamp: float,
    ) -> None:
        self.type = event_type
        self.name = name
        self.dimension = dimension
        self.value = value
        self.node_id = node_id
        self.timestamp = timestamp


class SystemProfilerEventParser:
    """Reads files of metrics of the system, one JSON object a line."""

    def __init__(self) -> None:
        self._events: list[ProfilerSystemEvent] = []

    def read_events_from_file(self, eventfile: str) -> Damage | None:
        """Add the events of a file, and return what could not be read of it.

        Raises:
            ProfilerFileError: If nothing in it can be read.
        """
        flaws = Flaws(str(eventfile))
        before = len(self._events)
        for line, fields in lines(text_of(Path(eventfile), flaws), flaws):
            try:
                self.read_event_from_dict(fields)
            except ValueError as error:
                flaws.add(line, error)
        return flaws.result(len(self._events) - before)

    def read_events_from_json_data(self, system_profiler_json_data: Any) -> None:
        """Add events that are parsed already.

        Raises:
            ValueError: If one has no such fields.
        """
        for fields in system_profiler_json_data:
            self.read_event_from_dict(fields)

    def read_event_from_dict(self, event: Any) -> None:
        """Add one event.

        Raises:
            ValueError: If it has no such fields.
        """
        if not isinstance(event, dict):
            msg = "it is no JSON object"
            raise ValueError(msg)
        name, at = event.get("Name"), number(event, "Timestamp")
        _check_time(at, at)
        self._events.append(
            ProfilerSystemEvent(
                word(event, "Type"),
                name if isinstance(name, str) else None,
                word(event, "Dimension"),
                number(event, "Value"),
                word(event, "NodeId"),
                at,
            )
        )

    def get_events_within_time_range(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
    ) -> list[ProfilerSystemEvent]:
        """Return the events from *start_time* to *end_time*, of one type or all."""
        first = convert_utc_timestamp_to_nanoseconds(start_time, unit)
        last = convert_utc_timestamp_to_nanoseconds(end_time, unit)
        return [
            event
            for event in self._events
            if event_type in {None, event.type}
            and first
            <= convert_utc_timestamp_to_nanoseconds(event.timestamp, TimeUnits.SECONDS)
            <= last
        ]

    def get_all_events(self) -> list[ProfilerSystemEvent]:
        """Return all events."""
        return self._events

    def clear_events(self) -> None:
        """Forget all events."""
        self._events = []


class ProfilerSystemEvents(SystemProfilerEventParser):
    """Reads files of metrics of the system."""


def _check_time(start: float, end: float) -> None:
    """Check that an interval, in seconds since the epoch, is one of a calendar.

    Raises:
        ValueError: If it is not, or ends before it begins.
    """
    if not 0 <= start <= end <= LAST_SECOND:
        msg = f"it lasts from {start:g} to {end:g} s since 1970"
        raise ValueError(msg)


class ThreadInfo:
    """A thread of a timeline, or a worker below a phase."""

    def __init__(self, tid: Any, thread_name: str) -> None:
        self.tid = tid
        self.thread_name = thread_name

    def __repr__(self) -> str:
        return f"tid:{self.tid} name:{self.thread_name}"


class ProcessInfo:
    """A group of a timeline: a phase of the training, or a device."""

    def __init__(self, id: Any, name: str) -> None:  # noqa: A002 - smdebug's name
        self.id = id
        self.name = name
        self._threads: dict[Any, ThreadInfo] = {}

    def add_thread(self, threadid: Any, thread_name: str) -> None:
        """Name a thread; a name that is known is kept."""
        known = self._threads.get(threadid)
        if known is None or known.thread_name == _UNKNOWN:
            self._threads[threadid] = ThreadInfo(threadid, thread_name)

    def has_thread(self, threadid: Any) -> bool:
        """Return whether a thread is known."""
        return threadid in self._threads

    def get_thread_info(self, threadid: Any) -> ThreadInfo:
        """Return a thread."""
        return self._threads[threadid]

    def __repr__(self) -> str:
        return f"id:{self.id} name:{self.name} threads:{self._threads}"


class TraceEvent:
    """An interval of a timeline.

    Attributes:
        start_time: Microseconds since the epoch; so is ``end_time``.
        event_name: What happened: ``Step:ModeKeys.TRAIN``, ``dataset::GetNext``.
        event_phase: The group that it is in.
        duration: In microseconds.
        event_args: Further facts, such as ``step_num``; or None.
        pid: The process, or the number of the group if it does not say.
        tid: The thread.
        node_id: The node that recorded it.
    """

    def __init__(
        self,
        ts: float,
        name: str,
        dur: float,
        phase_pid: Any,
        phase_tid: Any,
        event_args: dict[str, Any] | None,
        node_id: Any,
        phase: str,
        file_type: str,
        event_phase: str = "",
        pid: Any = 0,
        tid: Any = 0,
        process_info: ProcessInfo | None = None,
    ) -> None:
        self.start_time = ts
        self.event_name = name
        self.duration = dur
        self.end_time = ts + dur
        self.phase_pid = phase_pid
        self.phase_tid = phase_tid
        self.pid = pid
        self.tid = tid
        self.event_args = event_args
        self.node_id = node_id
        self.phase = phase
        self.event_phase = event_phase
        self.process_info = process_info
        self.file_type = file_type

    def arg(self, name: str, default: Any = None) -> Any:
        """Return one of the further facts."""
        return (self.event_args or {}).get(name, default)

    @property
    def step(self) -> int:
        """The step that it says it belongs to; -1 if it does not say."""
        text = str(self.arg("step_num", -1))
        return int(text) if text.lstrip("-").isdecimal() else -1

    def to_json(self) -> str:
        """Return the event in Chrome's format."""
        fields: dict[str, Any] = {
            "name": self.event_name,
            "pid": self.pid,
            "tid": self.tid,
            "ph": self.phase,
            "ts": self.start_time,
        }
        args = dict(self.event_args or {})
        if self.phase == "i" and args:
            fields["s"] = args.pop("s", "t")
        elif self.phase == "X":
            fields["dur"] = self.duration
        if args:
            fields["args"] = args
        return json.dumps(fields)


class TraceEventParser:
    """Reads timelines: JSON arrays of events in Chrome's format.

    Args:
        type: What the events are called in ``file_type``.
    """

    def __init__(self, type: str = "") -> None:  # noqa: A002 - smdebug's name
        self.type = type
        self._trace_events: list[TraceEvent] = []
        self._processes: dict[Any, ProcessInfo] = {}
        # What the file that is being read calls its groups, and its origin in us.
        self._groups: dict[Any, ProcessInfo] = {}
        self._start_timestamp: float = 0
        # Events that have begun, by node, group and thread, over all files.
        self._begun: dict[tuple[str, str, Any], list[tuple[float, dict[str, Any]]]] = {}

    def read_events_from_file(self, tracefile: str) -> Damage | None:
        """Add the events of a file, and return what could not be read of it.

        Raises:
            ProfilerFileError: If nothing in it can be read.
        """
        flaws = Flaws(str(tracefile))
        found = elements(text_of(Path(tracefile), flaws), flaws)
        node = get_node_id_from_tracefilename(str(tracefile))
        return self._read(found, node, flaws)

    def read_events_from_json_data(
        self, trace_json_data: Sequence[Any], node_id: str
    ) -> None:
        """Add events that are parsed already.

        Raises:
            ProfilerFileError: If none of them is an event.
        """
        self._read(trace_json_data, node_id, Flaws("the data"))

    def _read(self, found: Iterable[Any], node: str, flaws: Flaws) -> Damage | None:
        parts = _OF_SAGEMAKER.match(node)
        node = f"{parts[2]}-{parts[1]}" if parts else node
        self._groups = {}
        n_read = 0
        for place, event in enumerate(found, start=1):
            try:
                self._read_event(event, node)
                n_read += 1
            except (ValueError, TypeError) as error:
                flaws.add(0, f"event {place}: {error}")
        return flaws.result(n_read)

    def _read_event(self, event: Any, node_id: str = "") -> None:
        if not isinstance(event, dict):
            msg = "it is no JSON object"
            raise ValueError(msg)
        kind = word(event, "ph")
        args = event.get("args")
        args = args if isinstance(args, dict) else None
        if kind == "M":
            self._describe(event, args or {}, node_id)
        elif kind == "X":
            start = number(event, "ts") + self._start_timestamp
            self._add(event, start, number(event, "dur"), args, node_id)
        elif kind == "B":
            start = number(event, "ts") + self._start_timestamp
            self._begun.setdefault(self._place(event, node_id), []).append(
                (start, event)
            )
        elif kind == "E":
            self._end(event, args, node_id)

    def _describe(self, event: dict[str, Any], args: dict[str, Any], node: str) -> None:
        """Take the name of a group or of a thread, or the origin of all times."""
        name, pid = event.get("name"), event.get("pid")
        if name == "process_name":
            called = args.get("name")
            group = ProcessInfo(pid, called if isinstance(called, str) else _UNKNOWN)
            same = (e for e in self._processes.values() if e.name == group.name)
            known = next(same, group)
            self._groups[pid] = known
            self._processes.setdefault(pid, known)
        elif name in {"thread_name", "thread_sort_index"}:
            is_named = name == "thread_name"
            called = f"{node}_{args.get('name')}" if is_named else _UNKNOWN
            self._group(pid).add_thread(event.get("tid"), called)
        if "start_time_since_epoch_in_micros" in args:
            self._start_timestamp = number(args, "start_time_since_epoch_in_micros")

    def _group(self, pid: Any) -> ProcessInfo:
        return self._groups.setdefault(pid, ProcessInfo(pid, _UNKNOWN))

    def _place(self, event: dict[str, Any], node: str) -> tuple[str, str, Any]:
        pid = event.get("pid")
        return node, f"{self._group(pid).name}/{pid}", event.get("tid", 0)

    def _end(
        self, event: dict[str, Any], args: dict[str, Any] | None, node: str
    ) -> None:
        end = number(event, "ts") + self._start_timestamp
        begun = self._begun.get(self._place(event, node))
        if not begun:
            return  # It began before the first file.
        start, opened = begun.pop()
        opened = {"tid": event.get("tid", 0), **opened}
        self._add(opened, start, end - start, args, node)

    def _add(
        self,
        event: dict[str, Any],
        start: float,
        duration: float,
        args: dict[str, Any] | None,
        node: str,
    ) -> None:
        _check_time(start / 1e6, (start + duration) / 1e6)
        phase_pid = event.get("pid")
        group = self._group(phase_pid)
        thread = event.get("tid", 0)
        if not group.has_thread(thread):
            # Threads of several nodes with one number are several threads.
            called = f"{node}_{thread}"
            thread = zlib.crc32(f"{called}{group.name}".encode())
            group.add_thread(thread, called)
        facts = args or {}
        self._trace_events.append(
            TraceEvent(
                start,
                word(event, "name"),
                duration,
                phase_pid,
                thread,
                args,
                node,
                "X",
                self.type,
                group.name,
                facts.get("pid", phase_pid),
                facts.get("thread_id", thread),
                group,
            )
        )

    def get_all_events(self) -> list[TraceEvent]:
        """Return all events, as they were read."""
        return self._trace_events

    def get_events_start_time_sorted(self) -> list[TraceEvent]:
        """Return all events by their start."""
        return sorted(self._trace_events, key=lambda event: event.start_time)

    def get_events_end_time_sorted(self) -> list[TraceEvent]:
        """Return all events by their end."""
        return sorted(self._trace_events, key=lambda event: event.end_time)

    def get_events_within_time_range(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
    ) -> list[TraceEvent]:
        """Return the events that overlap an interval."""
        first = convert_utc_timestamp_to_microseconds(start_time, unit)
        last = convert_utc_timestamp_to_microseconds(end_time, unit)
        return [
            event
            for event in self._trace_events
            if event.end_time >= first and event.start_time <= last
        ]

    def get_events_within_range(
        self, start_time: datetime, end_time: datetime
    ) -> list[TraceEvent]:
        """Return the events that overlap an interval between two dates."""
        return self.get_events_within_time_range(
            convert_utc_datetime_to_microseconds(start_time),
            convert_utc_datetime_to_microseconds(end_time),
        )

    def get_process_info(self, process_id: Any) -> ProcessInfo:
        """Return a group by its number."""
        return self._processes[process_id]

    def get_processes(self) -> dict[Any, ProcessInfo]:
        """Return all groups by their numbers."""
        return self._processes

    def clear_events(self) -> None:
        """Forget all events."""
        self._trace_events = []


class SMProfilerEvents(TraceEventParser):
    """Reads smdebug's own timelines, of Python and of the framework."""

    def __init__(self, type: str = "PythontimelineMetrics") -> None:  # noqa: A002
        super().__init__(type)


class HorovodProfilerEvents(TraceEventParser):
    """Reads timelines of Horovod."""

    def __init__(self) -> None:
        super().__init__("HorovodMetrics")


class SMDataParallelProfilerEvents(TraceEventParser):
    """Reads timelines of SageMaker's library for data parallel training."""

    def __init__(self) -> None:
        super().__init__("SMDataParallelMetrics")


class TensorboardProfilerEvents(TraceEventParser):
    """Reads traces of TensorFlow's profiler, which are compressed."""

    def __init__(self) -> None:
        super().__init__("TFProfilerMetrics")

    def read_events_from_file(self, tracefile: str) -> Damage | None:
        """Add the events of a file, and return what could not be read of it.

        Their times are relative to the start that the metadata beside them has.

        Raises:
            ProfilerFileError: If nothing in it can be read.
        """
        flaws = Flaws(str(tracefile))
        found = elements(text_of(Path(tracefile), flaws), flaws)
        start = int(read_tf_profiler_metadata_file(str(tracefile))[1])
        origin = {"start_time_since_epoch_in_micros": start}
        meta = {"name": "process_name", "ph": "M", "pid": 0, "args": origin}
        node = Path(tracefile).name.split(".")[0]
        return self._read([meta, *found] if found else [], node, flaws)
