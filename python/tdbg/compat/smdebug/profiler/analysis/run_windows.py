"""Windows of a run of tdbg as recordings of Python functions.

A window lies between two training steps, numbered among all steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.compat.smdebug.profiler.utils import StepPhase
from tdbg.run.directory import is_run
from tdbg.trial import create_trial

__all__ = ["WindowRecording", "functions_in", "pstats_of", "window_at", "windows_in"]

_US = 1000


class WindowRecording(NamedTuple):
    """A window in which functions were timed.

    Attributes:
        profiler: What timed them: cprofile or pyinstrument.
        node: The worker, as ``trial.workers()`` names it.
        points: Its beginning and end, as the names of smdebug's folders spell them.
        path: Stands for a file with the statistics; see ``window_at``.
    """

    profiler: str
    node: str
    points: str
    path: str


def windows_in(run: Path) -> Iterator[WindowRecording]:
    """Yield the windows with functions of each worker of a run."""
    trial = create_trial(run)
    profile, workers = trial.profile, trial.workers()
    found = profile.functions()
    for window in profile.windows():
        if window.state != "ended":
            continue
        points = "_".join(
            f"train-{step}-{phase.value}-{int(profile.wall_ns(ns)) // _US}"
            for step, phase, ns in (
                (window.first_step, StepPhase.STEP_START, window.start_ns),
                (window.last_step, StepPhase.STEP_END, window.end_ns),
            )
        )
        of_window = [
            row["profiler"]
            for row in found
            if (row["window"], row["worker"]) == (window.id, window.worker)
        ]
        for profiler in dict.fromkeys(of_window):
            path = f"{run}#{window.worker}#{window.id}"
            yield WindowRecording(profiler, workers[window.worker], points, path)


def window_at(path: str) -> tuple[Path, int, str] | None:
    """Return the run, the worker and the window of a path; None: it is a file's."""
    run, *rest = path.rsplit("#", 2)
    if len(rest) != 2 or not rest[0].isdecimal() or not is_run(Path(run)):
        return None
    return Path(run), int(rest[0]), rest[1]


def functions_in(window: tuple[Path, int, str], profiler: str) -> list[dict[str, Any]]:
    """Return the functions of a window, as the run has them."""
    run, worker, identity = window
    return [
        row
        for row in create_trial(run).profile.functions(identity)
        if row["worker"] == worker and row["profiler"] == profiler
    ]


def pstats_of(functions: list[dict[str, Any]]) -> dict[Any, Any]:
    """Return the functions of a window as ``pstats`` has them, without callers."""
    return {
        _key_of(str(row["name"])): (
            row.get("primitive_calls", row["calls"]),
            row["calls"],
            row["self_ns"] / 1e9,
            row["total_ns"] / 1e9,
            {},
        )
        for row in functions
    }


def _key_of(name: str) -> tuple[str, int, str]:
    """Return file, line and name; pstats has "~" and 0 for functions in C."""
    place, _, function = name.rpartition(" ")
    file, _, line = place.rpartition(":")
    if file and line.isdecimal():
        return file, int(line), function
    return "~", 0, name
