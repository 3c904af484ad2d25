"""The rows and facts of the loaders of a session.

Thread safety: any thread that iterates over a loader.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from tdbg.capture.session import Session
from tdbg.run.profile_tables import LOADER, Phase
from tdbg.run.schema import EventKind

__all__ = ["LoaderRows", "size_of"]

_FLUSH_NS = 1_000_000_000
_MAX_ROWS = 512
# A program that makes loaders without end is described so far.
_MAX_LOADERS = 1000
# Parts of a batch that are looked at.
_MAX_PARTS = 16

#: A row in the order of the columns of ``LOADER``.
Row = tuple[int, ...]


class LoaderRows:
    """Collects what the loaders of a session do, and keeps no session alive.

    Args:
        session: Writes it.
    """

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._written_ns = time.monotonic_ns()
        self._described: set[int] = set()

    @property
    def session(self) -> Session | None:
        """Return the session; None: it is gone."""
        return self._session()

    def waits(self) -> None:
        """The training begins to wait for a batch."""
        session = self._session()
        if session is not None:
            session.clock.enter(Phase.DATA_WAIT)

    def goes_on(self) -> None:
        """The training waits no longer."""
        session = self._session()
        if session is not None:
            session.clock.leave(Phase.DATA_WAIT)

    def add(self, row: Row) -> None:
        """Add the row of a batch; its first column is the time."""
        self._rows.append(row)
        if row[0] - self._written_ns > _FLUSH_NS or len(self._rows) >= _MAX_ROWS:
            self.write()

    def write(self) -> None:
        """Hand the rows to the session."""
        with self._lock:
            rows, self._rows = self._rows, []
            self._written_ns = time.monotonic_ns()
        session = self._session()
        if rows and session is not None:
            session.write_samples("loader", np.array(rows, LOADER))

    def describe(self, loader: int, facts: Mapping[str, Any]) -> None:
        """Write the facts of a loader, once."""
        if loader not in self._described and len(self._described) < _MAX_LOADERS:
            self._described.add(loader)
            self._event({"what": "loader", "loader": loader, **facts})

    def started(self, loader: int, epoch: int, began_ns: int, ended_ns: int) -> None:
        """Write how long it took to begin an epoch, workers included."""
        if loader < _MAX_LOADERS and epoch < _MAX_LOADERS:
            self._event(
                {
                    "what": "loader_start",
                    "loader": loader,
                    "epoch": epoch,
                    "start_ns": began_ns,
                    "duration_ns": ended_ns - began_ns,
                }
            )

    def _event(self, content: dict[str, Any]) -> None:
        session = self._session()
        # Not as an event of the training, which may be on another thread.
        with contextlib.suppress(Exception):
            if session is not None and session.is_live:
                session.write_event(EventKind.CHANGE, content)


def size_of(batch: Any) -> tuple[int, int]:
    """Return how many samples a batch has, and bytes; -1: unknown.

    By the arrays in it: the first one's first extent, and all their bytes.

    Example:
        >>> size_of((np.zeros((4, 3), np.float32), np.zeros(4, np.int64)))
        (4, 80)
    """
    samples, n_bytes = -1, -1
    for part in islice(_parts(batch), _MAX_PARTS):
        shape = getattr(part, "shape", None)
        if shape is None:
            continue
        if samples < 0 and len(shape):
            samples = int(shape[0])
        size = getattr(part, "nbytes", None)
        if isinstance(size, int):
            n_bytes = max(n_bytes, 0) + size
    return samples, n_bytes


def _parts(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return batch.values()
    return batch if isinstance(batch, list | tuple) else (batch,)
