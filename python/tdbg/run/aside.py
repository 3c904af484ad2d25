"""Calls what may never return in a thread of its own, and waits a bounded time.

A file system that hangs (a server of NFS that is gone) keeps whoever asks it, for as
long as it likes.  A training must not be kept: its thread asks here.

Thread safety: one caller at a time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

__all__ = ["Aside", "Unanswered", "call_aside"]

_Result = TypeVar("_Result")


class Unanswered(Exception):
    """The function has not returned in time; it goes on."""


class _Answer(Generic[_Result]):
    """The result or error of a function that runs elsewhere."""

    def __init__(self, function: Callable[[], _Result]) -> None:
        self._function: Callable[[], _Result] | None = function
        self._result: _Result | None = None
        self._error: BaseException | None = None
        self.is_there = threading.Event()

    def find(self) -> None:
        # What it refers to may refer to whoever waits for the answer.
        function, self._function = self._function, None
        try:
            self._result = None if function is None else function()
        except BaseException as error:
            self._error = error
        del function
        self.is_there.set()

    def take(self) -> _Result:
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # Its traceback holds this frame, and so whoever called.
        return self._result  # type: ignore[return-value]


class Aside:
    """A thread that functions are called in, one after the other.

    The thread begins with the first call, and ends with this object or ``close``.

    Args:
        name: Name of the thread.

    Example:
        >>> aside = Aside("tdbg-example")
        >>> aside.call(lambda: 1 + 1, patience=10.0)
        2
        >>> aside.close()
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: SimpleQueue[_Answer[Any] | None] | None = None
        self._pending: _Answer[Any] | None = None

    def call(self, function: Callable[[], _Result], patience: float) -> _Result:
        """Return what *function* returns, or raise what it raises.

        Where an earlier function has not returned yet this one is not called: what
        the earlier one gives is the answer, and is not waited for.

        Args:
            function: Called without arguments.
            patience: How long to wait, in seconds.

        Raises:
            Unanswered: If there is no answer yet.
        """
        answer = self._pending
        if answer is None:
            answer = self._pending = _Answer(function)
            self._order(answer)
            answer.is_there.wait(patience)
        if not answer.is_there.is_set():
            raise Unanswered
        self._pending = None
        found: _Result = answer.take()
        return found

    def close(self) -> None:
        """End the thread, as soon as its function returns; further calls begin anew."""
        if self._orders is not None:
            self._orders.put(None)
            self._orders = self._pending = None

    def _order(self, answer: _Answer[Any]) -> None:
        if self._orders is None:
            orders: SimpleQueue[_Answer[Any] | None] = SimpleQueue()
            # A daemon: a function that never returns must not keep the process.
            thread = threading.Thread(
                target=_serve, args=(orders,), name=self._name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # The process ends, or may have no more threads.
                answer.find()
                return
            self._orders = orders
            weakref.finalize(self, orders.put, None).atexit = False
        self._orders.put(answer)


def _serve(orders: SimpleQueue[_Answer[Any] | None]) -> None:
    while (answer := orders.get()) is not None:
        answer.find()
        del answer  # Nothing of it is kept while the next one is waited for.


def call_aside(function: Callable[[], _Result], patience: float) -> _Result:
    """Call a function once, in a thread of its own.

    Args:
        function: Called without arguments.
        patience: How long to wait, in seconds.

    Raises:
        Unanswered: If it has not returned in time.
    """
    aside = Aside("tdbg-aside")
    try:
        return aside.call(function, patience)
    finally:
        aside.close()
