"""The fields of a statistics row: the one list that every other one derives from.

tests/python/stats/test_row_fields.py compares it with the core's ``ROW_DTYPE``.

Thread safety: constants, and values that do not change.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["COUNTS", "EXTREMES", "FIELDS", "MOMENTS", "NOT_FINITE_COUNTS", "RowFields"]

CountT = TypeVar("CountT")
ExtremeT = TypeVar("ExtremeT")
MomentT = TypeVar("MomentT")


@dataclass(frozen=True, slots=True, eq=False)
class RowFields(Generic[CountT, ExtremeT, MomentT]):
    """Statistics of a tensor (docs/statistics.md), as numbers or as arrays.

    Counts cover all elements, everything else covers the finite ones.

    Attributes:
        count: Number of elements.
        nan: Number of elements that are NaN.
        positive_infinity: Number of elements that are +Inf.
        negative_infinity: Number of elements that are -Inf.
        zero: Number of elements that are +0 or -0.
        min: Least element; an exact int for one tensor of integers or bool; +Inf if
            no element is finite.
        max: Greatest element; likewise; -Inf if no element is finite.
        abs_min: Least absolute value; +Inf if no element is finite.
        mean: The arithmetic mean.
        m2: Sum of the squared deviations from the mean.
        l1: Sum of the absolute values.
        l2: Square root of the sum of the squares.
    """

    count: CountT
    nan: CountT
    positive_infinity: CountT
    negative_infinity: CountT
    zero: CountT
    min: ExtremeT
    max: ExtremeT
    abs_min: MomentT
    mean: MomentT
    m2: MomentT
    l1: MomentT
    l2: MomentT


#: Names of all fields, in the order of the core.
FIELDS = tuple(field.name for field in dataclasses.fields(RowFields))


def _of_type(kind: str) -> tuple[str, ...]:
    fields = dataclasses.fields(RowFields)
    return tuple(field.name for field in fields if field.type == kind)


#: Fields that count elements: uint64.
COUNTS = _of_type("CountT")
#: Counts of the elements that everything else leaves out.
NOT_FINITE_COUNTS = ("nan", "positive_infinity", "negative_infinity")
#: Fields that the core holds as the bits of a float64, int64 or uint64.
EXTREMES = _of_type("ExtremeT")
#: Fields that are always float64.
MOMENTS = _of_type("MomentT")
