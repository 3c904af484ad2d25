"""Report: leave it to whoever reads the findings."""

from __future__ import annotations

import os

from tdbg.findings import Finding, Severity

__all__ = ["Report"]


class Report:
    """Does nothing more: the engine returns and records every finding anyway.

    Args:
        run_directory: The run.
        severity: Unused, as every finding is reported.
    """

    name = "report"

    def __init__(
        self,
        run_directory: str | os.PathLike[str],
        *,
        severity: Severity = Severity.INFO,
    ) -> None:
        del run_directory, severity

    def __call__(self, finding: Finding) -> None:
        """Nothing is left to do."""
