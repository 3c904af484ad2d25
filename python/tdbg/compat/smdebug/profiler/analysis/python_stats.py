"""Statistics of Python functions that smdebug recorded with cProfile or pyinstrument.

``smdebug.profiler.analysis.python_profile_analysis``, ``python_stats_reader``,
``utils.python_profile_analysis_utils`` and ``smdebug.profiler.python_profile_utils``.
"""

from __future__ import annotations

import json
import os
import pstats
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from tdbg.compat.smdebug.core.base import get_logger
from tdbg.compat.smdebug.exceptions import SMDebugTypeError
from tdbg.compat.smdebug.left_out import refuse
from tdbg.compat.smdebug.profiler.analysis.run_windows import (
    functions_in,
    pstats_of,
    window_at,
    windows_in,
)
from tdbg.compat.smdebug.profiler.damage import ProfilerFileError
from tdbg.compat.smdebug.profiler.profile_dump import function_stats
from tdbg.compat.smdebug.profiler.utils import (
    CONVERT_TO_MICROSECS,
    CPROFILE_NAME,
    CPROFILE_STATS_FILENAME,
    PYINSTRUMENT_HTML_FILENAME,
    PYINSTRUMENT_JSON_FILENAME,
    PYINSTRUMENT_NAME,
    PythonProfileModes,
    PythonProfilerName,
    StepPhase,
    cProfileTimer,
    local_path_of,
    mode_keys_to_python_profile_mode,
    pandas,
    python_profile_mode_to_str,
    str_to_python_profile_mode,
)
from tdbg.errors import NotARun
from tdbg.run.directory import is_run

__all__ = [
    "LocalPythonStatsReader",
    "Metrics",
    "PyinstrumentAnalysis",
    "PyinstrumentStepStats",
    "PythonProfileAnalysis",
    "PythonProfileModes",
    "PythonProfilerName",
    "PythonStatsReader",
    "StepPhase",
    "StepPythonProfileStats",
    "cProfileAnalysis",
    "cProfileFunctionStats",
    "cProfileStats",
    "cProfileTimer",
    "mode_keys_to_python_profile_mode",
    "python_profile_mode_to_str",
    "str_to_python_profile_mode",
]

_ANY = "any"
_PROFILERS = {
    CPROFILE_STATS_FILENAME: CPROFILE_NAME,
    PYINSTRUMENT_JSON_FILENAME: PYINSTRUMENT_NAME,
    PYINSTRUMENT_HTML_FILENAME: PYINSTRUMENT_NAME,
}


class Metrics(Enum):
    """A column of statistics that functions can be sorted by."""

    TOTAL_TIME = "tottime"
    CUMULATIVE_TIME = "cumtime"
    PRIMITIVE_CALLS = "pcalls"
    TOTAL_CALLS = "ncalls"


class StepPythonProfileStats:
    """One recording: between which points of which steps, and its file.

    Attributes:
        start_step: -1 before step 0.
        end_step: Infinity after the last.
        stats_path: The file with the statistics.
    """

    def __init__(
        self,
        framework: str,
        profiler_name: str,
        node_id: str,
        stats_dir: str,
        stats_path: str,
    ) -> None:
        self.profiler_name = profiler_name
        self.framework = framework
        self.node_id = node_id
        start, _, end = stats_dir.partition("_")
        begun, ended = _point(start), _point(end)
        (
            self.start_mode,
            step,
            self.start_phase,
            self.start_time_since_epoch_in_micros,
        ) = begun
        self.start_step = -1 if step is None else step
        self.end_mode, step, self.end_phase, self.end_time_since_epoch_in_micros = ended
        self.end_step = float("inf") if step is None else step
        self.stats_path = stats_path

    def has_start_and_end_mode(
        self, start_mode: PythonProfileModes, end_mode: PythonProfileModes
    ) -> bool:
        """Return whether it lies between these modes."""
        return self.start_mode == start_mode and self.end_mode == end_mode

    def in_time_interval(
        self,
        start_time_since_epoch_in_micros: float,
        end_time_since_epoch_in_micros: float,
    ) -> bool:
        """Return whether it overlaps an interval."""
        return (
            self.start_time_since_epoch_in_micros <= end_time_since_epoch_in_micros
            and self.end_time_since_epoch_in_micros >= start_time_since_epoch_in_micros
        )

    def in_step_interval(
        self,
        start_step: int,
        end_step: int,
        start_phase: StepPhase,
        end_phase: StepPhase,
    ) -> bool:
        """Return whether it lies from one phase of a step to one of another."""
        if start_step > self.start_step or end_step < self.end_step:
            return False
        late = (StepPhase.STEP_END, StepPhase.FORWARD_PASS_END)
        is_before = start_step == self.start_step and start_phase in late
        is_after = end_step == self.end_step and end_phase is StepPhase.STEP_START
        return not (is_before and self.start_phase is not start_phase) and not (
            is_after and self.end_phase is not end_phase
        )

    def has_pre_step_zero_profile_stats(self) -> bool:
        """Return whether it lies before the first step."""
        return self.start_phase is StepPhase.START

    def has_post_hook_close_profile_stats(self) -> bool:
        """Return whether it lies after the last step."""
        return self.end_phase is StepPhase.END

    def has_node_id(self, node_id: str) -> bool:
        """Return whether a node recorded it."""
        return self.node_id == node_id

    def __repr__(self) -> str:
        return repr(self.__dict__)


def _point(text: str) -> tuple[PythonProfileModes, int | None, StepPhase, float]:
    """Read ``mode-step-phase-microseconds``; a step of "*" is None.

    Raises:
        ValueError: If it is something else.
    """
    mode, step, phase, microseconds = text.split("-")
    return (
        str_to_python_profile_mode(mode),
        None if step == "*" else int(step),
        StepPhase(phase),
        float(microseconds),
    )


def _older(folder: Path, path: str) -> StepPythonProfileStats:
    """Read the name of a folder of smdebug before 1.0: ``start_end_node_step``.

    Raises:
        ValueError: If it is something else.
    """
    start, end, node, step = folder.name.split("_")
    is_first = step == "-1"
    begun = (
        f"prestepzero-*-start-{start}"
        if is_first
        else f"train-{step}-stepstart-{start}"
    )
    ended = f"train-{max(int(step), 0)}-{'stepstart' if is_first else 'stepend'}-{end}"
    framework, profiler = folder.parent.parent.name, CPROFILE_NAME
    return StepPythonProfileStats(framework, profiler, node, f"{begun}_{ended}", path)


class PythonStatsReader:
    """Finds the recordings in a folder.

    Args:
        profile_dir: ``framework/FRAMEWORK/cprofile`` or ``.../pyinstrument`` of a
            profile of smdebug; or a run of tdbg, whose windows are the recordings.

    Raises:
        NotARun: If there is no such directory.
        SMDebugNotImplementedError: If it is on S3.
    """

    def __init__(self, profile_dir: str | os.PathLike[str]) -> None:
        self.profile_dir = str(profile_dir)
        self._path = local_path_of(profile_dir)
        if not self._path.is_dir():
            msg = (
                f"no such directory: {self._path}; give framework/FRAMEWORK/cprofile "
                "of a profile, or a run"
            )
            raise NotARun(msg, file=str(self._path))

    def load_python_profile_stats(self) -> list[StepPythonProfileStats]:
        """Return the recordings by time; folders with other names are logged."""
        found = list(self._recordings())
        return sorted(
            found,
            key=lambda each: (each.start_time_since_epoch_in_micros, each.node_id),
        )

    def _recordings(self) -> Iterator[StepPythonProfileStats]:
        if is_run(self._path):
            for window in windows_in(self._path):
                yield StepPythonProfileStats("tdbg", *window)
            return
        for path in sorted(self._path.rglob("python_stats*")):
            profiler = _PROFILERS.get(path.name)
            if profiler is None or not path.is_file():
                continue
            folder, name = path.parent, str(path)
            try:
                if folder.parent == self._path:
                    yield _older(folder, name)
                else:
                    framework, node = self._path.parent.name, folder.parent.name
                    yield StepPythonProfileStats(
                        framework, profiler, node, folder.name, name
                    )
            except ValueError as error:
                get_logger().warning("%s is no recording of smdebug: %s", folder, error)


class LocalPythonStatsReader(PythonStatsReader):
    """Finds the recordings in a folder on this machine."""


class cProfileFunctionStats:  # noqa: N801 - smdebug's name
    """The statistics of one function.

    Attributes:
        total_time: Seconds in the function itself.
        cumulative_time: Seconds in it and in what it called.
    """

    def __init__(self, key: Any, value: Any) -> None:
        self.function_name = _spelled(key)
        self.prim_calls, self.total_calls, self.total_time, self.cumulative_time = (
            value[:4]
        )
        self.callers = [_spelled(each) for each in value[4]]

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics by smdebug's headings."""
        return {
            "function name": self.function_name,
            "# of primitive calls": self.prim_calls,
            "# of total calls": self.total_calls,
            "total time": self.total_time,
            "cumulative time": self.cumulative_time,
        }

    def __repr__(self) -> str:
        return repr(self.as_dict())


def _spelled(key: tuple[str, int, str]) -> str:
    spell: Callable[[Any], str] = pstats.func_std_string  # type: ignore[attr-defined]
    return spell(key)


class cProfileStats:  # noqa: N801 - smdebug's name
    """The statistics of all functions of some recordings.

    Attributes:
        ps: A ``pstats.Stats``.
        function_stats_list: One ``cProfileFunctionStats`` for each function.
    """

    def __init__(self, ps: pstats.Stats) -> None:
        self.ps = ps
        stats: dict[Any, Any] = ps.stats  # type: ignore[attr-defined]
        self.function_stats_list = [
            cProfileFunctionStats(key, value) for key, value in stats.items()
        ]

    def print_top_n_functions(self, by: Any, n: Any = 10) -> None:
        """Print the functions with the most of a metric.

        Raises:
            SMDebugTypeError: If *by* is no ``Metrics`` or *n* no integer.
        """
        if not isinstance(by, Metrics) or not isinstance(n, int):
            msg = f"by={by!r} and n={n!r}; give a Metrics and an integer"
            raise SMDebugTypeError(msg)
        self.ps.sort_stats(by.value).print_stats(n)

    def get_function_stats(self) -> Any:
        """Return the functions as a frame: a row each, columns as smdebug's headings.

        Raises:
            ConfigurationError: If pandas is not installed.
        """
        return pandas().DataFrame([each.as_dict() for each in self.function_stats_list])


class PyinstrumentStepStats:
    """One recording of pyinstrument: its page, and its calls as a tree."""

    def __init__(self, html_file_path: str | None, json_stats: Any) -> None:
        self.html_file_path = html_file_path
        self.json_stats = json_stats


class PythonProfileAnalysis:
    """Answers questions about the recordings in a folder.

    Args:
        local_profile_dir: As for ``PythonStatsReader``.
        s3_path: Not available: copy the folder first.

    Raises:
        NotARun: If there is no such directory.
        SMDebugNotImplementedError: If *s3_path* is given.
    """

    name = ""

    def __init__(
        self,
        local_profile_dir: str | os.PathLike[str] = "/tmp/python_stats",  # noqa: S108
        s3_path: str | None = None,
    ) -> None:
        if s3_path:
            local_path_of(s3_path)
        self.python_stats_reader = LocalPythonStatsReader(local_profile_dir)
        self.python_profile_stats: list[StepPythonProfileStats] = []
        self._refresh_python_profile_stats(True)

    def _refresh_python_profile_stats(self, refresh_stats: bool) -> None:
        if refresh_stats:
            found = self.python_stats_reader.load_python_profile_stats()
            self.python_profile_stats = [
                each for each in found if self.name in {"", each.profiler_name}
            ]

    def _fetch(
        self,
        node_id: str,
        refresh_stats: bool,
        requested: Callable[[StepPythonProfileStats], bool],
    ) -> Any:
        self._refresh_python_profile_stats(refresh_stats)
        every = self.python_profile_stats
        node = every[0].node_id if node_id == _ANY and every else node_id
        found = [each for each in every if each.has_node_id(node) and requested(each)]
        if not found:
            _say("No stats were found for the requested interval!")
            return None
        return self._aggregate_stats(found)

    def _aggregate_stats(self, stats: Sequence[StepPythonProfileStats]) -> Any:
        return list(stats)

    def fetch_profile_stats_by_step(
        self,
        start_step: int,
        end_step: int | None = None,
        mode: PythonProfileModes = PythonProfileModes.TRAIN,
        start_phase: StepPhase = StepPhase.STEP_START,
        end_phase: StepPhase = StepPhase.STEP_END,
        node_id: str = _ANY,
        refresh_stats: bool = True,
    ) -> Any:
        """Return what was recorded from one step to another; None: nothing."""
        last = start_step if end_step is None else end_step
        return self._fetch(
            node_id,
            refresh_stats,
            lambda each: (
                each.in_step_interval(start_step, last, start_phase, end_phase)
                and each.has_start_and_end_mode(mode, mode)
            ),
        )

    def fetch_profile_stats_by_time(
        self,
        start_time_since_epoch_in_secs: float,
        end_time_since_epoch_in_secs: float,
        node_id: str = _ANY,
        refresh_stats: bool = True,
    ) -> Any:
        """Return what was recorded in an interval; None: nothing."""
        first = start_time_since_epoch_in_secs * CONVERT_TO_MICROSECS
        last = end_time_since_epoch_in_secs * CONVERT_TO_MICROSECS
        return self._fetch(
            node_id, refresh_stats, lambda each: each.in_time_interval(first, last)
        )

    def fetch_profile_stats_between_modes(
        self,
        start_mode: PythonProfileModes,
        end_mode: PythonProfileModes,
        node_id: str = _ANY,
        refresh_stats: bool = True,
    ) -> Any:
        """Return what was recorded between two modes; None: nothing."""
        return self._fetch(
            node_id,
            refresh_stats,
            lambda each: each.has_start_and_end_mode(start_mode, end_mode),
        )

    def fetch_pre_step_zero_profile_stats(
        self, node_id: str = _ANY, refresh_stats: bool = True
    ) -> Any:
        """Return what was recorded before step 0; None: nothing."""
        return self._fetch(
            node_id,
            refresh_stats,
            StepPythonProfileStats.has_pre_step_zero_profile_stats,
        )

    def fetch_post_hook_close_profile_stats(
        self, node_id: str = _ANY, refresh_stats: bool = True
    ) -> Any:
        """Return what was recorded after the hook was closed; None: nothing."""
        return self._fetch(
            node_id,
            refresh_stats,
            StepPythonProfileStats.has_post_hook_close_profile_stats,
        )

    def list_profile_stats(self, refresh_stats: bool = True) -> Any:
        """Return the recordings as a frame, a row each.

        Raises:
            ConfigurationError: If pandas is not installed.
        """
        self._refresh_python_profile_stats(refresh_stats)
        frame = pandas().DataFrame([vars(each) for each in self.python_profile_stats])
        if frame.empty:
            _say("No stats were found!")
            return frame
        for column in ("start_mode", "end_mode"):
            frame[column] = frame[column].map(python_profile_mode_to_str)
        return frame

    def list_available_node_ids(self, refresh_stats: bool = True) -> list[str]:
        """Return the nodes that have recordings."""
        self._refresh_python_profile_stats(refresh_stats)
        return sorted({each.node_id for each in self.python_profile_stats})


class cProfileAnalysis(PythonProfileAnalysis):  # noqa: N801 - smdebug's name
    """Answers questions about recordings of cProfile, with ``cProfileStats``."""

    name = CPROFILE_NAME

    def _aggregate_stats(
        self, stats: Sequence[StepPythonProfileStats]
    ) -> cProfileStats | None:
        total = pstats.Stats()
        failures: list[ProfilerFileError] = []
        for each in stats:
            try:
                loaded: Any = _Loaded(_stats_at(each.stats_path))
                total.add(loaded)
            except ProfilerFileError as error:
                failures.append(error)
                get_logger().warning("%s", error)
        if len(failures) == len(stats):
            raise failures[0]
        return cProfileStats(total)

    def fetch_profile_stats_by_training_phase(
        self, node_id: str = _ANY, refresh_stats: bool = True
    ) -> dict[tuple[PythonProfileModes, PythonProfileModes], cProfileStats]:
        """Return what was recorded, by the modes that it lies between."""
        self._refresh_python_profile_stats(refresh_stats)
        pairs = {(e.start_mode, e.end_mode) for e in self.python_profile_stats}
        found = {
            pair: self.fetch_profile_stats_between_modes(
                *pair, node_id=node_id, refresh_stats=False
            )
            for pair in sorted(pairs)
        }
        return {pair: stats for pair, stats in found.items() if stats is not None}

    def fetch_profile_stats_by_job_phase(
        self, node_id: str = _ANY, refresh_stats: bool = True
    ) -> dict[str, cProfileStats]:
        """Return what was recorded: initialization, training_loop, finalization."""
        phases = self.fetch_profile_stats_by_training_phase(node_id, refresh_stats)
        found: dict[str, cProfileStats] = {}
        loop = pstats.Stats()
        for (start, end), stats in phases.items():
            if start is PythonProfileModes.PRE_STEP_ZERO:
                found["initialization"] = stats
            elif end is PythonProfileModes.POST_HOOK_CLOSE:
                found["finalization"] = stats
            else:
                loop.add(stats.ps)
        return found | {"training_loop": cProfileStats(loop)}


def _stats_at(path: str) -> dict[Any, Any]:
    window = window_at(path)
    if window is not None:
        return pstats_of(functions_in(window, CPROFILE_NAME))
    return function_stats(Path(path))


class _Loaded:
    """Statistics in the form that ``pstats.Stats.add`` takes."""

    def __init__(self, stats: dict[Any, Any]) -> None:
        self.stats = stats

    def create_stats(self) -> None:
        """Do nothing: they are there."""


class PyinstrumentAnalysis(PythonProfileAnalysis):
    """Answers questions about recordings of pyinstrument.

    A window of a run has no page and no tree of calls: its ``json_stats`` are
    ``{"functions": [...]}``, with a dictionary for each function.
    """

    name = PYINSTRUMENT_NAME

    def _aggregate_stats(
        self, stats: Sequence[StepPythonProfileStats]
    ) -> list[PyinstrumentStepStats]:
        windows: list[PyinstrumentStepStats] = []
        found: dict[Path, dict[str, str]] = {}
        for each in stats:
            window = window_at(each.stats_path)
            if window is not None:
                functions = functions_in(window, PYINSTRUMENT_NAME)
                windows.append(PyinstrumentStepStats(None, {"functions": functions}))
                continue
            path = Path(each.stats_path)
            found.setdefault(path.parent, {})[path.name] = each.stats_path
        return windows + [_tree_of(files) for files in found.values()]


def _tree_of(files: dict[str, str]) -> PyinstrumentStepStats:
    """Read one recording.

    Raises:
        ProfilerFileError: If its file is missing, or is no JSON.
    """
    page = files.get(PYINSTRUMENT_HTML_FILENAME)
    path = files.get(PYINSTRUMENT_JSON_FILENAME)
    if path is None:
        msg = f"there is no {PYINSTRUMENT_JSON_FILENAME} beside {page}"
        raise ProfilerFileError(msg, file=page)
    try:
        return PyinstrumentStepStats(page, json.loads(Path(path).read_text("utf-8")))
    except (ValueError, RecursionError) as error:
        msg = f"nothing in {path} can be read: {error}"
        raise ProfilerFileError(msg, file=path, kind="damage") from error
    except OSError as error:
        raise ProfilerFileError.of(error, "read", path) from error


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


__getattr__ = refuse(__name__)
