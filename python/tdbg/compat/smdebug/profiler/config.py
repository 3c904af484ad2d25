"""The settings of smdebug's profiler: its file, and the classes that hold it.

``smdebug.profiler.profiler_config`` and ``profiler_config_parser``.
"""

from __future__ import annotations

import ast
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from tdbg.compat.smdebug.core.base import get_logger
from tdbg.compat.smdebug.left_out import refuse
from tdbg.compat.smdebug.profiler.utils import (
    BASE_FOLDER_DEFAULT,
    CLOSE_FILE_INTERVAL_DEFAULT,
    CONFIG_PATH_DEFAULT,
    CPROFILE_NAME,
    FILE_OPEN_FAIL_THRESHOLD_DEFAULT,
    MAX_FILE_SIZE_DEFAULT,
    PROFILING_NUM_STEPS_DEFAULT,
    PYINSTRUMENT_NAME,
    cProfileTimer,
    str2bool,
)

_PATH_VARIABLE = "SMPROFILER_CONFIG_PATH"
_ANY_STEP = "*"


class MetricsConfigsField(Enum):
    """The fields of one part of the file, in lower case."""

    START_STEP = "startstep"
    NUM_STEPS = "numsteps"
    START_TIME = "starttimeinsecsinceepoch"
    DURATION = "durationinseconds"
    DEFAULT_PROFILING = "defaultprofiling"
    METRICS_REGEX = "metricsregex"
    PROFILER_NAME = "profilername"
    CPROFILE_TIMER = "cprofiletimer"


class ProfilingParametersField(Enum):
    """The fields of the file, in lower case."""

    PROFILING_PARAMETERS = "profilingparameters"
    DISABLE_PROFILER = "disableprofiler"
    LOCAL_PATH = "localpath"
    FILE_MAX_SIZE = "rotatemaxfilesizeinbytes"
    FILE_CLOSE_INTERVAL = "rotatefilecloseintervalinseconds"
    FILE_OPEN_FAIL_THRESHOLD = "fileopenfailthreshold"
    DETAILED_PROFILING_CONFIG = "detailedprofilingconfig"
    DATALOADER_PROFILING_CONFIG = "dataloaderprofilingconfig"
    PYTHON_PROFILING_CONFIG = "pythonprofilingconfig"
    SMDATAPARALLEL_PROFILING_CONFIG = "smdataparallelprofilingconfig"


class MetricsCategory(Enum):
    """The parts of a profile that have a window of their own."""

    DETAILED_PROFILING = 1
    DATALOADER_PROFILING = 2
    PYTHON_PROFILING = 3
    SMDATAPARALLEL_PROFILING = 4


class RotationPolicy:
    """When smdebug began another file: bytes, and seconds.  tdbg's shards decide."""

    def __init__(self, file_max_size: int, file_close_interval: float) -> None:
        self.file_max_size = file_max_size
        self.file_close_interval = file_close_interval


class TraceFile:
    """How smdebug wrote files.  tdbg accepts it, and its shards decide."""

    def __init__(
        self,
        file_max_size: int,
        file_close_interval: float,
        file_open_fail_threshold: int,
    ) -> None:
        self.rotation_policy = RotationPolicy(file_max_size, file_close_interval)
        self.file_open_fail_threshold = file_open_fail_threshold


class ProfileRange:
    """A window, by steps or by time.

    A part that nobody asked for is disabled; one with both, or with a value that is
    none, has an ``error_message`` and is not enabled.

    Args:
        name: What it is a window of.
        profile_range: Fields as the file has them, by names in lower case.
    """

    def __init__(self, name: str, profile_range: Mapping[str, Any]) -> None:
        self.name = name
        self.error_message: str | None = None
        self.disabled = not profile_range
        self.end_step: int | None = None
        self.end_time: float | None = None
        self.start_step: int | None = None
        self.num_steps: int | None = None
        self.start_time_in_sec: float | None = None
        self.duration_in_sec: float | None = None
        take = profile_range.get
        try:
            self.start_step = _as(int, take(MetricsConfigsField.START_STEP.value))
            self.num_steps = _as(int, take(MetricsConfigsField.NUM_STEPS.value))
            self.start_time_in_sec = _as(
                float, take(MetricsConfigsField.START_TIME.value)
            )
            self.duration_in_sec = _as(float, take(MetricsConfigsField.DURATION.value))
        except ValueError as error:
            self._fail(error)
            return
        if self.has_step_range() and self.has_time_range():
            self.error_message = (
                f"{name} has steps and times; give one of both: it is disabled"
            )

    def _fail(self, why: object) -> None:
        self.error_message = f"{why} in {self.name}: it is disabled"
        self.reset_profile_range()

    def has_step_range(self) -> bool:
        """Return whether it says steps."""
        return bool(self.start_step or self.num_steps)

    def has_time_range(self) -> bool:
        """Return whether it says times."""
        return bool(self.start_time_in_sec or self.duration_in_sec)

    def reset_profile_range(self) -> None:
        """Forget the window."""
        self.start_step = self.num_steps = None
        self.start_time_in_sec = self.duration_in_sec = None

    def is_enabled(self) -> bool:
        """Return whether it was asked for, and can work."""
        return not self.disabled and self.error_message is None

    def can_start_profiling(
        self, current_step: Any, current_time: float | None = None
    ) -> bool:
        """Return whether a step lies in the window.

        What the window leaves open is set by the first call: it begins now, lasts one
        step, or until the next step.

        Args:
            current_step: The step; "*" is before the first and after the last.
            current_time: Seconds since the epoch; None: now.
        """
        if not self.is_enabled():
            return False
        now = time.time() if current_time is None else current_time
        if self.has_step_range():
            return current_step == _ANY_STEP or self._holds_step(current_step)
        return self.has_time_range() and self._holds_time(current_step, now)

    def _holds_step(self, step: int) -> bool:
        if self.start_step is None:
            self.start_step = step
        if self.num_steps is None:
            self.num_steps = PROFILING_NUM_STEPS_DEFAULT
        if self.end_step is None:
            self.end_step = self.start_step + self.num_steps
        return self.start_step <= step < self.end_step

    def _holds_time(self, step: Any, now: float) -> bool:
        if self.start_time_in_sec is None:
            self.start_time_in_sec = now
        if self.duration_in_sec:
            if self.end_time is None:
                self.end_time = self.start_time_in_sec + self.duration_in_sec
            return self.start_time_in_sec <= now < self.end_time
        if now < self.start_time_in_sec:
            return False
        if step == _ANY_STEP:
            return True
        if self.end_step is None:
            self.end_step = step + 1
        return bool(step < self.end_step)


def _as(kind: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else kind(value)


class DetailedProfilingConfig(ProfileRange):
    """The window of operators and kernels."""

    def __init__(self, detailed_profiling_config: Mapping[str, Any]) -> None:
        super().__init__("detailed profiling", detailed_profiling_config)


class DataloaderProfilingConfig(ProfileRange):
    """The window of data loaders, and an expression for what is recorded of them."""

    def __init__(self, dataloader_config: Mapping[str, Any]) -> None:
        super().__init__("dataloader profiling", dataloader_config)
        self.metrics_regex: re.Pattern[str] | None = None
        if self.error_message:
            return
        text = dataloader_config.get(MetricsConfigsField.METRICS_REGEX.value, ".*")
        try:
            self.metrics_regex = re.compile(str(text))
        except re.error as error:
            self._fail(error)

    def valid_metrics_name(self, metrics_name: str) -> bool:
        """Return whether the expression matches a name, whatever its case."""
        expression = self.metrics_regex
        return expression is not None and bool(expression.match(metrics_name.lower()))


class PythonProfilingConfig(ProfileRange):
    """The window of Python functions, and the profiler that records them."""

    def __init__(self, python_profiling_config: Mapping[str, Any]) -> None:
        super().__init__("python profiling", python_profiling_config)
        self.profiler_name: str | None = None
        self.cprofile_timer: cProfileTimer | None = None
        if self.error_message:
            return
        take = python_profiling_config.get
        name = take(MetricsConfigsField.PROFILER_NAME.value, CPROFILE_NAME)
        if name not in {CPROFILE_NAME, PYINSTRUMENT_NAME}:
            self._fail(f"profiler {name!r} is neither cprofile nor pyinstrument")
            return
        timer = take(MetricsConfigsField.CPROFILE_TIMER.value, "total_time")
        try:
            if name == CPROFILE_NAME:
                self.cprofile_timer = cProfileTimer(timer)
            self.profiler_name = name
        except ValueError as error:
            self._fail(error)


class SMDataParallelProfilingConfig(ProfileRange):
    """The window of SageMaker's library for data parallel training."""

    def __init__(self, smdataparallel_profiling_config: Mapping[str, Any]) -> None:
        super().__init__("smdataparallel profiling", smdataparallel_profiling_config)


class ProfilerConfig:
    """The settings of smdebug's profiler.

    Args:
        local_path: Where smdebug wrote the profile.
        file_max_size: Accepted; tdbg's shards decide.  So are the next two.
        file_close_interval: Seconds.
        file_open_fail_threshold: Attempts.
        detailed_profiling_config: Fields by names in lower case; so are the rest.
        dataloader_profiling_config: See ``DataloaderProfilingConfig``.
        python_profiling_config: See ``PythonProfilingConfig``.
        smdataparallel_profiling_config: A window.
    """

    def __init__(
        self,
        local_path: str,
        file_max_size: int,
        file_close_interval: float,
        file_open_fail_threshold: int,
        detailed_profiling_config: Mapping[str, Any],
        dataloader_profiling_config: Mapping[str, Any],
        python_profiling_config: Mapping[str, Any],
        smdataparallel_profiling_config: Mapping[str, Any],
    ) -> None:
        self.local_path = local_path
        self.trace_file = TraceFile(
            file_max_size, file_close_interval, file_open_fail_threshold
        )
        self.detailed_profiling_config = DetailedProfilingConfig(
            detailed_profiling_config
        )
        self.dataloader_profiling_config = DataloaderProfilingConfig(
            dataloader_profiling_config
        )
        self.python_profiling_config = PythonProfilingConfig(python_profiling_config)
        self.smdataparallel_profiling_config = SMDataParallelProfilingConfig(
            smdataparallel_profiling_config
        )

    def part(self, category: MetricsCategory) -> ProfileRange:
        """Return the window of a part."""
        windows: dict[MetricsCategory, ProfileRange] = {
            MetricsCategory.DETAILED_PROFILING: self.detailed_profiling_config,
            MetricsCategory.DATALOADER_PROFILING: self.dataloader_profiling_config,
            MetricsCategory.PYTHON_PROFILING: self.python_profiling_config,
            MetricsCategory.SMDATAPARALLEL_PROFILING: (
                self.smdataparallel_profiling_config
            ),
        }
        return windows[category]


class ProfilerConfigParser:
    """Reads the file that ``SMPROFILER_CONFIG_PATH`` names, as smdebug did.

    The text of a part is read as JSON or as a literal of Python; nothing in it runs.
    A file that is missing, is no JSON or disables the profiler leaves it off, with a
    line in the log; values that are none are replaced by the defaults.

    Args:
        framework: Accepted, as smdebug does.
    """

    def __init__(self, framework: Any = None) -> None:
        self.framework = framework
        self.config: ProfilerConfig | None = None
        self.profiling_enabled = False
        self.last_json_config: Any = None
        self._logged: set[str] = set()
        self.load_config()

    def load_config(self) -> None:
        """Read the file again; a file with the same content changes nothing."""
        path = Path(os.environ.get(_PATH_VARIABLE, CONFIG_PATH_DEFAULT))
        try:
            content = json.loads(path.read_text("utf-8").lower())
        except FileNotFoundError:
            self._switch_off(f"there is no {path}: the profiler is off")
            return
        except (OSError, ValueError, RecursionError) as error:
            self._switch_off(f"{path} cannot be read ({error}): the profiler is off")
            return
        if content == self.last_json_config:
            return
        self.last_json_config = content
        self._take(path, content if isinstance(content, dict) else {})

    def _take(self, path: Path, content: dict[str, Any]) -> None:
        asked = content.get(ProfilingParametersField.PROFILING_PARAMETERS.value)
        disabled = content.get(ProfilingParametersField.DISABLE_PROFILER.value, False)
        if str2bool(str(disabled)) or not isinstance(asked, dict) or not asked:
            self._switch_off(f"{path} switches the profiler off")
            return
        self.profiling_enabled = True
        self.config = self._config_of(asked)
        for category in MetricsCategory:
            error = self.config.part(category).error_message
            if error is not None:
                self._log(error)

    def _config_of(self, asked: dict[str, Any]) -> ProfilerConfig:
        field = ProfilingParametersField
        try:
            size = int(
                float(asked.get(field.FILE_MAX_SIZE.value, MAX_FILE_SIZE_DEFAULT))
            )
            interval = float(
                asked.get(field.FILE_CLOSE_INTERVAL.value, CLOSE_FILE_INTERVAL_DEFAULT)
            )
            attempts = int(
                asked.get(
                    field.FILE_OPEN_FAIL_THRESHOLD.value,
                    FILE_OPEN_FAIL_THRESHOLD_DEFAULT,
                )
            )
        except (ValueError, TypeError, OverflowError) as error:
            self._log(f"{error}: the profiler uses the defaults")
            size, interval = MAX_FILE_SIZE_DEFAULT, CLOSE_FILE_INTERVAL_DEFAULT
            attempts = FILE_OPEN_FAIL_THRESHOLD_DEFAULT
        return ProfilerConfig(
            str(asked.get(field.LOCAL_PATH.value, BASE_FOLDER_DEFAULT)),
            size,
            interval,
            attempts,
            self._part(asked, field.DETAILED_PROFILING_CONFIG),
            self._part(asked, field.DATALOADER_PROFILING_CONFIG),
            self._part(asked, field.PYTHON_PROFILING_CONFIG),
            self._part(asked, field.SMDATAPARALLEL_PROFILING_CONFIG),
        )

    def _part(
        self, asked: dict[str, Any], field: ProfilingParametersField
    ) -> dict[str, Any]:
        given = asked.get(field.value, {})
        found = _literal(given) if isinstance(given, str) else given
        if isinstance(found, dict):
            return found
        self._log(f"{field.value} is {given!r:.80}, which is no mapping: it is off")
        return {}

    def _switch_off(self, why: str) -> None:
        self.config = None
        self.profiling_enabled = False
        self._log(why)

    def _log(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            get_logger().info("%s", text)

    def should_save_metrics(
        self,
        metrics_category: MetricsCategory,
        current_step: Any,
        metrics_name: str | None = None,
        current_time: float | None = None,
    ) -> bool:
        """Return whether a step lies in the window of a part.

        Args:
            metrics_category: The part.
            current_step: The step, or "*".
            metrics_name: Of what a data loader does, for its expression.
            current_time: Seconds since the epoch; None: now.
        """
        if self.config is None or not isinstance(metrics_category, MetricsCategory):
            return False
        part = self.config.part(metrics_category)
        is_named = isinstance(part, DataloaderProfilingConfig) and metrics_name
        if is_named and not part.valid_metrics_name(str(metrics_name)):  # type: ignore[attr-defined]
            return False
        return part.can_start_profiling(current_step, current_time)

    def is_python_profiling_enabled(self) -> bool:
        """Return whether Python functions are profiled in some window."""
        return (
            self.config is not None and self.config.python_profiling_config.is_enabled()
        )


def _literal(text: str) -> Any:
    """Read a text as JSON, or as a literal of Python; None if it is neither."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


_the_parser: list[ProfilerConfigParser] = []


def get_profiler_config_parser(framework: Any = None) -> ProfilerConfigParser:
    """Return the parser of this process."""
    if not _the_parser:
        _the_parser.append(ProfilerConfigParser(framework))
    return _the_parser[0]


def reset_profiler_config_parser() -> None:
    """Forget the parser of this process."""
    _the_parser.clear()


__getattr__ = refuse(__name__)
