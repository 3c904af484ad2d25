"""Asks a store until it answers: pauses with jitter, a circuit breaker, exact counts.

While a store refuses everything, it is asked once in a while and by one thread at a
time, however many wait for it.

Thread safety: all methods may be called from any thread.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tdbg.errors import StorageError
from tdbg.remote.stores import Store, open_store

__all__ = ["Attempts", "GivenUp"]

# After so many failures in a row, of whatever requests, the circuit is open.
FAILURES_TO_OPEN = 4
# Seconds between two requests while it is open: at least, and at most.
OPEN_PAUSE = (1.0, 3.0)
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
_LOOK_SECONDS = 0.05

_Result = TypeVar("_Result")


class GivenUp(Exception):
    """Nobody waits for the answer any more; the last error is in ``Attempts``."""


class Attempts:
    """Asks a store, again and again if need be.

    Args:
        url: Of the store.
        is_over: Whether to give up; asked while a request waits for its turn.

    Attributes:
        failures: How many requests failed.
        retries: How often one that failed was repeated.
        error: Why the last one failed; "" once one has succeeded.
        kind: Of that error, as ``StorageError.kind``.

    Raises:
        ConfigurationError: If the URL is bad, or a library is missing.
    """

    def __init__(self, url: str, is_over: Callable[[], bool]) -> None:
        self._url = url
        self._is_over = is_over
        self._lock = threading.Lock()
        self._store = open_store(url)
        self._failed_in_row = 0
        self._next = 0.0
        self._before = 0  # Requests to stores that are used no more.
        self.failures = self.retries = 0
        self.error, self.kind = "", ""

    @property
    def requests(self) -> int:
        """How many there were."""
        return self._before + self._store.n_requests

    @property
    def counts(self) -> dict[str, int]:
        """The three counts by name, as a manifest has them."""
        with self._lock:
            return {
                "requests": self.requests,
                "failures": self.failures,
                "retries": self.retries,
            }

    def once(
        self, request: Callable[[Store], _Result], *, answers: tuple[str, ...] = ()
    ) -> _Result:
        """What one request returns; it waits for its turn.

        Args:
            request: Asks the store, once or several times.
            answers: Kinds of errors that are answers, not failures.

        Raises:
            StorageError: If it fails, or with an answer.
            GivenUp: If its turn did not come.
        """
        self._wait_for_turn()
        with self._lock:
            store = self._store
        try:
            result = request(store)
        except StorageError as error:
            if error.kind not in answers:
                self._note_failure(error)
                raise
            self._note_success()
            raise
        self._note_success()
        return result

    def until_done(
        self, request: Callable[[Store], _Result], *, answers: tuple[str, ...] = ()
    ) -> _Result:
        """What the request returns when it succeeds at last.

        Args:
            request: Asks the store; may be called many times.
            answers: Kinds of errors that are answers, not failures.

        Raises:
            StorageError: With an answer.
            GivenUp: If it was over before.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                return self.once(request, answers=answers)
            except StorageError as error:
                if error.kind in answers:
                    raise
            self._sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            pause = min(2 * pause, LONGEST_PAUSE)
            with self._lock:
                self.retries += 1

    def _note_success(self) -> None:
        with self._lock:
            self._failed_in_row = 0
            self.error, self.kind = "", ""

    def _note_failure(self, error: StorageError) -> None:
        with self._lock:
            self.failures += 1
            self._failed_in_row += 1
            self.error, self.kind = str(error), error.kind or ""
            if error.kind == "denied":
                # A new one reads credentials again, which somebody may have renewed.
                self._before += self._store.n_requests
                self._store = open_store(self._url)

    def _wait_for_turn(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                if self._failed_in_row < FAILURES_TO_OPEN or now >= self._next:
                    self._next = now + random.uniform(*OPEN_PAUSE)  # noqa: S311
                    break
            self._sleep(_LOOK_SECONDS)
        if self._is_over():
            raise GivenUp

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._is_over():
                raise GivenUp
            time.sleep(min(left, _LOOK_SECONDS))
