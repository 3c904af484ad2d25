"""Losses of loops: callables that are given labels and predictions.

Python looks ``__call__`` up on the class.  To see what one loss is given, that object
is made an instance of a subclass of its class, of the same name, until the hook is
closed; other losses of the class are left alone.

Thread safety: the training's thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["LossPatches", "arguments_of", "wrapped"]

_BASE = "_tdbg_base"

Show = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Calls a loss with its arguments, looks at them, and returns what it returned."""


def wrapped(loss: Callable[..., Any], show: Show) -> Callable[..., Any]:
    """Return what stands in for a function that computes a loss."""

    @functools.wraps(loss)
    def shown(*args: Any, **kwargs: Any) -> Any:
        return show(loss, args, kwargs)

    return shown


def arguments_of(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any] | None:
    """The labels and the predictions in the arguments of a loss; None: not found.

    Example:
        >>> arguments_of(([0, 1],), {"y_pred": [0.5, 0.6]})
        ([0, 1], [0.5, 0.6])
    """
    labels = args[0] if args else kwargs.get("y_true")
    predictions = args[1] if len(args) > 1 else kwargs.get("y_pred")
    if labels is None or predictions is None:
        return None
    return labels, predictions


class LossPatches:
    """The loss objects that were made to show what they are given."""

    def __init__(self) -> None:
        self._changed: list[Any] = []

    def change(self, loss: Any, show: Show) -> None:
        """Let a loss call *show*.

        Raises:
            TypeError: If its class cannot be changed.
        """
        base: Any = type(loss)
        if hasattr(base, _BASE):
            self.restore_one(loss)  # Another hook had it.
            base = type(loss)
        call: Any = base.__call__

        @functools.wraps(call)
        def shown(self: Any, *args: Any, **kwargs: Any) -> Any:
            return show(functools.partial(call, self), args, kwargs)

        names = {
            "__call__": shown,
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__reduce__": _reduce_as_base,
            _BASE: base,
        }
        loss.__class__ = type(base)(base.__name__, (base,), names)
        self._changed.append(loss)

    def restore_one(self, loss: Any) -> None:
        """Make a loss again what it was."""
        base = getattr(type(loss), _BASE, None)
        if base is not None:
            loss.__class__ = base

    def undo(self) -> None:
        """Make all losses again what they were."""
        while self._changed:
            self.restore_one(self._changed.pop())


def _reduce_as_base(self: Any) -> tuple[Any, ...]:
    """Copies and pickles are of the class of the loss itself."""
    base = getattr(type(self), _BASE)
    return _make, (base, dict(vars(self)))


def _make(base: Any, state: dict[str, Any]) -> Any:
    made = base.__new__(base)
    vars(made).update(state)
    return made
