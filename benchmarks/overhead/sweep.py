"""What reading memory costs at least, and what that says about a capture."""

from __future__ import annotations

import numpy as np

__all__ = ["BYTES", "predicted", "sweep"]

BYTES = 128 * 2**20  # Larger than any cache.
_WORDS = np.ones(BYTES // 8, np.int64)


def sweep() -> object:
    """Read BYTES: one addition for 8 bytes, about what a thread can take in."""
    return _WORDS.sum()


def predicted(n_bytes: int, sweep_seconds: float, step_seconds: float) -> float:
    """The target for every statistic of *n_bytes* a step, as a ratio.

    A quarter more than reading them once from memory, and half a percent.
    """
    reading = n_bytes / BYTES * sweep_seconds
    return 1 + 1.25 * reading / step_seconds + 0.005
