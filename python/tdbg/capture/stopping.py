"""Whether the training is to stop, and how often it was told so."""

from __future__ import annotations

from tdbg.control import Request, StopRequest, stop_request, stopping_is_off

__all__ = ["Stopping"]


class Stopping:
    """Keeps the first request to stop; a stop stays asked for.

    Args:
        raises: Whether a stop is to be raised, or only flagged.

    Attributes:
        reason: Who asked and why, once the request was seen.
        request: The same, from when it was heard.
    """

    def __init__(self, raises: bool) -> None:
        self.reason: str | None = None
        self._raises = raises
        self.request: StopRequest | None = None
        self._has_raised = False

    def hear(self, request: Request) -> None:
        """Somebody asks."""
        if self.request is None:
            self.request = stop_request(request)

    def is_due(self, *, is_training: bool) -> bool:
        """Whether to raise now; never while ``TDBG_NO_STOP`` is set."""
        if self.request is None or stopping_is_off():
            return False
        self.reason = self.request.reason
        # Once raised, a last evaluation may go on; training may not.
        if not self._raises or (self._has_raised and not is_training):
            return False
        self._has_raised = True
        return True
