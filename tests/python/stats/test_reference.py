"""The reference itself: small cases worked out by hand, and NumPy's own answers."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tdbg.stats.reference import Row, row, unit_counts

FLOAT8 = [
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2fnuz,
    ml_dtypes.float8_e8m0fnu,
]


def test_a_row_worked_out_by_hand() -> None:
    x = np.array([[3.0, -1.0, np.nan], [0.0, -np.inf, 2.0]])
    assert row(x) == Row.of(
        count=6,
        nan=1,
        negative_infinity=1,
        zero=1,
        min=-1.0,
        max=3.0,
        abs_min=0.0,
        mean=1.0,
        m2=10.0,
        l1=6.0,
        l2=math.sqrt(14.0),
    )


def test_the_row_of_no_element_is_empty() -> None:
    for dtype in (np.float32, np.int64, np.bool_, ml_dtypes.bfloat16):
        assert row(np.empty((0, 3), dtype)) == Row.of()


def test_without_finite_elements_only_counts_are_set() -> None:
    x = np.array([np.nan, np.inf, np.inf])
    assert row(x) == Row.of(count=3, nan=1, positive_infinity=2)


def test_negative_zero_is_a_zero() -> None:
    assert row(np.array([-0.0, 0.0])).zero == 2


def test_large_integers_keep_their_extremes() -> None:
    x = np.array([2**63 - 1, -(2**63) + 1])
    assert (row(x).min, row(x).max) == (-(2**63) + 1, 2**63 - 1)
    assert row(np.array([2**64 - 1], np.uint64)).max == 2**64 - 1


def test_bool_counts_as_zero_and_one() -> None:
    r = row(np.array([True, False, True, True]))
    assert (r.min, r.max, r.mean, r.l1, r.zero) == (0, 1, 0.75, 3.0, 1)


def test_moments_agree_with_numpy() -> None:
    x = np.random.default_rng(0).normal(5, 2, 1000)
    r = row(x)
    assert r.mean == pytest.approx(x.mean(), rel=1e-14)
    assert r.m2 / r.count == pytest.approx(x.var(), rel=1e-13)
    assert r.l1 == pytest.approx(np.linalg.norm(x, 1), rel=1e-14)
    assert r.l2 == pytest.approx(np.linalg.norm(x), rel=1e-14)


@pytest.mark.parametrize("size", [1e200, 1e-200, 1e-310])
def test_squares_neither_overflow_nor_underflow(size: float) -> None:
    r = row(np.array([3.0, -4.0, 0.0]) * size)
    assert r.l2 == pytest.approx(5 * size, rel=1e-13)
    assert r.mean == pytest.approx(-size / 3, rel=1e-12)


def test_a_large_mean_does_not_hide_a_small_variance() -> None:
    x = 1e9 + np.array([-1.0, 1.0] * 500) / 1024
    assert row(x).m2 == pytest.approx(1000 / 1024**2, rel=1e-14)


@pytest.mark.parametrize("dtype", FLOAT8, ids=lambda dtype: dtype.__name__)
def test_float8_values_are_those_of_ml_dtypes(dtype: Any) -> None:
    x = np.arange(256, dtype=np.uint8).view(dtype)
    values = [float(v) for v in x]
    finite = [v for v in values if math.isfinite(v)]
    r = row(x)
    assert r.count == 256
    assert r.nan == sum(math.isnan(v) for v in values)
    assert (r.min, r.max) == (min(finite), max(finite))
    assert r.l1 == pytest.approx(math.fsum(abs(v) for v in finite), rel=1e-14)


def test_scale_multiplies_each_element() -> None:
    x = np.array([1.0, -2.0, np.inf], np.float32)
    assert row(x, -0.5) == row(np.array([-0.5, 1.0, -np.inf]))


def test_units_worked_out_by_hand() -> None:
    x = np.array([[1.0, -3.0, 0.0], [np.nan, 5.0, 0.5]])
    expected = [[1, 1, 1], [1, 2, 0], [2, 2, 2]]
    assert unit_counts(x, 1, -1.0, 1.0).tolist() == expected
    by_row = [[1, 2], [1, 2], [3, 3]]
    assert unit_counts(x, 0, -1.0, 1.0).tolist() == by_row
