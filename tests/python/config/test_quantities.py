"""Numbers are written as people write them."""

from __future__ import annotations

import math

import pytest

from tdbg.config import quantities as q


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (2.0, "2"),
        (0.00123456, "0.00123"),
        (999.9, "1,000"),
        (1853.2, "1,850"),
        (-123456.7, "-123,000"),
        (1.2e-9, "1.2e-9"),
        (1e-7, "1e-7"),
        (-3.25e12, "-3.25e12"),
        (math.inf, "infinity"),
        (-math.inf, "-infinity"),
        (math.nan, "NaN"),
    ],
)
def test_a_number_is_rounded_and_written_out_where_it_is_not_too_long(
    value: float, written: str
):
    assert q.number(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0%"),
        (0.2512, "0.25%"),
        (5.0, "5%"),
        (9.97, "10%"),
        (76.19, "76%"),
        (99.7, "99.7%"),
        (99.98, "over 99.9%"),
        (100.0, "100%"),
    ],
)
def test_a_percentage_has_no_false_digits_and_is_not_rounded_to_all(
    value: float, written: str
):
    assert q.percent(value) == written


@pytest.mark.parametrize(
    ("factor", "times", "fold"),
    [
        (1.62, "1.6 times", "1.6-fold"),
        (14.2, "14 times", "10-fold"),
        (186.2, "190 times", "200-fold"),
        (99_999.0, "100,000 times", "100,000-fold"),
        (1e7, "10 million times", "10 million-fold"),
        (2.5e9, "2.5 billion times", "2 billion-fold"),
        (1e15, "1e15 times", "1e15-fold"),
    ],
)
def test_a_factor_is_rounded_and_never_has_the_exponent_of_a_small_number(
    factor: float, times: str, fold: str
):
    assert q.times(factor) == times
    assert q.fold(factor) == fold


def test_a_count_agrees_with_its_noun_and_verb():
    assert [q.plural(n, "step") for n in (0, 1, 1853)] == [
        "no steps",
        "1 step",
        "1,853 steps",
    ]
    assert q.plural(2, "batch") == "2 batches"
    assert q.affected(1, 3, "layer", ["a"]) == q.affected(1, 3, "layer")
    assert q.affected(1, 3, "layer") == "1 of 3 layers is affected."
    assert q.affected(4, 22, "weight") == "4 of 22 weights are affected."
    assert q.affected(2, 2, "layer", ["a", "b"]) == "Both layers are affected: a, b."
    assert q.affected(3, 3, "layer") == "All 3 layers are affected."
    assert q.affected(1, 1, "layer") == "The only layer is affected."
    assert q.exact(1e-7) == "1e-7"
    assert q.exact(1000) == "1,000"
