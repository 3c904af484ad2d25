"""``ExportReport``: what an export wrote."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ExportReport"]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        run: The directory of the run.
        out: Where the files are.
        files: Path of the file of each mode that has steps.
        steps: How many steps were looked at.
        last_step: The last of them, a global step; -1 for none.
        scalars: How many numbers were written.
        histograms: How many histograms were written.
        unreadable: How many could not be read: ``tdbg fsck`` says why.
        complete: Whether the training has ended and all of it was exported.
    """

    run: str
    out: str
    files: dict[str, str]
    steps: int
    last_step: int
    scalars: int
    histograms: int
    unreadable: int
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        return asdict(self)
