"""What is said of a file that cannot be read, or not as what smdebug writes."""

from __future__ import annotations

__all__ = ["Damage"]


class Damage(ValueError):
    """A file, or a part of it, cannot be read, or is not what smdebug writes.

    The text says why.

    It never leaves the importer: what it is about is counted and named as lost.
    """
