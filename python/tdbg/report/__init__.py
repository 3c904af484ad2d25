"""Reports: a run, or two, as one HTML file: docs/report.md.

Imports no framework.

Example:
    trial = tdbg.create_trial("runs/digits")
    tdbg.report.write(trial, "digits.html")
"""

from __future__ import annotations

from tdbg.report.document import (
    Written,
    comparison,
    render,
    tree_sections,
    write,
    write_comparison,
)

__all__ = [
    "Written",
    "comparison",
    "render",
    "tree_sections",
    "write",
    "write_comparison",
]
