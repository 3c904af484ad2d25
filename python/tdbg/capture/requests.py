"""What was asked of the training: heard, and handed out when it takes effect.

A single process obeys at once.  Where there are several ranks, all of them obey
at the beginning of one and the same step, which they agree on over a board.

Thread safety: none; the training's thread.
"""

from __future__ import annotations

from typing import Protocol

from tdbg.control import Request

__all__ = ["Board", "Listener", "Requests"]


class Board(Protocol):
    """A key-value store that all ranks share.

    Both methods raise nothing but OSError and RuntimeError, and block for no longer
    than one exchange with the store takes.
    """

    def post(self, key: str, value: bytes) -> None:
        """Put the value there; whoever looks from now on sees it."""

    def look(self, key: str) -> bytes | None:
        """The value, or None where nobody has posted one; never waits for it."""


class Listener(Protocol):
    """Hears requests: ``tdbg.control.RequestListener``."""

    def poll(self) -> list[Request]:
        """Requests that have come since the last call; it never raises."""


class Requests:
    """The requests of this process, each handed out once.

    Args:
        listener: Hears them.
        board: Shared with the other ranks; None where there are none.
    """

    def __init__(self, listener: Listener, *, board: Board | None = None) -> None:
        self._listener = listener
        self.board = board

    def poll(self, step: int) -> list[Request]:
        """Those that take effect now, oldest first; it never raises.

        Args:
            step: Number of the training step that is under way, or else of the next
                one: steps of training only, which all ranks count alike.
        """
        del step  # There is nobody to agree with.
        return self._listener.poll()
