"""Who a session asks whether the training is to stop."""

from __future__ import annotations

from typing import Protocol

__all__ = ["StopSource"]


class _Request(Protocol):
    @property
    def reason(self) -> str: ...


class StopSource(Protocol):
    """Says whether somebody asked the training to stop."""

    def poll(self) -> _Request | None:
        """The request, at every call from when it came; it never raises."""
