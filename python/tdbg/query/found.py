"""The runs that a question is about, opened when they are needed.

Thread safety: may be used from any thread.

Errors: a run that cannot be read is noted, and hides no other.
"""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeAlias

from tdbg.errors import NotARun, TdbgError
from tdbg.run.directory import find_runs
from tdbg.trial import Trial, create_trial

__all__ = ["FoundRuns", "Run", "Runs"]

#: A trial, or the path of a run, of a folder of runs, or a pattern such as ``runs/*``.
Run: TypeAlias = str | os.PathLike[str] | Trial
Runs: TypeAlias = Run | Sequence[Run]


class FoundRuns:
    """Runs by name; what they are called is their path below what all have in common.

    Args:
        runs: Where they are.

    Raises:
        NotARun: If there is none.
        TdbgError: If a path can never be one.
    """

    def __init__(self, runs: Runs) -> None:
        given = [runs] if isinstance(runs, str | os.PathLike | Trial) else list(runs)
        trials = {each.path: each for each in given if isinstance(each, Trial)}
        paths = [
            path
            for each in given
            for path in ([each.path] if isinstance(each, Trial) else _paths(each))
        ]
        self._paths = dict(zip(_names(paths), dict.fromkeys(paths), strict=True))
        self._lock = threading.Lock()
        self._trials = dict(trials)
        self.unreadable: dict[str, TdbgError] = {}

    @property
    def names(self) -> list[str]:
        """The runs, in the order in which they were given."""
        return list(self._paths)

    def path(self, name: str) -> str:
        """The path of a run."""
        return self._paths[name]

    def open(self, names: Iterable[str], openers: Executor) -> dict[str, Trial]:
        """Return the trials of some runs, as they are now.

        Those that cannot be read are left out, and in ``unreadable`` from then on.
        """
        asked = list(names)
        found = openers.map(self._open, asked)
        return {
            name: trial
            for name, trial in zip(asked, found, strict=True)
            if trial is not None
        }

    def _open(self, name: str) -> Trial | None:
        path = self._paths[name]
        try:
            with self._lock:
                trial = self._trials.get(path)
            if trial is None:
                trial = create_trial(path)
                with self._lock:
                    trial = self._trials.setdefault(path, trial)
            trial.refresh()
        except TdbgError as error:
            with self._lock:
                self.unreadable[name] = error
            return None
        return trial


def _paths(given: str | os.PathLike[str]) -> list[str]:
    """Return the runs at a path, below it, or of a pattern.

    Raises:
        NotARun: If there is none.
    """
    text = os.fspath(given)
    if "://" in text:
        return [text]
    places = [text]
    if glob.has_magic(text) and not Path(text).exists():
        places = sorted(glob.glob(text))  # noqa: PTH207 - of any folder
    found = [str(run) for place in places for run in find_runs(place)]
    if not found:
        msg = f"there is no run at {text}"
        raise NotARun(msg, file=text, kind="missing")
    return found


def _names(paths: Iterable[str]) -> list[str]:
    """Return what the runs at these paths are called, each path once."""
    places = [Path(path).resolve() for path in dict.fromkeys(paths)]
    common = os.path.commonpath([place.parent for place in places]) if places else ""
    return [os.path.relpath(place, common) for place in places]
