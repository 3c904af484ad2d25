"""Readers of a profile: of a directory that smdebug wrote, or of a run of tdbg.

``smdebug.profiler.metrics_reader_base``, ``system_metrics_reader`` and
``algorithm_metrics_reader``.
"""

from __future__ import annotations

import bisect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Never

from tdbg.compat.smdebug.core.base import get_logger
from tdbg.compat.smdebug.exceptions import MissingCollectionFiles, SMDebugValueError
from tdbg.compat.smdebug.left_out import refuse
from tdbg.compat.smdebug.profiler.damage import Damage, ProfilerFileError
from tdbg.compat.smdebug.profiler.events import (
    HorovodProfilerEvents,
    ProfilerSystemEvents,
    SMDataParallelProfilerEvents,
    SMProfilerEvents,
    SystemProfilerEventParser,
    TensorboardProfilerEvents,
    TraceEventParser,
)
from tdbg.compat.smdebug.profiler.runs import RunEvents, is_run
from tdbg.compat.smdebug.profiler.utils import (
    DEFAULT_SYSTEM_PROFILER_PREFIX,
    ENV_TIME_BUFFER,
    HOROVODTIMELINE_SUFFIX,
    MODELTIMELINE_SUFFIX,
    PYTHONTIMELINE_SUFFIX,
    SMDATAPARALLELTIMELINE_SUFFIX,
    TENSORBOARDTIMELINE_SUFFIX,
    TIME_BUFFER_DEFAULT,
    TimeUnits,
    convert_utc_timestamp_to_microseconds,
    get_timestamp_from_tracefilename,
    get_utctimestamp_us_since_epoch_from_system_profiler_file,
    is_valid_tfprof_tracefilename,
    is_valid_tracefilename,
    local_path_of,
)

FOLDERS = ("system", "framework")
# After all that a profile can have, in us.
_END = 2**62

_Parser = SystemProfilerEventParser | TraceEventParser


class MetricsReaderBase(ABC):
    """Reads the events of one side of a profile.

    Several threads may not use one reader at once.

    Args:
        trace_root_folder: A directory that smdebug's profiler wrote, with ``system``
            or ``framework`` in it; or a run of tdbg.
        use_in_memory_cache: Keep events that were read, for later calls.

    Raises:
        MissingCollectionFiles: If the directory is neither, or is not there.
        SMDebugNotImplementedError: If it is on S3.
    """

    _folder = ""

    def __init__(
        self, trace_root_folder: str | os.PathLike[str], use_in_memory_cache: bool
    ) -> None:
        self.trace_root_folder = str(trace_root_folder)
        self.prefix = self._folder
        self._path = _profile_directory(trace_root_folder)
        self._run = RunEvents(self._path) if is_run(self._path) else None
        self._keeps = use_in_memory_cache
        self._parsers: dict[str, _Parser] = {}
        self._files: dict[int, list[str]] = {}
        self._parsed: set[str] = set()
        self._damage: dict[str, Damage] = {}
        self.refresh_event_file_list()

    @property
    def damage(self) -> list[Damage]:
        """The damage found so far, one for each file."""
        return list(self._damage.values())

    def get_all_event_parsers(self) -> list[_Parser]:
        """Return the parsers, one for each kind of file."""
        return list(self._parsers.values())

    def refresh_event_file_list(self) -> None:
        """Look for files that are new."""
        if self._run is not None:
            return
        for path in sorted((self._path / self._folder).rglob("*")):
            name = path.as_posix()
            at = self._time_of(name) if path.is_file() else None
            if at is not None and name not in self._files.setdefault(at, []):
                self._files[at].append(name)

    def get_timestamp_of_first_available_file(self) -> int:
        """Return the time of the first file, in us since the epoch; 0: there is none.

        Of a run, when its first event began.
        """
        if self._run is not None:
            return self._bounds()[0]
        return min(self._files, default=0)

    def get_timestamp_of_latest_available_file(self) -> int:
        """Return the time of the newest file, in us since the epoch; 0: there is none.

        Of a run, when its last event ended.
        """
        if self._run is not None:
            return self._bounds()[1]
        return max(self._files, default=0)

    def get_current_time_range_for_event_query(self) -> tuple[int, int]:
        """Return the times of the first and the newest file."""
        first = self.get_timestamp_of_first_available_file()
        return first, self.get_timestamp_of_latest_available_file()

    def get_events(
        self,
        start_time: float,
        end_time: float,
        unit: TimeUnits = TimeUnits.MICROSECONDS,
        event_type: str | None = None,
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[Any]:
        """Return the events of an interval.

        Files that are damaged give what is whole in them; ``damage`` lists them, and
        the log has one warning for each.

        Args:
            start_time: Since the epoch, in *unit*; so is *end_time*.
            end_time: The end; what overlaps it counts.
            unit: The unit of both.
            event_type: Only metrics of one type: ``cpu``, ``gpu``, ...
            file_suffix_filter: Only files that end with one of these.

        Raises:
            ProfilerFileError: If no file of the interval can be read at all.
        """
        first = convert_utc_timestamp_to_microseconds(start_time, unit)
        last = convert_utc_timestamp_to_microseconds(end_time, unit)
        if self._run is not None:
            return self._of_run(first, last, event_type, file_suffix_filter)
        files = self._get_event_files_in_the_range(first, last)
        if file_suffix_filter is not None:
            files = [each for each in files if each.endswith(tuple(file_suffix_filter))]
        self.parse_event_files(files)
        found: list[Any] = []
        for parser in self._parsers.values():
            found += self._within(parser, first, last, event_type)
            if not self._keeps:
                parser.clear_events()
        if not self._keeps:
            self._parsed.clear()
        return found

    def get_events_by_step(
        self,
        start_step: int,
        end_step: int,
        event_type: str | None = None,
        file_suffix_filter: Sequence[str] | None = None,
    ) -> list[Any]:
        """Return the events from the start of one step to the start of another.

        There are none if the profile does not have these steps.
        """
        first, last = self._get_time_interval_for_step(start_step, end_step)
        return self.get_events(
            first, last, TimeUnits.MICROSECONDS, event_type, file_suffix_filter
        )

    def parse_event_files(self, event_files: Iterable[str]) -> None:
        """Read files that were not read yet.

        Raises:
            ProfilerFileError: If none of them can be read.
        """
        failures: list[ProfilerFileError] = []
        files = [each for each in event_files if each not in self._parsed]
        for name in files:
            try:
                damage = self._get_event_parser(name).read_events_from_file(name)
            except ProfilerFileError as error:
                failures.append(error)
                damage = Damage(name, str(error), 0, 1)
            self._parsed.add(name)
            if damage is not None and name not in self._damage:
                self._damage[name] = damage
                get_logger().warning("%s", damage)
        if failures and len(failures) == len(files):
            raise failures[0]

    def _get_event_files_in_the_range(self, first: float, last: float) -> list[str]:
        buffer = _time_buffer()
        self.refresh_event_file_list()
        times = sorted(self._files)
        begin, end = self._selected(times, first - buffer, last + buffer)
        return [name for at in times[begin:end] for name in sorted(self._files[at])]

    def _get_time_interval_for_step(self, start_step: int, end_step: int) -> Any:
        """Return when two steps begin, in us: the second one excluded."""
        events = self.get_events(0, _END, file_suffix_filter=[PYTHONTIMELINE_SUFFIX])
        starts: dict[int, float] = {}
        end = 0.0
        for event in sorted(events, key=lambda event: event.start_time):
            if event.step >= 0:
                starts.setdefault(event.step, event.start_time)
                end = max(end, event.end_time)
        if starts and end_step == max(starts) + 1:
            starts[end_step] = end + 1
        if start_step not in starts or end_step not in starts:
            get_logger().info(
                "the profile does not have steps %s to %s", start_step, end_step
            )
            return 0, 0
        return starts[start_step], starts[end_step] - 1

    # What the two sides differ in.

    @abstractmethod
    def _time_of(self, name: str) -> int | None:
        """Return the time in a file's name, in us; None: it has no events."""

    @abstractmethod
    def _selected(self, times: list[int], first: float, last: float) -> Any:
        """Return which files may have events of an interval: begin and end."""

    @abstractmethod
    def _get_event_parser(self, filename: str) -> _Parser:
        """Return the parser of a file."""

    @abstractmethod
    def _within(
        self, parser: Any, first: int, last: int, event_type: str | None
    ) -> list[Any]:
        """Return the parsed events of an interval."""

    @abstractmethod
    def _bounds(self) -> tuple[int, int]:
        """Return when a run begins and ends, in us."""

    @abstractmethod
    def _of_run(
        self,
        first: int,
        last: int,
        event_type: str | None,
        suffixes: Sequence[str] | None,
    ) -> list[Any]:
        """Return a run's events of an interval."""


class SystemMetricsReader(MetricsReaderBase):
    """Reads metrics of the system: cores, GPUs, memory, disks, networks."""

    _folder = DEFAULT_SYSTEM_PROFILER_PREFIX

    def __init__(
        self,
        trace_root_folder: str | os.PathLike[str],
        use_in_memory_cache: bool = False,
    ) -> None:
        super().__init__(trace_root_folder, use_in_memory_cache)
        self._parsers["system"] = ProfilerSystemEvents()

    def _time_of(self, name: str) -> int | None:
        return get_utctimestamp_us_since_epoch_from_system_profiler_file(name)

    def _selected(self, times: list[int], first: float, last: float) -> tuple[int, int]:
        # A file is named by its beginning.
        begin = max(bisect.bisect_right(times, first) - 1, 0)
        return begin, bisect.bisect_left(times, last) + 1

    def _get_event_parser(self, filename: str) -> _Parser:
        del filename
        return self._parsers["system"]

    def _within(
        self, parser: Any, first: int, last: int, event_type: str | None
    ) -> list[Any]:
        found: list[Any] = parser.get_events_within_time_range(
            first, last, TimeUnits.MICROSECONDS, event_type
        )
        return found

    def _bounds(self) -> tuple[int, int]:
        return self._run.system_bounds() if self._run else (0, 0)

    def _of_run(
        self,
        first: int,
        last: int,
        event_type: str | None,
        suffixes: Sequence[str] | None,
    ) -> list[Any]:
        del suffixes
        return self._run.system_events(first, last, event_type) if self._run else []


class LocalSystemMetricsReader(SystemMetricsReader):
    """Reads metrics of the system on this machine."""


class AlgorithmMetricsReader(MetricsReaderBase):
    """Reads timelines of the training: steps, phases, loaders, operators."""

    _folder = "framework"

    def __init__(
        self,
        trace_root_folder: str | os.PathLike[str],
        use_in_memory_cache: bool = False,
    ) -> None:
        super().__init__(trace_root_folder, use_in_memory_cache)
        self._parsers |= {
            PYTHONTIMELINE_SUFFIX: SMProfilerEvents(),
            MODELTIMELINE_SUFFIX: SMProfilerEvents("DetailedframeworkMetrics"),
            TENSORBOARDTIMELINE_SUFFIX: TensorboardProfilerEvents(),
            HOROVODTIMELINE_SUFFIX: HorovodProfilerEvents(),
            SMDATAPARALLELTIMELINE_SUFFIX: SMDataParallelProfilerEvents(),
        }

    def _time_of(self, name: str) -> int | None:
        is_known = name.endswith(_SUFFIXES) and is_valid_tracefilename(name)
        if is_known or is_valid_tfprof_tracefilename(name):
            return get_timestamp_from_tracefilename(name)
        return None

    def _selected(self, times: list[int], first: float, last: float) -> tuple[int, int]:
        # A file is named by its end; a trace without metadata, by 0.
        begin = 0 if times[:1] == [0] else bisect.bisect_left(times, first)
        return begin, bisect.bisect_left(times, last) + 1

    def _get_event_parser(self, filename: str) -> _Parser:
        return next(
            parser
            for suffix, parser in self._parsers.items()
            if filename.endswith(suffix)
        )

    def _within(
        self, parser: Any, first: int, last: int, event_type: str | None
    ) -> list[Any]:
        del event_type
        found: list[Any] = parser.get_events_within_time_range(first, last)
        return found

    def _bounds(self) -> tuple[int, int]:
        return self._run.trace_bounds() if self._run else (0, 0)

    def _of_run(
        self,
        first: int,
        last: int,
        event_type: str | None,
        suffixes: Sequence[str] | None,
    ) -> list[Any]:
        del event_type
        return self._run.trace_events(first, last, suffixes) if self._run else []


class LocalAlgorithmMetricsReader(AlgorithmMetricsReader):
    """Reads timelines of the training on this machine."""


_SUFFIXES = (
    PYTHONTIMELINE_SUFFIX,
    MODELTIMELINE_SUFFIX,
    HOROVODTIMELINE_SUFFIX,
    SMDATAPARALLELTIMELINE_SUFFIX,
)


def is_profile(path: str | os.PathLike[str]) -> bool:
    """Return whether a directory is a run, or has a profile of smdebug in it."""
    root = local_path_of(path)
    return is_run(root) or any((root / folder).is_dir() for folder in FOLDERS)


def _profile_directory(path: str | os.PathLike[str]) -> Path:
    root = local_path_of(path)
    if is_profile(root):
        return root
    what = "no such directory" if not root.is_dir() else "no profile"
    msg = (
        f"{what}: {root}; give a run of tdbg, or a directory that smdebug's profiler "
        "wrote, which has `system` or `framework` in it"
    )
    raise MissingCollectionFiles(msg)


def _time_buffer() -> int:
    text = os.environ.get(ENV_TIME_BUFFER, str(TIME_BUFFER_DEFAULT))
    if not text.isdecimal():
        msg = f"{ENV_TIME_BUFFER} is {text!r}; set it to a number of microseconds"
        raise SMDebugValueError(msg)
    return int(text)


class _OnS3:
    """Refuses a path on S3, and says what works."""

    def __init__(self, s3_trial_path: str, *args: object, **kwargs: object) -> None:
        del args, kwargs
        self._refuse(s3_trial_path)

    def _refuse(self, path: str) -> Never:
        local_path_of(path)  # Says how to copy it, if it is on S3.
        msg = f"{path} is not on S3: read it with Local{type(self).__name__[2:]}"
        raise SMDebugValueError(msg)


class S3SystemMetricsReader(_OnS3):
    """Not available: tdbg reads directories."""


class S3AlgorithmMetricsReader(_OnS3):
    """Not available: tdbg reads directories."""


__getattr__ = refuse(__name__)
