"""Reduction values from rows against NumPy on the elements themselves."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tdbg import _core
from tdbg.errors import ConfigurationError
from tdbg.stats.reference import row
from tdbg.stats.rows import (
    REDUCTIONS,
    reduction_column,
    reduction_value,
    reduction_values,
)

INF = np.inf
NAN = np.nan


def scaled(values: NDArray[Any], function: Callable[[NDArray[Any]], float]) -> float:
    """*function* of values near 1, scaled back: NumPy's squares of 1e-247 are 0."""
    size = np.abs(values).max(initial=0.0)
    if not 0 < size < INF:
        return function(values)
    return float(size * function(values / size))


def by_numpy(x: NDArray[Any], name: str, absolute: bool) -> float:
    """What NumPy says in float64; NaN where it refuses an empty array."""
    values = np.abs(x.astype(np.float64)) if absolute else x.astype(np.float64)
    function = {
        "min": np.min,
        "max": np.max,
        "mean": np.mean,
        "std": np.std,
        "variance": np.var,
        "sum": np.sum,
        "l1": lambda v: np.linalg.norm(v, 1),
        "l2": lambda v: scaled(v, lambda each: np.linalg.norm(each, 2)),
        "rms": lambda v: scaled(v, lambda each: np.sqrt(np.mean(each * each))),
    }[name]
    if values.size == 0 and name in {"min", "max"}:
        return NAN
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(function(values.reshape(-1)))


def fields_of(x: NDArray[Any]) -> dict[str, Any]:
    return dataclasses.asdict(row(x))


CASES = [
    [],
    [1.5],
    [1.0, -2.0, 3.0],
    [0.0, -0.0],
    [NAN],
    [NAN, 1.0],
    [NAN, INF],
    [INF],
    [-INF],
    [INF, 1.0],
    [-INF, 1.0],
    [INF, -INF],
    [INF, -INF, 1.0],
    [INF, INF],
]


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("values", CASES, ids=str)
def test_nan_and_infinity_are_as_in_numpy(
    values: list[float], name: str, absolute: bool
) -> None:
    x = np.array(values, np.float64)
    expected = by_numpy(x, name, absolute)
    actual = reduction_value(fields_of(x), name, absolute)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


@settings(deadline=None)
@given(
    hnp.arrays(
        np.float64,
        st.integers(1, 40),
        elements=st.floats(-1e6, 1e6) | st.sampled_from([NAN, INF, -INF]),
    )
)
@example(np.array([5.8e-247]))
def test_any_array_reduces_as_in_numpy(x: NDArray[np.float64]) -> None:
    values = reduction_values(fields_of(x))
    assert set(values) == {(n, a) for n in REDUCTIONS for a in (False, True)}
    finite = x[np.isfinite(x)]
    size = float(np.abs(finite).max(initial=0.0))
    for (name, absolute), actual in values.items():
        expected = by_numpy(x, name, absolute)
        # Of |x| only the mean square is known well, not the variance.
        slack = 1e-12 if name != "std" else 1e-7 if absolute else 1e-9
        power = 2 if name == "variance" else 1
        atol = slack * size**power * len(x)
        np.testing.assert_allclose(
            actual, expected, rtol=1e-9, atol=atol, err_msg=f"{name} {absolute}"
        )


def test_a_column_answers_many_rows_at_once() -> None:
    arrays = [np.array(values, np.float64) for values in CASES]
    rows = [fields_of(x) for x in arrays]
    columns = {name: np.array([r[name] for r in rows]) for name in rows[0]}
    for name in REDUCTIONS:
        actual = reduction_column(columns, name)
        expected = [reduction_value(r, name) for r in rows]
        np.testing.assert_array_equal(actual, expected)


def test_rows_of_the_core_hold_bits_of_floats() -> None:
    record = _core.reduce(np.array([1.5, -2.5], np.float32))
    assert reduction_value(record, "min") == -2.5
    assert reduction_value(record, "max") == 1.5
    assert reduction_value(record, "max", True) == 2.5


def test_extremes_of_integers_are_passed_beside_the_row() -> None:
    record = _core.reduce(np.array([-3, 7], np.int32))
    extremes = (-3, 7)
    assert reduction_value(record, "min", extremes=extremes) == -3.0
    assert reduction_value(record, "max", extremes=extremes) == 7.0
    assert reduction_values(record, extremes=extremes)["min", True] == 3.0


def test_an_unknown_reduction_is_named_with_the_valid_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'median'.*min, max, mean"):
        reduction_value(fields_of(np.ones(3)), "median")


def test_variance_of_absolute_values_is_exact_without_changes_of_sign() -> None:
    for x in (1e6 + np.arange(100.0), -1e6 - np.arange(100.0)):
        expected = np.abs(x).var()
        actual = reduction_value(fields_of(x), "variance", True)
        assert actual == pytest.approx(expected, rel=1e-12)
