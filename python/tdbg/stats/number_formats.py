"""The ranges of the narrow float types, and what a cast to them loses.

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
    """The absolute values at which a cast to a type begins to give something else.

    Attributes:
        dtype: Name of the type.
        vanishing: Numbers up to and including this one become zero.
        normal: Smaller numbers that do not become zero become subnormal.
        overflow: Greater numbers become infinite or NaN, or are saturated.
        overflows_at: Whether a number that equals ``overflow`` overflows as well.
    """

    dtype: str
    vanishing: float
    normal: float
    overflow: float
    overflows_at: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """The shares of numbers that a narrow type would lose.

    All are shares of the numbers that are finite and not zero; 0 if there is none.

    Attributes:
        dtype: Name of the type.
        scale: The factor that the numbers would be multiplied by first.
        underflow: Share of the numbers that would become zero.
        subnormal: Share of those that would become subnormal and lose digits.
        overflow: Share of those beyond the greatest finite number, after rounding.
        uncertain: Share of the numbers in bins that a border divides, and in bins
            with an edge that is a border which belongs to the other side. Their part
            of the shares above is an estimate.
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
        ConfigurationError: If *dtype* is none of them.
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
