"""Actions ``stop`` and ``report``.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import os

from tdbg.remote import asked
from tdbg.run.findings import Finding
from tdbg.run.requests import request_stop

__all__ = ["ReportOnly", "Stop"]


class Stop:
    """Requests the training to stop at the first finding, through the run's directory.

    Args:
        run_directory: The run.

    Attributes:
        requested: The finding that caused the request, or None.
    """

    name = "stop"

    def __init__(self, run_directory: str | os.PathLike[str]) -> None:
        self.requested: Finding | None = None
        self._run_directory = run_directory

    def __call__(self, finding: Finding) -> None:
        """Write the request, unless the finding is over or there was a request.

        Raises:
            TdbgError: If the request cannot be written; the next finding tries again.
        """
        if self.requested or finding.is_over:
            return
        request_stop(
            asked(self._run_directory),
            reason=f"{finding.rule} at step {finding.step}: {finding.tensor}: "
            f"{finding.message}",
            rule=finding.rule,
            step=finding.step,
        )
        self.requested = finding


class ReportOnly:
    """Does nothing: the engine returns and records every finding anyway."""

    name = "report"

    def __init__(self, run_directory: str | os.PathLike[str]) -> None:
        del run_directory

    def __call__(self, finding: Finding) -> None:
        """Do nothing."""
