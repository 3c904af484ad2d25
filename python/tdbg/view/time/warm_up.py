"""The beginning of a training, which is not like the rest of it.

The first steps import, compile, fill caches, start workers and measure how much capture
may cost.  What is said of "a step" is said of the others.

Thread safety: pure functions over values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["after_warm_up"]

WARM_STEPS = 20


def after_warm_up(steps: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which steps come after the first 20 of their rank.

    At most the first half of the steps of a rank is left out.

    Args:
        steps: Rows of the table ``step`` of training, by time, with ``worker``.
    """
    is_steady = np.ones(len(steps), bool)
    for worker in np.unique(steps["worker"]).tolist():
        own = np.flatnonzero(steps["worker"] == worker)
        is_steady[own[: min(WARM_STEPS, len(own) // 2)]] = False
    return is_steady
