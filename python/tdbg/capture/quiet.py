"""Says when nothing is wanted of modules, so that their hooks can go meanwhile.

A hook costs every call of its module a detour, also at steps at which nothing is
captured.

Thread safety: any thread; the last one to say something is right.

Errors: what a callback raises.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Quiet"]


class Quiet:
    """Whether no input or output of a module is wanted, and who is told.

    Example:
        >>> quiet = Quiet()
        >>> quiet.on_change.append(print)
        >>> quiet.tell(True)
        True
        >>> quiet.tell(True)

    Attributes:
        is_quiet: Whether none is wanted.
        on_change: Called with the new state.
    """

    __slots__ = ("is_quiet", "on_change")

    def __init__(self) -> None:
        self.is_quiet = False
        self.on_change: list[Callable[[bool], None]] = []

    def tell(self, is_quiet: bool) -> None:
        """Such is the state from now on."""
        if self.is_quiet is not is_quiet:
            self.is_quiet = is_quiet
            for callback in self.on_change:
                callback(is_quiet)
