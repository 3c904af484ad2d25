"""The runs that a question is about, opened when they are needed.

Thread safety: may be used from any thread.

Errors: a run that cannot be read is noted, and hides no other.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from itertools import takewhile
from pathlib import Path
from typing import TypeAlias

from tdbg import remote
from tdbg.errors import NotARun, TdbgError
from tdbg.remote import is_url
from tdbg.run.directory import find_runs
from tdbg.trial import Trial, create_trial

__all__ = ["FoundRuns", "Run", "Runs"]

#: A trial, or the path or URL of a run, of a folder of runs, or a pattern such as
#: ``runs/*``.
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
    """Return the runs at a path or URL, below it, or of a pattern.

    Raises:
        NotARun: If there is none.
    """
    text = os.fspath(given)
    found = _at_url(text) if is_url(text) else _at_path(text)
    if not found:
        msg = f"there is no run at {text}"
        raise NotARun(msg, file=text, kind="missing")
    return found


def _at_path(path: str) -> list[str]:
    places = [path]
    if glob.has_magic(path) and not Path(path).exists():
        places = sorted(glob.glob(path))  # noqa: PTH207 - of any folder
    return [str(run) for place in places for run in find_runs(place)]


def _at_url(url: str) -> list[str]:
    """Return the runs at or below what matches, folder by folder."""
    folders = url.split("/")
    first = next((i for i, each in enumerate(folders) if glob.has_magic(each)), None)
    found = remote.find_runs("/".join(folders[:first]))
    if first is None:
        return found
    patterns = [each for each in folders[first:] if each]
    return [run for run in found if _matches(run.split("/")[first:], patterns)]


def _matches(folders: Sequence[str], patterns: Sequence[str]) -> bool:
    return len(folders) >= len(patterns) and all(
        map(fnmatch.fnmatchcase, folders, patterns)
    )


def _names(paths: Iterable[str]) -> list[str]:
    """Return what the runs at these paths are called, each path once.

    That of a URL is all of it, beside runs of this machine.
    """
    distinct = list(dict.fromkeys(paths))
    local = [str(Path(path).resolve()) for path in distinct if not is_url(path)]
    short_local = iter(_below_common(local))
    urls = [path for path in distinct if is_url(path)]
    short_urls = iter(urls if local else _below_common(urls))
    return [next(short_urls if is_url(path) else short_local) for path in distinct]


def _below_common(paths: Sequence[str]) -> list[str]:
    """Return paths below the folder that all have in common."""
    folders = [path.split("/") for path in paths]
    levels = zip(*(each[:-1] for each in folders), strict=False)
    common = len(list(takewhile(lambda level: len({*level}) == 1, levels)))
    return ["/".join(each[common:]) for each in folders]
