"""Which half of the corpus a case is in: thresholds are set on one, checked on both."""

from __future__ import annotations

import hashlib

from benchmarks.detection.corpus.case import TWIN

__all__ = ["HALVES", "half_of"]

HALVES = ("tuning", "held out")


def half_of(name: str) -> str:
    """By a hash of the name, so that nobody chooses; a twin goes with its case."""
    digest = hashlib.sha256(name.removesuffix(TWIN).encode()).digest()
    return HALVES[digest[0] & 1]
