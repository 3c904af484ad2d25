"""Which runs a command line means: directories, and patterns like ``'runs/*'``.

Thread safety: none.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tdbg.run_directory import RUN_FILE

__all__ = ["Places", "is_many"]


def is_many(arguments: Sequence[str]) -> bool:
    """Whether they may mean more than one run."""
    return len(arguments) > 1 or _is_pattern(arguments[0])


class Places:
    """Runs, each of which is told once.

    Args:
        arguments: Directories, and patterns: the directories they match that are runs.
        wait: So many seconds a directory that is not there is waited for.

    Attributes:
        patterns: Which of the arguments are patterns.
    """

    def __init__(self, arguments: Sequence[str], wait: float = 0.0) -> None:
        self.patterns = [each for each in arguments if _is_pattern(each)]
        self._missing = [each for each in arguments if not _is_pattern(each)]
        self._deadline = time.monotonic() + wait
        self._known: set[str] = set()

    @property
    def n_missing(self) -> int:
        """How many directories are still waited for."""
        return len(self._missing)

    def look(self) -> list[str]:
        """Runs that have not been told yet."""
        found: list[str] = []
        for run in self._named():
            key = os.path.abspath(run)  # noqa: PTH100 - keep symbolic links
            if key not in self._known:
                self._known.add(key)
                found.append(run)
        return found

    def _named(self) -> Iterator[str]:
        late = time.monotonic() >= self._deadline
        there = [each for each in self._missing if late or _is_run(each)]
        self._missing = [each for each in self._missing if each not in there]
        yield from there
        for pattern in self.patterns:
            for found in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207
                if _is_run(found):
                    yield found.rstrip("/")


def _is_run(path: str) -> bool:
    try:
        return (Path(path) / RUN_FILE).exists()
    except OSError:
        return True  # It may be one: that it cannot be read is to be told.


def _is_pattern(argument: str) -> bool:
    return glob.has_magic(argument) and not Path(argument).exists()
