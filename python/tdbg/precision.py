"""What becomes of numbers in the narrow float types: the borders of their ranges.

Casts round to nearest, ties to even, as ml_dtypes and the hardware do.

Thread safety: pure functions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tdbg.errors import ConfigurationError

__all__ = ["NARROW_TYPES", "Borders", "Loss", "borders_of"]

NARROW_TYPES = (
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)


@dataclass(frozen=True, slots=True)
class Borders:
    """Where the absolute value of a number decides what it becomes in a type.

    Attributes:
        dtype: Name of the type.
        vanishing: Numbers up to this, itself included, become zero.
        normal: Those that are less than this, and do not vanish, become subnormal.
        overflow: Those beyond this become infinite or NaN, or are saturated.
        overflows_at: Whether a number that equals ``overflow`` does, too.
    """

    dtype: str
    vanishing: float
    normal: float
    overflow: float
    overflows_at: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """What a narrow type would lose, as shares of the finite numbers but zero.

    All shares are 0 where there is no such number.

    Attributes:
        dtype: Name of the type.
        scale: What the numbers would be multiplied by first.
        underflow: Those that would become zero.
        subnormal: Those that would become subnormal: there, with fewer digits.
        overflow: Those beyond the greatest finite number, after rounding.
        uncertain: Those in bins that a border divides, or at whose edge it lies so
            that what equals it belongs to the other side; their part of the shares
            above is an estimate.
    """

    dtype: str
    scale: float
    underflow: float
    subnormal: float
    overflow: float
    uncertain: float


@functools.cache
def borders_of(dtype: str) -> Borders:
    """The borders of one of ``NARROW_TYPES``.

    Raises:
        ConfigurationError: If it is none of them.
    """
    if dtype not in NARROW_TYPES:
        msg = f"no narrow float type {dtype!r}: use one of {', '.join(NARROW_TYPES)}"
        raise ConfigurationError(msg)
    narrow: Any = np.dtype(getattr(ml_dtypes, dtype, dtype))
    info: Any = ml_dtypes.finfo(narrow)  # type: ignore[no-untyped-call]
    bits = np.array(info.max, narrow).view(f"u{narrow.itemsize}")
    below = (bits - bits.dtype.type(1)).view(narrow)
    greatest = float(info.max)
    step = greatest - float(below)
    least = float(info.smallest_subnormal)
    return Borders(
        dtype=dtype,
        vanishing=least / 2,
        normal=float(info.smallest_normal) - least / 2,
        overflow=greatest + step / 2,
        # A tie goes to the even neighbor.
        overflows_at=bool(bits & 1),
    )
