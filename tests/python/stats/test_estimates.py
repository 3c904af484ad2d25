"""Estimates that wild values do not move, against brute force."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from tdbg.stats.estimates import (
    block_medians,
    lasting_growth,
    slow_limit,
    spread,
    theil_sen,
    trend,
)


@pytest.mark.parametrize("seed", range(5))
def test_slope_and_spread_are_medians_of_all_pairs(seed: int) -> None:
    random = np.random.default_rng(seed)
    x = np.sort(random.random(40))
    y = 3.0 * x + random.standard_cauchy(40)
    slopes = [
        (y[j] - y[i]) / (x[j] - x[i]) for i in range(40) for j in range(i + 1, 40)
    ]
    assert theil_sen(x, y) == pytest.approx(statistics.median(slopes))
    middle = statistics.median(y)
    expected = statistics.median(abs(each - middle) for each in y)
    assert spread(y) == pytest.approx(1.4826 * expected)


def test_the_spread_of_normal_values_is_their_deviation() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, size=100_000)
    assert spread(values) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_the_trend_is_kendalls_with_ties(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.arange(30) / 10 + random.integers(0, 4, size=30)
    n = len(values)
    total = sum(
        np.sign(values[j] - values[i]) for i in range(n) for j in range(i + 1, n)
    )
    counts = np.unique(values, return_counts=True)[1]
    variance = (
        n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in counts)
    ) / 18
    assert trend(values) == pytest.approx((total - np.sign(total)) / variance**0.5)
    assert trend(-values) == -trend(values)


def test_blocks_have_the_medians_of_what_is_in_them() -> None:
    x = np.array([0.0, 1.0, 2.0, 5.0, 6.0, 11.0])
    middles, medians = block_medians(x, x * 10, 0.0, 5.0, 4)
    assert middles.tolist() == [2.5, 7.5, 12.5]
    assert medians.tolist() == [10.0, 55.0, 110.0]


def test_growth_that_goes_on_has_its_slope_and_other_growth_none() -> None:
    x = np.arange(60.0)
    noise = np.random.default_rng(0).normal(0.0, 0.1, 60)
    assert lasting_growth(x, 2.0 * x + noise, 50.0) == pytest.approx(2.0, rel=0.01)
    assert lasting_growth(x, 2.0 * x + noise, 150.0) == 0.0, "it rises by too little"
    assert lasting_growth(x, 100.0 * (1 - np.exp(-x / 10)), 1.0) == 0.0, "it slows down"
    assert lasting_growth(x, noise, 0.0) == 0.0, "it is noise"


def test_a_step_is_slow_beyond_the_scatter_and_half_as_long_again() -> None:
    durations = np.random.default_rng(0).normal(100.0, 10.0, 1000)
    assert slow_limit(durations) == pytest.approx(160.0, rel=0.05)
    assert slow_limit(np.full(100, 10.0)) == 15.0
