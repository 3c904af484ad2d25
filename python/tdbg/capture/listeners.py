"""Callbacks for what happens to a session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

__all__ = ["Callback", "Listeners", "call_all"]

Callback = Callable[[], None]


class Listeners:
    """Callbacks, in the order in which they were added; read by ``Session``.

    Attributes:
        border: Called where a step has ended, or begins, as far as steps are observed.
        change: Called when collections have changed.
        close: Called before the run ends.
        closed: Called when the run has ended and everything is written.
        rest: Called when an error, or a fork, ends capture without ``close``.
        rows: Called when rows of steps are due to be written, and at the end.
        eval_training: Called when the model turns out to be trained in evaluation
            mode, or no longer to be.
        counting: Called when steps begin to pass unseen.
        counting_failed: Called when that has ended before one step was over.
    """

    __slots__ = (
        "border",
        "change",
        "close",
        "closed",
        "counting",
        "counting_failed",
        "eval_training",
        "rest",
        "rows",
    )

    def __init__(self) -> None:
        self.border: list[Callback] = []
        self.change: list[Callback] = []
        self.close: list[Callback] = []
        self.closed: list[Callback] = []
        self.rest: list[Callback] = []
        self.rows: list[Callback] = []
        self.eval_training: list[Callback] = []
        self.counting: list[Callback] = []
        self.counting_failed: list[Callback] = []

    def add(
        self,
        *,
        border: Callback | None = None,
        change: Callback | None = None,
        close: Callback | None = None,
        closed: Callback | None = None,
        rest: Callback | None = None,
        rows: Callback | None = None,
        eval_training: Callback | None = None,
        counting: Callback | None = None,
        counting_failed: Callback | None = None,
    ) -> None:
        """Add callbacks, for what the attributes of these names say."""
        given = {
            "border": border,
            "change": change,
            "close": close,
            "closed": closed,
            "rest": rest,
            "rows": rows,
            "eval_training": eval_training,
            "counting": counting,
            "counting_failed": counting_failed,
        }
        for name, callback in given.items():
            if callback is not None:
                getattr(self, name).append(callback)


def call_all(callbacks: Iterable[Callback]) -> None:
    """Call them all; what one of them raises keeps no other from being called.

    One that takes itself off the list keeps no other from it, either.
    """
    for callback in tuple(callbacks):
        with contextlib.suppress(Exception):
            callback()
