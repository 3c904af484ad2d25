from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tdbg.cli.sparkline import BARS, sparkline


def test_lowest_and_highest_values_have_the_lowest_and_highest_bars() -> None:
    assert sparkline([1, 2, 3, 4]) == "▁▃▆█"


def test_a_series_without_change_is_drawn_in_the_middle() -> None:
    assert sparkline([5.0] * 3) == BARS[4] * 3


def test_a_long_series_is_cut_to_the_width() -> None:
    assert len(sparkline(range(1000), width=20)) == 20


def test_values_that_are_not_finite_are_marked() -> None:
    assert sparkline([1.0, math.nan, 2.0, math.inf]) == "▁!█!"


def test_nothing_is_drawn_for_nothing() -> None:
    assert sparkline([]) == ""


@given(st.lists(st.floats(), max_size=50), st.integers(1, 30))
def test_any_numbers_can_be_drawn(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    assert set(line) <= set(BARS + "!")
