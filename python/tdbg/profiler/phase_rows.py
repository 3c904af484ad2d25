"""``PhaseRows``: rows of a table about what a training waits for.

Thread safety: any thread.

Errors: none.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Any

import numpy as np

from tdbg.capture.session import Session
from tdbg.run.profile_tables import TABLES, Phase
from tdbg.run.schema import EventKind

__all__ = ["PhaseRows"]

_FLUSH_NS = 1_000_000_000
_MAX_ROWS = 512


class PhaseRows:
    """Collects the rows of a table for a session, which it does not keep alive.

    Args:
        session: Writes them.
        table: Name of the table.
        phase: The phase of a step while the training waits.
    """

    def __init__(self, session: Session, table: str, phase: Phase) -> None:
        self._session = weakref.ref(session)
        self._table = table
        self._phase = int(phase)
        self._lock = threading.Lock()
        self._rows: list[tuple[int, ...]] = []
        self._written_ns = time.monotonic_ns()

    @property
    def session(self) -> Session | None:
        """Return the session; None: it is gone."""
        return self._session()

    def enter(self) -> None:
        """Begin the phase: the training waits."""
        session = self._session()
        if session is not None:
            session.clock.enter(self._phase)

    def leave(self) -> None:
        """End the phase: the training goes on."""
        session = self._session()
        if session is not None:
            session.clock.leave(self._phase)

    def add(self, row: tuple[int, ...]) -> None:
        """Add a row, in the order of the table's columns; the first is the time."""
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
            session.write_samples(self._table, np.array(rows, TABLES[self._table]))

    def write_fact(self, content: dict[str, Any]) -> None:
        """Write an event: not one of the training, which may be on another thread."""
        session = self._session()
        with contextlib.suppress(Exception):
            if session is not None and session.is_live:
                session.write_event(EventKind.CHANGE, content)
