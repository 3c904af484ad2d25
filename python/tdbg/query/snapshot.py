"""Runs as they are when a query begins: what is written meanwhile is not seen.

Thread safety: may be used from any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

from tdbg.query.found import FoundRuns
from tdbg.trial import Trial

__all__ = ["AT_ONCE", "Snapshot"]

#: Runs that are read at once.
AT_ONCE = max(2, min(8, os.cpu_count() or 1))


class Snapshot:
    """The runs of one query; a run is as it was when the query first asked for it.

    Attributes:
        workers: Threads that read runs, as long as the query lasts.
        error: What ended the reading of a run; DuckDB has only its text.
    """

    def __init__(self, runs: FoundRuns) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._held = ExitStack()
        self.workers = _started_workers()
        self._open: dict[str, Trial] = {}
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A scan that nobody went through to its end still has workers.
        self.workers.shutdown(cancel_futures=True)
        self._held.close()

    @property
    def names(self) -> list[str]:
        """Names of the runs."""
        return self._runs.names

    @property
    def runs(self) -> FoundRuns:
        """The runs that it is of."""
        return self._runs

    def open(self, names: Sequence[str]) -> dict[str, Trial]:
        """Return the trials of runs; without those that cannot be read."""
        with self._lock:
            new = self._runs.open(
                [each for each in names if each not in self._open], self.workers
            )
            for name, trial in new.items():
                self._open[name] = self._held.enter_context(trial.no_refresh())
            return {each: self._open[each] for each in names if each in self._open}


def _started_workers() -> ThreadPoolExecutor:
    """Return threads that have begun.

    Begun later, by a thread of DuckDB, they would make Python list that one for ever.
    """
    workers, met = ThreadPoolExecutor(AT_ONCE), threading.Barrier(AT_ONCE)
    for started in [workers.submit(met.wait) for _ in range(AT_ONCE)]:
        started.result()
    return workers
