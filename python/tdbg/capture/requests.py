"""What was asked of the training: heard, and handed out when it takes effect.

A single process obeys at once.  Where there are several ranks, all of them obey
at the beginning of one and the same step, which they agree on over a board.

Thread safety: none; the training's thread.
"""

from __future__ import annotations

from typing import Protocol

from tdbg.capture.agreement import Agreement
from tdbg.control import Request

__all__ = ["Listener", "Requests"]


class Listener(Protocol):
    """Hears requests: ``tdbg.control.RequestListener``."""

    def poll(self) -> list[Request]:
        """Requests that have come since the last call; it never raises."""


class Requests:
    """The requests of this process, each handed out once.

    Args:
        listener: Hears them.
        agreement: With the other ranks; None: there is nobody to agree with.

    Attributes:
        agreement: The same.
        next_ns: Before that time (``time.perf_counter_ns``) nothing comes, so that
            nobody need ask; 0: ask at every forward.
    """

    def __init__(
        self, listener: Listener, *, agreement: Agreement | None = None
    ) -> None:
        self._listener = listener
        self.agreement = agreement
        self.next_ns = 0

    def poll(self, step: int, *, is_training: bool = True) -> list[Request]:
        """Those that take effect now, oldest first; it never raises.

        Args:
            step: Number of the training step that is under way, or else of the next
                one: steps of training only, which all ranks count alike.
            is_training: Whether a forward of that step begins.
        """
        if self.agreement is None:
            requests = self._listener.poll()
            self.next_ns = getattr(self._listener, "next_ns", 0)
            return requests
        return self.agreement.poll(step, is_training, self._listener.poll)
