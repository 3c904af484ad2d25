"""Whether a loss compares each output with the target of every other one.

A loss of elements (squared error, say) is a mean over pairs.  Outputs of shape (n, 1)
and targets of shape (n,) are broadcast to (n, n): each output is held against all
targets, and the best answer to all inputs is their mean.  PyTorch warns of it once.

Thread safety: functions only.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["all_with_all"]


def all_with_all(
    outputs: tuple[int, ...], targets: tuple[int, ...]
) -> tuple[int, ...] | None:
    """What both are broadcast to, if that has more elements than either; else None.

    Example:
        >>> all_with_all((32, 1), (32,))
        (32, 32)
        >>> all_with_all((32, 1), (32, 1)), all_with_all((32, 8), (32, 1))
        (None, None)
    """
    try:
        both = np.broadcast_shapes(outputs, targets)
    except ValueError:
        return None
    larger = max(math.prod(outputs), math.prod(targets))
    return both if math.prod(both) > larger else None
