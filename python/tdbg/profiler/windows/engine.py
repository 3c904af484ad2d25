"""What takes a window: an engine for each source of operators or functions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

__all__ = ["Clock", "OperatorCall", "Unavailable", "WindowEngine", "WindowResult"]


class Unavailable(Exception):
    """An engine cannot take the window; the message says why, for users."""


class OperatorCall(NamedTuple):
    """One call of an operator.

    Attributes:
        name: The operator's.
        start_ns: On the monotonic clock.
        duration_ns: How long it took.
        thread: The kernel's number of the thread.
        depth: How many spans of the thread are around it.
    """

    name: str
    start_ns: int
    duration_ns: int
    thread: int
    depth: int


@dataclass(slots=True)
class WindowResult:
    """What an engine has found in a window.

    Attributes:
        events: Contents of events: operators or functions.
        spans: Calls of operators, where the window asks for them.
        unknown: What could not be measured, each with the reason.
    """

    events: list[dict[str, Any]] = field(default_factory=list)
    spans: list[OperatorCall] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)


class WindowEngine(Protocol):
    """Takes one window, from ``start`` to ``stop``, on the training's thread."""

    def start(self) -> None:
        """Begin.

        Raises:
            Unavailable: If it cannot take a window now.
        """

    def stop(self) -> Callable[[], WindowResult]:
        """End; return what works the results out, in whatever thread."""

    def abandon(self) -> None:
        """End, and forget the results: this is a forked child."""


class Clock:
    """Converts times since 1970 to the monotonic clock, by a pair of both."""

    def __init__(self) -> None:
        # Of several pairs the one whose clocks were read closest to each other.
        pairs = []
        for _ in range(5):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            pairs.append((after - before, (before + after) // 2 - wall))
        self.offset_ns = min(pairs)[1]
