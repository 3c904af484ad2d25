"""Stop: ask the training to stop, once, through the run's control directory.

Thread safety: none; owned by the engine.
"""

from __future__ import annotations

import os

from tdbg.control import request_stop
from tdbg.findings import Finding

__all__ = ["Stop"]


class Stop:
    """Asks the training to stop at the first finding that it is given.

    Args:
        run_directory: The run.

    Attributes:
        requested: The finding that led to the request, or None.
    """

    name = "stop"

    def __init__(self, run_directory: str | os.PathLike[str]) -> None:
        self.requested: Finding | None = None
        self._run_directory = run_directory

    def __call__(self, finding: Finding) -> None:
        """Ask, unless the finding is over, or it was asked before.

        Raises:
            TdbgError: If the request could not be written; the next finding tries
                again.
        """
        if self.requested or finding.is_over:
            return
        request_stop(
            self._run_directory,
            reason=f"{finding.rule} at step {finding.step}: {finding.tensor}: "
            f"{finding.message}",
            rule=finding.rule,
            step=finding.step,
        )
        self.requested = finding
