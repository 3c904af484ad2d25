"""The documentation speaks to its readers: a guard, and not the aim, of its English."""

from __future__ import annotations

from pathlib import Path

#: Of 1,000 words of a page; pages of fewer words than these are not counted.
MOST_OF, LEAST_YOU, FEWEST_WORDS = 22, 6, 150
PAGES = sorted(
    path.relative_to(root).as_posix()
    for root in [Path(__file__).resolve().parents[3]]
    for path in [root / "README.md", *(root / "docs").rglob("*.md")]
)
