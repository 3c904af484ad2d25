"""Stop: ask the training to stop, once, through the run's control directory.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import os

from tdbg.control import request_stop
from tdbg.findings import Finding, Severity

__all__ = ["Stop"]


class Stop:
    """Asks the training to stop at the first finding that is bad enough.

    Args:
        run_directory: The run.
        severity: From which severity on.

    Attributes:
        requested: The finding that led to the request, or None.
    """

    name = "stop"

    def __init__(
        self,
        run_directory: str | os.PathLike[str],
        *,
        severity: Severity = Severity.ERROR,
    ) -> None:
        self.requested: Finding | None = None
        self._run_directory = run_directory
        self._severity = severity

    def __call__(self, finding: Finding) -> None:
        """Ask, unless the finding is over or mild, or it was asked before.

        Raises:
            TdbgError: If the request could not be written; the next finding that is
                bad enough tries again.
        """
        if self.requested or finding.is_over or finding.severity < self._severity:
            return
        request_stop(
            self._run_directory,
            reason=f"{finding.rule} at step {finding.step}: {finding.tensor}: "
            f"{finding.message}",
            rule=finding.rule,
            step=finding.step,
        )
        self.requested = finding
