"""What is said of a file that does not hold what smdebug writes."""

from __future__ import annotations

__all__ = ["Damage"]


class Damage(ValueError):
    """A file, or a part of it, is not what smdebug writes; the text says why.

    It never leaves the importer: what it is about is counted and named as lost.
    """
