"""``smdebug.profiler.utils`` and ``profiler_constants``: units, names, files."""

from __future__ import annotations

import os
import re
import socket
from datetime import UTC, datetime
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from tdbg.compat.smdebug.exceptions import SMDebugNotImplementedError, SMDebugValueError
from tdbg.compat.smdebug.left_out import refuse
from tdbg.config.libraries import library

DEFAULT_PREFIX = "framework/pevents"
DEFAULT_SYSTEM_PROFILER_PREFIX = "system"
TRACE_DIRECTORY_FORMAT = "%Y%m%d%H"
PYTHONTIMELINE_SUFFIX = "pythontimeline.json"
MODELTIMELINE_SUFFIX = "model_timeline.json"
TENSORBOARDTIMELINE_SUFFIX = "trace.json.gz"
HOROVODTIMELINE_SUFFIX = "horovod_timeline.json"
SMDATAPARALLELTIMELINE_SUFFIX = "smdataparallel_timeline.json"
MERGEDTIMELINE_SUFFIX = "merged_timeline.json"
PT_DATALOADER_WORKER = "DataLoaderWorker"
PT_DATALOADER_ITER = "DataLoaderIter"
PT_DATALOADER_INITIALIZE = "DataLoaderIterInitialize"
TF_DATALOADER_ITER = "DataIterator"
TF_METRICS_PREFIX = "aws_marker-"

# How far before and after an interval files are looked through for its events.
ENV_TIME_BUFFER = "TIME_BUFFER_MICROSECONDS"
TIME_BUFFER_DEFAULT = 3 * 60 * 1000 * 1000
# Not read: S3 delivers files late, a directory does not.
ENV_TRAIILING_DURATION = "TRAILING_DURATION_MICROSECONDS"
TRAILING_DURATION_DEFAULT = 5 * 60 * 1000 * 1000

CONFIG_PATH_DEFAULT = "/opt/ml/input/config/profilerconfig.json"
CONVERT_TO_MICROSECS = 1000000
CONVERT_MICRO_TO_NS = 1000
MAX_FILE_SIZE_DEFAULT = 10485760
CLOSE_FILE_INTERVAL_DEFAULT = 60
FILE_OPEN_FAIL_THRESHOLD_DEFAULT = 50
BASE_FOLDER_DEFAULT = "/opt/ml/output/profiler"
PYTHON_PROFILING_START_STEP_DEFAULT = 9
PROFILING_NUM_STEPS_DEFAULT = 1
PROFILER_DURATION_DEFAULT = float("inf")

CPROFILE_STATS_FILENAME = "python_stats"
PYINSTRUMENT_JSON_FILENAME = "python_stats.json"
PYINSTRUMENT_HTML_FILENAME = "python_stats.html"
CPROFILE_NAME = "cprofile"
PYINSTRUMENT_NAME = "pyinstrument"

_SYSTEM_FILE = re.compile(r".+/system/.+/(\d{10})\.(algo-\d+)\.json$")
_TIMELINE_FIELDS = 3
_READABLE = "%Y-%m-%dT%H:%M:%S:%f"


class TimeUnits(Enum):
    """The unit of a time since the epoch."""

    SECONDS = 1
    MILLISECONDS = 2
    MICROSECONDS = 3
    NANOSECONDS = 4


class PythonProfileModes(IntEnum):
    """The mode of a step, or what lies before the first and after the last."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4
    PRE_STEP_ZERO = 5
    POST_HOOK_CLOSE = 6


class StepPhase(Enum):
    """A point of a step, at which profiling begins or ends."""

    START = "start"
    STEP_START = "stepstart"
    FORWARD_PASS_END = "forwardpassend"  # noqa: S105 - a point of a step
    STEP_END = "stepend"
    END = "end"


class PythonProfilerName(Enum):
    """The profilers of Python that smdebug used."""

    CPROFILE = CPROFILE_NAME
    PYINSTRUMENT = PYINSTRUMENT_NAME


class cProfileTimer(Enum):  # noqa: N801 - smdebug's name
    """The clock that cProfile read."""

    TOTAL_TIME = "total_time"
    CPU_TIME = "cpu_time"
    OFF_CPU_TIME = "off_cpu_time"
    DEFAULT = "default"


_NANOSECONDS = {
    TimeUnits.SECONDS: 1_000_000_000,
    TimeUnits.MILLISECONDS: 1_000_000,
    TimeUnits.MICROSECONDS: 1_000,
    TimeUnits.NANOSECONDS: 1,
}


def convert_utc_timestamp_to_nanoseconds(
    timestamp: float, unit: TimeUnits = TimeUnits.MICROSECONDS
) -> int:
    """Convert a time since the epoch to nanoseconds."""
    return int(timestamp * _NANOSECONDS[unit])


def convert_utc_timestamp_to_microseconds(
    timestamp: float, unit: TimeUnits = TimeUnits.MICROSECONDS
) -> int:
    """Convert a time since the epoch to microseconds.

    Example:
        >>> convert_utc_timestamp_to_microseconds(1.5, TimeUnits.SECONDS)
        1500000
    """
    if unit is TimeUnits.NANOSECONDS:
        return int(timestamp / 1000)
    return int(timestamp * (_NANOSECONDS[unit] // 1000))


def convert_utc_timestamp_to_seconds(
    timestamp: float, unit: TimeUnits = TimeUnits.MICROSECONDS
) -> int:
    """Convert a time since the epoch to whole seconds."""
    return int(timestamp * _NANOSECONDS[unit] / 1_000_000_000)


def convert_utc_datetime_to_nanoseconds(timestamp_datetime: datetime) -> int:
    """Convert a date and time to nanoseconds since the epoch."""
    return int(timestamp_datetime.timestamp() * 1_000_000_000)


def convert_utc_datetime_to_microseconds(timestamp_datetime: datetime) -> int:
    """Convert a date and time to microseconds since the epoch."""
    return int(timestamp_datetime.timestamp() * CONVERT_TO_MICROSECS)


def us_since_epoch_to_human_readable_time(us_since_epoch: float) -> str:
    """Spell microseconds since the epoch in UTC.

    Example:
        >>> us_since_epoch_to_human_readable_time(1589930987655184)
        '2020-05-19T23:29:47:655184'
    """
    return datetime.fromtimestamp(us_since_epoch / 1e6, UTC).strftime(_READABLE)


def ns_since_epoch_to_human_readable_time(ns_since_epoch: float) -> str:
    """Spell nanoseconds since the epoch in UTC."""
    return us_since_epoch_to_human_readable_time(ns_since_epoch / 1e3)


def str2bool(v: bool | str) -> bool:
    """Return what a word like "yes" or "0" means.

    Raises:
        SMDebugValueError: If it is none of these words.
    """
    if isinstance(v, bool):
        return v
    word = v.strip().lower()
    if word in {"y", "yes", "t", "true", "on", "1"}:
        return True
    if word in {"n", "no", "f", "false", "off", "0"}:
        return False
    msg = f"{v!r} is neither true nor false; write true or false"
    raise SMDebugValueError(msg)


def local_path_of(path: str | os.PathLike[str]) -> Path:
    """Return a path on this machine.

    Raises:
        SMDebugNotImplementedError: If it is a path on S3.
    """
    text = os.fspath(path).strip()
    if text.startswith("s3://"):
        msg = (
            f"tdbg reads directories, not {text}: copy it with "
            f"`aws s3 sync {text} DIRECTORY` and pass the directory"
        )
        raise SMDebugNotImplementedError(msg)
    return Path(text).expanduser()


def get_node_id() -> str:
    """Return the name of this process that stands in the names of its files."""
    return f"{os.getpid()}-{socket.gethostname()}"


def is_valid_tfprof_tracefilename(filename: str) -> bool:
    """Return whether a file is a trace of TensorFlow's profiler, by its path."""
    is_trace = filename.endswith(TENSORBOARDTIMELINE_SUFFIX)
    return is_trace and "tensorflow/detailed_profiling" in filename


def is_valid_tracefilename(filename: str) -> bool:
    """Return whether a file is one of smdebug's timelines, by its path."""
    is_named = filename.endswith(".json") and "pevents" in filename
    return is_named and len(filename.split("_")) >= _TIMELINE_FIELDS


def validate_system_profiler_file(filename: str) -> bool:
    """Return whether a file has metrics of the system, by its path."""
    return _SYSTEM_FILE.match(filename) is not None


def get_node_id_from_tracefilename(filename: str) -> str:
    """Return the node that wrote a timeline; "" if its path does not say."""
    if is_valid_tracefilename(filename):
        return Path(filename).name.split("_")[1]
    return read_tf_profiler_metadata_file(filename)[0]


def get_node_id_from_system_profiler_filename(filename: str) -> str | None:
    """Return the node that a file has metrics of; None if its path is another."""
    found = _SYSTEM_FILE.match(filename)
    return found[2] if found else None


def get_timestamp_from_tracefilename(filename: str) -> int:
    """Return when the last event of a timeline ended, in us; 0 if it does not say."""
    if is_valid_tracefilename(filename):
        first = Path(filename).name.split("_")[0]
        return int(first) if first.isdecimal() else 0
    return int(read_tf_profiler_metadata_file(filename)[2])


def get_utctimestamp_us_since_epoch_from_system_profiler_file(
    filename: str,
) -> int | None:
    """Return when a file of metrics begins, in us; None if its path is another."""
    found = _SYSTEM_FILE.match(filename)
    return int(found[1]) * CONVERT_TO_MICROSECS if found else None


def read_tf_profiler_metadata_file(file_path: str) -> tuple[str, str, str]:
    """Return node, start and end (us, as texts) of a trace of TensorFlow's profiler.

    They are in the name of a file beside the trace's folder ``plugins``; without it
    they are ``("", "0", "0")``.

    Raises:
        SMDebugNotImplementedError: If the path is on S3.
    """
    unknown = ("", "0", "0")
    if not is_valid_tfprof_tracefilename(file_path):
        return unknown
    path = local_path_of(file_path)
    if len(path.parents) < 4:
        return unknown
    found = sorted(path.parents[3].rglob("*.metadata"))
    parts = found[0].name.removesuffix(".metadata").split("_") if found else []
    is_whole = len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal()
    return (parts[0], parts[1], parts[2]) if is_whole else unknown


def python_profile_mode_to_str(mode: PythonProfileModes) -> str:
    """Return a mode as the names of folders spell it.

    Example:
        >>> python_profile_mode_to_str(PythonProfileModes.PRE_STEP_ZERO)
        'prestepzero'
    """
    return PythonProfileModes(mode).name.lower().replace("_", "")


def str_to_python_profile_mode(mode_str: str) -> PythonProfileModes:
    """Return the mode that the name of a folder spells.

    Raises:
        SMDebugValueError: If there is none.
    """
    for mode in PythonProfileModes:
        if python_profile_mode_to_str(mode) == mode_str:
            return mode
    msg = f"{mode_str!r} is no mode; give train, eval, predict or global"
    raise SMDebugValueError(msg)


def mode_keys_to_python_profile_mode(mode: Any) -> PythonProfileModes:
    """Return the mode of Python's profiling that a mode of training has."""
    return PythonProfileModes(mode.value)


def pandas() -> Any:
    """Return pandas.

    Raises:
        ConfigurationError: If it is not installed.
    """
    return library("pandas", "pandas", "a frame")


__getattr__ = refuse(__name__)
