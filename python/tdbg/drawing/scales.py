"""Scales: from numbers to places on a chart, and the numbers written at its axes.

Thread safety: values and pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Scale", "number", "scale_of", "step_scale"]

Floats = NDArray[np.float64]

# From this ratio of the greatest to the least on a scale of positive numbers is
# logarithmic: below, a line of one tenth of the greatest is still seen to move.
LOGARITHMIC = 50.0
# A linear axis is crushed by a few values that go so many times as far as 90 of 100 of
# the others do, and are some times as large as the least.
CRUSHED, TIMES = 8.0, 4.0
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers from *low* to *high* on the places from *start* to *end*.

    Attributes:
        low: The number at *start*.
        high: The number at *end*; above *low*.
        start: A place, in units of the SVG.
        end: Another one.
        is_log: Whether equal ratios, instead of differences, have equal lengths.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, values: ArrayLike) -> Floats:
        """The places of numbers; NaN where there is none."""
        numbers = np.asarray(values, np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.is_log:
                # Of logarithms: the ratio of two numbers may be infinite.
                low, high = math.log10(self.low), math.log10(self.high)
                position = (np.log10(numbers) - low) / (high - low)
            else:
                # Divided first: the difference of two large numbers may be infinite.
                width = self.high / 2 - self.low / 2
                position = (numbers / 2 - self.low / 2) / width
        return np.asarray(self.start + position * (self.end - self.start))

    def at(self, value: float) -> float:
        """The place of one number."""
        return float(self(value))

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Round numbers on the scale, about *most*, and how they are written."""
        values = self._log_ticks(most) if self.is_log else self._ticks(most)
        return [(value, number(value)) for value in values]

    def _ticks(self, most: int) -> list[float]:
        step = _nice((self.high / most - self.low / most) or 1.0)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [
            round(i * step, 12) if step > 1e-9 else i * step
            for i in range(first, last + 1)
        ]

    def _log_ticks(self, most: int) -> list[float]:
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        every = max(1, -(-(last - first + 1) // most))
        powers = [10.0**p for p in range(first, last + 1) if p % every == 0]
        if len(powers) > 2:
            return powers
        fine = [m * 10.0**p for p in range(first - 1, last + 1) for m in (1, 2, 5)]
        return [value for value in fine if self.low <= value <= self.high]


def scale_of(
    values: Iterable[ArrayLike],
    start: float,
    end: float,
    *,
    may_be_log: bool = True,
    with_zero: bool = False,
) -> Scale:
    """The scale on which all finite *values* have a place.

    Args:
        values: Arrays of numbers.
        start: Place of the least.
        end: Place of the greatest.
        may_be_log: Whether the scale is logarithmic if the greatest positive number is
            50 times the least, or a few are far from all others, and more are positive
            than not.
        with_zero: Whether zero has a place in any case; then it is not logarithmic.
    """
    arrays = [np.asarray(each, np.float64).ravel() for each in values]
    numbers = np.concatenate(arrays) if arrays else np.empty(0)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return Scale(0.0, 1.0, start, end)
    positive = numbers[numbers > 0]
    is_log = may_be_log and not with_zero and 2 * len(positive) > len(numbers)
    if is_log and _are_far_apart(positive):
        low, high = math.log10(positive.min()), math.log10(positive.max())
        margin = 0.03 * (high - low)
        return Scale(
            10 ** max(-320, low - margin),
            10 ** min(308, high + margin),
            start,
            end,
            is_log=True,
        )
    low, high = float(numbers.min()), float(numbers.max())
    if with_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        reach = abs(low) / 2 or 0.5
        return Scale(low - reach, high + reach, start, end)
    margin = 0.04 * (high / 2 - low / 2) * 2
    keeps_zero = with_zero or 0 <= low < margin
    return Scale(
        low if keeps_zero and low == 0 else low - margin,
        high if with_zero and high == 0 else high + margin,
        start,
        end,
    )


def _are_far_apart(positive: Floats) -> bool:
    """Whether a linear axis would show nothing of most of the numbers."""
    least, greatest = float(positive.min()), float(positive.max())
    if greatest >= LOGARITHMIC * least:
        return True
    low, high = np.quantile(positive, [0.05, 0.95])
    is_crushed = greatest / 2 - least / 2 > CRUSHED * (high / 2 - low / 2)
    return bool(greatest > TIMES * least and is_crushed)


def step_scale(first: float, last: float, start: float, end: float) -> Scale:
    """The scale of steps from the first to the last."""
    if last <= first:
        return Scale(first - 0.5, first + 0.5, start, end)
    return Scale(first, last, start, end)


def number(value: float) -> str:
    """Write a number in at most three significant digits: 0.0123, 1,200, 4.5·10⁻⁹.

    Example:
        >>> number(1e-06), number(0.5), number(12345.0), number(-4.5e-09)
        ('10⁻⁶', '0.5', '12,345', '-4.5·10⁻⁹')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = f"10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    if mantissa in ("1", "-1"):
        return mantissa.removesuffix("1") + power
    return f"{mantissa}·{power}"


def _nice(step: float) -> float:
    """The least of 1, 2, 5 x a power of ten that is at least *step*."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))
