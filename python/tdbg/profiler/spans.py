"""``Spans``: named intervals of a program, for the timeline of a run.

Thread safety: any thread.

Errors: ConfigurationError for a name or a function that can never work, at once.
Nothing else raises.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import time
from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import numpy as np

from tdbg.capture.session import Session
from tdbg.config.collections import Role
from tdbg.config.messages import short
from tdbg.errors import ConfigurationError
from tdbg.modes import TRAIN

__all__ = ["NamedSpan", "Spans"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Characters of a name, and names of a run, at most.
LONGEST_NAME: Final = 300
MOST_NAMES: Final = 10_000
# Spans wait until there are so many, or until rows of steps are written.
_MOST_WAITING = 512

# Step, name, start and duration in ns, the kernel's number of the thread, depth.
_Row = tuple[int, str, int, int, int, int]


class Spans:
    """The spans of one training.

    Args:
        session: Where they go.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._waiting: list[_Row] = []
        self._names: dict[str, int] = {}
        self.depths = threading.local()
        if session.is_live and session.writes_as is not None:
            session.listen(rows=self.write)

    def span(self, name: str) -> NamedSpan:
        """Return a span that is yet to begin.

        Raises:
            ConfigurationError: If *name* is no text, is empty, or is too long.
        """
        given: object = name
        if not isinstance(given, str) or not 0 < len(given) <= LONGEST_NAME:
            msg = (
                f"a span needs a name of 1 to {LONGEST_NAME} characters, "
                f"not {short(given)}"
            )
            raise ConfigurationError(msg)
        return NamedSpan(self, name)

    def add(self, name: str, start_ns: int, depth: int) -> None:
        """Note a span that is over now, in this thread."""
        session = self._session
        if not session.is_live or session.writes_as is None:
            return
        duration_ns = time.monotonic_ns() - start_ns
        step, _ = session.latest_step(TRAIN)
        thread = threading.get_native_id()
        row = (step, name, start_ns, duration_ns, thread, depth)
        self._waiting.append(row)
        if len(self._waiting) >= _MOST_WAITING:
            with contextlib.suppress(Exception):
                self.write()

    def write(self) -> None:
        """Write what waits, a record for each step."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            dtype = import_module("tdbg._core").SPAN_DTYPE
            by_step: dict[int, list[tuple[Any, ...]]] = {}
            for step, name, start_ns, duration_ns, thread, depth in waiting:
                number = self._number(name)
                if number is not None:
                    row = (step, number, 0, start_ns, duration_ns, thread, depth, 0)
                    by_step.setdefault(step, []).append(row)
            writer: Any = self._session.writer
            for step, rows in by_step.items():
                writer.spans(step, np.array(rows, dtype))

    def _number(self, name: str) -> int | None:
        """Return the number of a name in the run; None: there are too many names."""
        number = self._names.get(name)
        if number is None and len(self._names) < MOST_NAMES:
            writer: Any = self._session.writer
            number = self._names[name] = writer.define(name, int(Role.SPAN))
        return number


class NamedSpan:
    """A named interval: a context manager, and a decorator of functions.

    It may be entered again, inside itself and in several threads; each time is one
    interval.
    """

    __slots__ = ("_name", "_open", "_spans")

    def __init__(self, spans: Spans, name: str) -> None:
        self._spans = spans
        self._name = name
        # Start and depth of those that are open, by thread.
        self._open: dict[int, list[tuple[int, int]]] = {}

    def __enter__(self) -> Self:
        depths = self._spans.depths
        depth = getattr(depths, "depth", 0)
        depths.depth = depth + 1
        opened = self._open.setdefault(threading.get_ident(), [])
        opened.append((time.monotonic_ns(), depth))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened = self._open.get(threading.get_ident())
        if opened:
            start_ns, depth = opened.pop()
            self._spans.depths.depth = depth
            self._spans.add(self._name, start_ns, depth)

    def __call__(self, function: _Function) -> _Function:
        """Return a function whose calls are intervals of this name.

        Raises:
            ConfigurationError: If *function* cannot be called, or is a generator: its
                code runs in pieces, between which others run.
        """
        given: object = function
        if not callable(given):
            msg = f"a span decorates a function, not {short(given)}"
            raise ConfigurationError(msg)
        if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
            name = getattr(given, "__qualname__", short(given))
            msg = (
                f"a span cannot decorate the generator {name}: use "
                f"'with hook.span({self._name!r})' around the code that it runs"
            )
            raise ConfigurationError(msg)
        if inspect.iscoroutinefunction(given):

            @functools.wraps(given)
            async def run_later(*args: Any, **kwargs: Any) -> Any:
                # Others run meanwhile, which may begin and end spans of their own.
                start_ns = time.monotonic_ns()
                depth = getattr(self._spans.depths, "depth", 0)
                try:
                    return await given(*args, **kwargs)
                finally:
                    self._spans.add(self._name, start_ns, depth)

            return run_later  # type: ignore[return-value]

        @functools.wraps(given)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return given(*args, **kwargs)

        return run  # type: ignore[return-value]
