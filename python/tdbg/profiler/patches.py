"""Attributes of libraries that are replaced for a while, and put back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

__all__ = ["LibraryPatches"]


class LibraryPatches:
    """Replaces attributes of classes and modules, and puts them back.

    An attribute that somebody else has replaced meanwhile stays: what tdbg put there
    must do nothing any more when nobody observes.

    Example:
        >>> class Library:
        ...     def call(self):
        ...         return 1
        >>> patches = LibraryPatches()
        >>> patches.put(Library, "call", lambda original: lambda self: 2)
        >>> Library().call()
        2
        >>> patches.undo()
        >>> Library().call()
        1
    """

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    @property
    def are_in_place(self) -> bool:
        """Whether anything is replaced."""
        return bool(self._done)

    def put(
        self, owner: Any, name: str, replace: Callable[[Callable[..., Any]], Any]
    ) -> None:
        """Replace a function, or a property, by what *replace* makes of it.

        Raises:
            AttributeError: If the owner itself has no such attribute.
        """
        if name not in vars(owner):
            msg = f"{owner!r} has no {name} of its own"
            raise AttributeError(msg)
        original = vars(owner)[name]
        replacement = replace(original)
        with contextlib.suppress(AttributeError, TypeError):
            update_wrapper(replacement, original)  # Not of a property, say.
        setattr(owner, name, replacement)
        self._done.append((owner, name, original, replacement))

    def undo(self) -> None:
        """Put everything back."""
        while self._done:
            owner, name, original, replacement = self._done.pop()
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)
