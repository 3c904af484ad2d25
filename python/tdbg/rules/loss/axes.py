"""Along which axis the probabilities that a loss is given add up to one.

Of what a log-likelihood is given the classes are the second axis, or the only one, and
over these the probabilities of a sample add up to one.  A softmax that is told another
axis, or none, makes them add up elsewhere: over the samples of a batch, as a rule.

Thread safety: functions and values only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["wrong_axis"]

# How far a sum may be from one: numbers of half the width are rounded.
ROUNDING = 0.01
# How far one over the classes must be from it, to be none.
OFF = 0.1


def wrong_axis(logarithms: NDArray[np.generic]) -> int | None:
    """The axis, not that of the classes, over which probabilities add up to one.

    None where there is none, where they do so over the classes as well, and where it
    cannot be said.  Of as many samples as classes either may be meant: who compares
    pairs asks in both directions which belong together.

    Example:
        >>> scores = np.log([[0.2, 0.9, 0.5], [0.8, 0.1, 0.5]])
        >>> wrong_axis(scores), wrong_axis(scores.T), wrong_axis(scores[0])
        (0, None, None)
    """
    if logarithms.ndim < 2 or 1 in logarithms.shape:
        return None
    # What is above the logarithm of one is none, and for others.
    given = np.minimum(logarithms.astype(np.float64), 1.0)
    probabilities = np.exp(given)
    if np.abs(probabilities.sum(axis=1) - 1.0).max(initial=0.0) <= OFF:
        return None
    for axis in range(logarithms.ndim):
        sums = probabilities.sum(axis=axis)
        is_one = sums.size and np.abs(sums - 1.0).max() <= ROUNDING
        if is_one and logarithms.shape[axis] != logarithms.shape[1]:
            return axis
    return None
