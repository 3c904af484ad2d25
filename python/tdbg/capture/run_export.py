"""``RunExport``: what a hook does with its run when the run has ended."""

from __future__ import annotations

from typing import Protocol

__all__ = ["RunExport"]


class RunExport(Protocol):
    """Exports a run when the run has ended; called once, and never raises."""

    @property
    def n_failed(self) -> int:
        """How many exports failed."""

    def __call__(self) -> None:
        """Export the run."""
