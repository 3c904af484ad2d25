"""Medians, of values some of which are not known, and how far values scatter.

Thread safety: pure functions.
"""

from __future__ import annotations

import numpy as np

from tdbg.rules.table import Floats

__all__ = ["MAD_TO_DEVIATION", "median", "with_deviation"]

# The standard deviation of a normal sample is this many times the median of its
# absolute deviations from its median.
MAD_TO_DEVIATION = 1.4826


def median(values: Floats, axis: int = -1) -> Floats:
    """The median of the finite values along an axis; NaN where there is none.

    Example:
        >>> median(np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan]]))
        array([ 2., nan])
    """
    lines = np.moveaxis(np.where(np.isfinite(values), values, np.nan), axis, -1)
    result = np.full(lines.shape[:-1], np.nan)
    # NumPy warns of lines that hold nothing.
    some = np.isfinite(lines).any(axis=-1)
    if some.any():
        result[some] = np.nanmedian(lines[some], axis=-1)
    return result


def with_deviation(rows: Floats) -> tuple[Floats, Floats]:
    """The median of each row and, robust as it is, the standard deviation about it.

    Both are NaN for a row that holds a NaN.
    """
    middle = np.median(rows, axis=1)
    spread = np.median(np.abs(rows - middle[:, np.newaxis]), axis=1)
    return middle, MAD_TO_DEVIATION * spread
