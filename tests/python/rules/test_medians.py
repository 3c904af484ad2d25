"""The medians that rules compare with."""

from __future__ import annotations

import numpy as np
import pytest

from tdbg.rules.columns import median, median_and_deviation

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize("axis", [0, 1])
def test_a_median_is_of_what_is_finite_along_an_axis(axis: int) -> None:
    lines = np.array(
        [[3.0, NAN, 1.0, INF], [NAN, NAN, -INF, NAN], [5.0, 7.0, 9.0, 7.0]]
    )
    found = median(lines if axis == 1 else lines.T, axis)
    np.testing.assert_array_equal(found, [2.0, NAN, 7.0])


@pytest.mark.filterwarnings("error")
def test_of_nothing_it_is_unknown_and_nobody_is_warned() -> None:
    for nothing in (np.array([]), np.array([NAN, INF])):
        assert np.isnan(float(median(nothing)))
    assert median(np.empty((0, 3))).shape == (0,)
    assert np.isnan(median(np.empty((3, 0)))).all()


def test_a_deviation_is_that_of_the_many_whatever_the_few_are() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(5.0, 2.0, (2, 4001))
    rows[1, :200] = 1e6
    middle, deviation = median_and_deviation(rows)
    np.testing.assert_allclose(middle, 5.0, atol=0.3)
    np.testing.assert_allclose(deviation, 2.0, atol=0.3)
    assert np.isnan(median_and_deviation(np.array([[1.0, NAN, 2.0]]))).all()
