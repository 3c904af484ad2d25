"""Actions that take time are taken in a thread, so that the engine goes on judging.

Thread safety: the action runs in that thread only, one finding at a time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time

from tdbg.actions._base import Action, close_all, trouble_of
from tdbg.findings import Finding

__all__ = ["MAX_WAITING", "Background"]

# Findings that may wait; what comes beyond is dropped, and counted.
MAX_WAITING = 1000


class Background:
    """Takes an action in a thread of its own, begun with the first finding."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self._waiting: queue.Queue[Finding | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._troubles: list[str] = []
        self._n_dropped = 0

    @property
    def name(self) -> str:
        """That of the action."""
        return self._action.name

    def __call__(self, finding: Finding) -> None:
        """Have it done soon; never waits."""
        if self._thread is None:
            # A daemon: a server that does not answer must not hold up the exit.
            self._thread = threading.Thread(
                target=self._run, name=f"tdbg-action-{self.name}", daemon=True
            )
            self._thread.start()
        try:
            self._waiting.put_nowait(finding)
        except queue.Full:
            self._n_dropped += 1

    def close(self, seconds: float) -> list[str]:
        """Wait for what is waiting, but not for longer; what went wrong."""
        deadline = time.monotonic() + seconds
        troubles: list[str] = []
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=seconds)
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive():
                n = self._waiting.qsize()
                troubles.append(
                    f"action {self.name}: not done within {seconds:g} s, and given up; "
                    f"findings that waited for it: {n}"
                )
        if self._n_dropped:
            troubles.append(
                f"action {self.name}: {self._n_dropped} findings were dropped, for "
                f"{MAX_WAITING} were waiting"
            )
        left = max(0.0, deadline - time.monotonic())
        return [*self._troubles, *troubles, *close_all([self._action], left)]

    def _run(self) -> None:
        while (finding := self._waiting.get()) is not None:
            try:
                self._action(finding)
            except Exception as error:  # An action may be anybody's.
                trouble = trouble_of(self, error)
                if trouble not in self._troubles:
                    self._troubles.append(trouble)
