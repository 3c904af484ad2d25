"""Report: leave it to whoever reads the findings."""

from __future__ import annotations

import os

from tdbg.findings import Finding

__all__ = ["Report"]


class Report:
    """Does nothing more: the engine returns and records every finding anyway."""

    name = "report"

    def __init__(self, run_directory: str | os.PathLike[str]) -> None:
        del run_directory

    def __call__(self, finding: Finding) -> None:
        """Nothing is left to do."""
