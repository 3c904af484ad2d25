"""How many times as large the tensors of one run are as those of another.

Thread safety: values, and functions that hold a trial's lock inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tdbg.compare.axis import Axis
from tdbg.errors import ConfigurationError
from tdbg.trial import Trial

__all__ = ["RATIO_FIELDS", "Ratios", "ratios"]

#: Statistics that have a ratio: magnitudes.
RATIO_FIELDS = ("rms", "l2", "abs_max", "std")
# Where one of the two is zero, the ratio is beyond all: 2 to this power.
BEYOND = 40.0


@dataclass(frozen=True, slots=True, eq=False)
class Ratios:
    """Binary logarithms of the ratio of two runs: 1 is twice as large, -1 half.

    Of a column the least row of one run is compared with the least of the other, the
    greatest with the greatest, the mean with the mean: a spike in one of them alone is
    there however wide the column.

    Attributes:
        names: The tensors, each a row of the arrays.
        marks: int64 (columns + 1,): bounds of the columns on the axis.
        low: float32 (names, columns): the least of the three; NaN where not both runs
            have a finite row.  At most 40 in either direction, which is what a ratio
            to zero is.
        high: The greatest of the three, likewise.
        mean: That of the means, likewise.
        rows: uint32 (names, columns): the rows of the run that has fewer.
        bad: uint32 (names, columns): rows with NaN or Inf, of both runs.
    """

    names: list[str]
    marks: NDArray[np.int64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    mean: NDArray[np.float32]
    rows: NDArray[np.uint32]
    bad: NDArray[np.uint32]


def ratios(
    first: Trial,
    second: Trial,
    names: Sequence[str],
    *,
    field: str = "rms",
    axis: Axis = Axis.STEP,
    marks: NDArray[np.int64],
    check: Callable[[], None] | None = None,
) -> Ratios:
    """The ratio *first* / *second* of tensors that both have.

    Args:
        first: The run above the line.
        second: The run below it.
        names: Tensors; those that one of them does not have are left out.
        field: One of ``RATIO_FIELDS``.
        axis: What the runs are aligned by.
        marks: int64 (columns + 1,), ascending: bounds of the columns on the axis.
        check: As of ``Trial.envelope``.

    Raises:
        ConfigurationError: If the field has no ratio.

    Example:
        found = ratios(a, b, a.tensor_names(), marks=np.arange(0, 1001, 10))
        (found.mean > 1).any(axis=1)  # where a is more than twice as large
    """
    if field not in RATIO_FIELDS:
        msg = f"{field!r} has no ratio: use one of {', '.join(RATIO_FIELDS)}"
        raise ConfigurationError(msg)
    # No aliases: rows of both runs are of the same names.
    known = set(first.tensor_names()) & set(second.tensor_names())
    shared = [name for name in names if name in known]
    read = [
        trial.envelope(
            shared,
            edges=axis.edges(trial.step_table(), marks),
            fields=field,
            check=check,
        )
        for trial in (first, second)
    ]
    parts = [
        _logarithm(getattr(read[0], what)[field], getattr(read[1], what)[field])
        for what in ("low", "mean", "high")
    ]
    one, other = read
    rows = np.minimum(one.rows, other.rows)
    return Ratios(
        names=shared,
        marks=marks,
        low=np.fmin.reduce(parts),
        high=np.fmax.reduce(parts),
        mean=parts[1],
        rows=rows,
        bad=np.where(rows > 0, one.bad + other.bad, 0).astype(np.uint32),
    )


def _logarithm(
    above: NDArray[np.float32], below: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The binary logarithm of a ratio; that of zero to zero is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log2(above.astype(np.float64)) - np.log2(below)
    is_same = above == below
    return np.where(is_same, 0.0, np.clip(found, -BEYOND, BEYOND)).astype(np.float32)
