"""The classes of SageMaker's SDK that ask for a profile: ``sagemaker.debugger``.

They have its names and arguments.  ``ProfilerConfig.to_tdbg()`` is what tdbg's hooks
take, and ``to_json()`` what ``SMPROFILER_CONFIG_PATH`` may name.

Example:
    from tdbg.compat.smdebug.profiler.sagemaker import FrameworkProfile, ProfilerConfig

    profiler = ProfilerConfig(
        system_monitor_interval_millis=500,
        framework_profile_params=FrameworkProfile(start_step=2, num_steps=7),
    )
    hook = tdbg.pytorch.Hook("runs/digits", profiler=profiler.to_tdbg())
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

from tdbg.compat.smdebug.exceptions import SMDebugValueError, translated
from tdbg.compat.smdebug.profiler.utils import (
    BASE_FOLDER_DEFAULT,
    CLOSE_FILE_INTERVAL_DEFAULT,
    FILE_OPEN_FAIL_THRESHOLD_DEFAULT,
    MAX_FILE_SIZE_DEFAULT,
    cProfileTimer,
)
from tdbg.config.documents import Location
from tdbg.config.profiler import ProfilerConfig as Settings
from tdbg.config.smdebug_profiler import read_smdebug_profiler

__all__ = [
    "DataloaderProfilingConfig",
    "DetailedProfilingConfig",
    "FrameworkProfile",
    "HorovodProfilingConfig",
    "ProfilerConfig",
    "PythonProfiler",
    "PythonProfilingConfig",
    "SMDataParallelProfilingConfig",
]


class PythonProfiler(Enum):
    """The profilers of Python functions."""

    CPROFILE = "cprofile"
    PYINSTRUMENT = "pyinstrument"


class _Window:
    """A window by steps or by time.

    Args:
        start_step: The first step.
        num_steps: How many.
        start_unix_time: When it begins, in seconds since 1970.
        duration: How long it is, in seconds.
        profile_default_steps: Take the steps that SageMaker takes if you give none.

    Raises:
        SMDebugValueError: If steps and times are given at once.
    """

    #: The key in ``profilerconfig.json``, and the default steps.
    key: ClassVar[str] = ""
    default_steps: ClassVar[tuple[int, int]] = (0, 1)

    def __init__(
        self,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: float | None = None,
        duration: float | None = None,
        profile_default_steps: bool = False,
    ) -> None:
        by_step = start_step is not None or num_steps is not None
        by_time = start_unix_time is not None or duration is not None
        if by_step and by_time:
            msg = (
                f"{type(self).__name__}: give start_step and num_steps, or "
                "start_unix_time and duration, not both"
            )
            raise SMDebugValueError(msg)
        if profile_default_steps or not (by_step or by_time):
            start_step, num_steps = self.default_steps
        self.start_step, self.num_steps = start_step, num_steps
        self.start_unix_time, self.duration = start_unix_time, duration

    def to_json(self) -> dict[str, Any]:
        """Return the window as ``profilerconfig.json`` has it."""
        fields = {
            "StartStep": self.start_step,
            "NumSteps": self.num_steps,
            "StartTimeInSecSinceEpoch": self.start_unix_time,
            "DurationInSeconds": self.duration,
        }
        return {name: value for name, value in fields.items() if value is not None}


class DetailedProfilingConfig(_Window):
    """The window of operators and kernels; by default step 5."""

    key = "DetailedProfilingConfig"
    default_steps = (5, 1)


class DataloaderProfilingConfig(_Window):
    """The window of data loaders, which tdbg records at every step; by default step 7.

    Args:
        metrics_regex: Accepted, as SageMaker does.
        **window: As for ``DetailedProfilingConfig``.
    """

    key = "DataloaderProfilingConfig"
    default_steps = (7, 1)

    def __init__(self, *, metrics_regex: str = ".*", **window: Any) -> None:
        super().__init__(**window)
        self.metrics_regex = metrics_regex

    def to_json(self) -> dict[str, Any]:
        """Return the window as ``profilerconfig.json`` has it."""
        return {**super().to_json(), "MetricsRegex": self.metrics_regex}


class PythonProfilingConfig(_Window):
    """The window of Python functions; by default steps 9 to 11.

    Args:
        python_profiler: What times them.
        cprofile_timer: What cProfile measures.
        **window: As for ``DetailedProfilingConfig``.
    """

    key = "PythonProfilingConfig"
    default_steps = (9, 3)

    def __init__(
        self,
        *,
        python_profiler: PythonProfiler = PythonProfiler.CPROFILE,
        cprofile_timer: cProfileTimer = cProfileTimer.TOTAL_TIME,
        **window: Any,
    ) -> None:
        super().__init__(**window)
        self.python_profiler, self.cprofile_timer = python_profiler, cprofile_timer

    def to_json(self) -> dict[str, Any]:
        """Return the window as ``profilerconfig.json`` has it."""
        found = {**super().to_json(), "ProfilerName": self.python_profiler.value}
        if self.python_profiler is PythonProfiler.CPROFILE:
            found["cProfileTimer"] = self.cprofile_timer.value
        return found


class HorovodProfilingConfig(_Window):
    """The window of Horovod, which tdbg does not record; by default step 13."""

    key = "HorovodProfilingConfig"
    default_steps = (13, 1)


class SMDataParallelProfilingConfig(_Window):
    """The window of SageMaker's library for data parallel training; tdbg has none."""

    key = "SMDataparallelProfilingConfig"
    default_steps = (15, 1)


class FrameworkProfile:
    """The windows of a training.

    Args:
        local_path: Accepted: a profile is part of its run. So are the next three.
        file_max_size: Bytes.
        file_close_interval: Seconds.
        file_open_fail_threshold: Attempts.
        detailed_profiling_config: The window of operators.
        dataloader_profiling_config: The window of data loaders.
        python_profiling_config: The window of Python functions.
        horovod_profiling_config: Refused: tdbg does not record Horovod's timeline.
        smdataparallel_profiling_config: Refused, too.
        start_step: The first step of the windows of operators and functions; give it
            instead of windows. So are the next three.
        num_steps: How many steps.
        start_unix_time: When they begin, in seconds since 1970.
        duration: How long they are, in seconds.

    Raises:
        SMDebugValueError: If steps and times, or a window for all and single ones, are
            given at once.
    """

    def __init__(
        self,
        local_path: str = BASE_FOLDER_DEFAULT,
        file_max_size: int = MAX_FILE_SIZE_DEFAULT,
        file_close_interval: float = CLOSE_FILE_INTERVAL_DEFAULT,
        file_open_fail_threshold: int = FILE_OPEN_FAIL_THRESHOLD_DEFAULT,
        detailed_profiling_config: DetailedProfilingConfig | None = None,
        dataloader_profiling_config: DataloaderProfilingConfig | None = None,
        python_profiling_config: PythonProfilingConfig | None = None,
        horovod_profiling_config: HorovodProfilingConfig | None = None,
        smdataparallel_profiling_config: SMDataParallelProfilingConfig | None = None,
        start_step: int | None = None,
        num_steps: int | None = None,
        start_unix_time: float | None = None,
        duration: float | None = None,
    ) -> None:
        windows: tuple[_Window | None, ...] = (
            detailed_profiling_config,
            dataloader_profiling_config,
            python_profiling_config,
            horovod_profiling_config,
            smdataparallel_profiling_config,
        )
        given = [window for window in windows if window is not None]
        whole: dict[str, Any] = {
            "start_step": start_step,
            "num_steps": num_steps,
            "start_unix_time": start_unix_time,
            "duration": duration,
        }
        for_all = any(value is not None for value in whole.values())
        if for_all and given:
            msg = (
                f"FrameworkProfile: give one window for all, or {given[0].key} and "
                "others, not both"
            )
            raise SMDebugValueError(msg)
        if not given:
            given = [
                DetailedProfilingConfig(**whole),
                DataloaderProfilingConfig(**whole),
                PythonProfilingConfig(**whole),
            ]
        self.windows = tuple(given)
        self._files = {
            "LocalPath": local_path,
            "RotateMaxFileSizeInBytes": file_max_size,
            "RotateFileCloseIntervalInSeconds": file_close_interval,
            "FileOpenFailThreshold": file_open_fail_threshold,
        }

    def to_json(self) -> dict[str, Any]:
        """Return ``ProfilingParameters``."""
        return {**self._files, **{each.key: each.to_json() for each in self.windows}}


class ProfilerConfig:
    """The argument ``profiler_config`` of SageMaker's estimators.

    Args:
        s3_output_path: Accepted: a run is a directory.
        system_monitor_interval_millis: Milliseconds from one sample of the machine to
            the next, at least 50.
        framework_profile_params: The windows; None: there are none.
        disable_profiler: Record nothing.

    Raises:
        SMDebugValueError: If an argument can never work; the message names it.
    """

    def __init__(
        self,
        s3_output_path: str | None = None,
        system_monitor_interval_millis: float | None = 500,
        framework_profile_params: FrameworkProfile | None = None,
        disable_profiler: bool = False,
    ) -> None:
        self.s3_output_path = s3_output_path
        self.system_monitor_interval_millis = system_monitor_interval_millis
        self.framework_profile_params = framework_profile_params
        self.disable_profiler = disable_profiler
        self.to_tdbg()

    def to_json(self) -> Mapping[str, Any]:
        """Return what ``profilerconfig.json`` says."""
        profile = self.framework_profile_params
        return {
            "DisableProfiler": self.disable_profiler,
            "ProfilingIntervalInMilliseconds": self.system_monitor_interval_millis,
            "ProfilingParameters": {} if profile is None else profile.to_json(),
        }

    def to_tdbg(self) -> Settings:
        """Return the settings that tdbg's hooks take as ``profiler``."""
        with translated():
            return read_smdebug_profiler(self.to_json(), Location("ProfilerConfig"))
