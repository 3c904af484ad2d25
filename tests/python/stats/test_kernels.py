"""The kernels of the core against the reference, whatever the array.

The tests here run with the implementation chosen by default; each other one that the
processor has runs in a process of its own, forced by TDBG_FORCE_IMPLEMENTATION.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tdbg import _core
from tdbg.stats.reference import row, unit_counts
from tdbg.stats.row_fields import COUNTS

DTYPES = [
    *(np.dtype(name) for name in ("bool", "float16", "float32", "float64")),
    *(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
    np.dtype(ml_dtypes.float8_e4m3fnuz),
    np.dtype(ml_dtypes.float8_e5m2fnuz),
    np.dtype(ml_dtypes.float8_e8m0fnu),
]


def assert_agrees(x: NDArray[Any], scale: float = 1.0) -> None:
    """The row of the core is that of the reference, within the stated bounds."""
    actual = _core.reduce(x, scale)
    expected = row(x, scale)
    for name in COUNTS:
        assert actual[name] == getattr(expected, name), name
    kind = x.dtype.kind
    extremes = np.int64 if kind == "i" else np.uint64 if kind in "bu" else np.float64
    if math.isfinite(expected.abs_min):
        assert actual["min"].view(extremes) == expected.min
        assert actual["max"].view(extremes) == expected.max
    assert actual["abs_min"] == expected.abs_min
    narrow = kind not in "biu" and x.dtype.itemsize < 8
    bound = 1e-7 if narrow else 1e-12
    finite = max(1, x.size - expected.nan - _infinite(expected))
    tiny = 5e-324 * finite  # Of subnormal numbers half a step is lost.
    for name, relative in (("m2", 2 * bound), ("l1", bound), ("l2", bound)):
        np.testing.assert_allclose(
            actual[name], getattr(expected, name), relative, tiny, err_msg=name
        )
    assert abs(actual["mean"] - expected.mean) <= bound * expected.l1 / finite + tiny


def _infinite(expected: Any) -> int:
    return int(expected.positive_infinity + expected.negative_infinity)


@st.composite
def arrays_of_any_bits(draw: st.DrawFn) -> NDArray[Any]:
    """An array of any type and strides, whose elements are any bit patterns."""
    dtype = draw(st.sampled_from(DTYPES))
    size = draw(st.integers(0, 700))
    seed = draw(st.integers(0, 2**32 - 1))
    data = np.random.default_rng(seed).bytes(size * dtype.itemsize)
    if dtype.kind == "b":
        return np.frombuffer(data, np.uint8) % 2 == 1
    x = np.frombuffer(data, dtype)
    if dtype == np.float64:
        # Sums near the greatest number overflow on the way, in any order.
        x = np.where(np.abs(x) < 1e300, x, np.float64(1e300))
    return x


@settings(deadline=None, max_examples=200)
@given(arrays_of_any_bits())
def test_any_bit_patterns_agree_with_the_reference(x: NDArray[Any]) -> None:
    assert_agrees(x)
    assert_agrees(x[::-3])


@settings(deadline=None, max_examples=200)
@given(
    hnp.arrays(
        np.float32,
        st.integers(0, 300),
        elements=st.floats(width=32, allow_subnormal=True),
    )
)
def test_any_floats_agree_with_the_reference(x: NDArray[np.float32]) -> None:
    assert_agrees(x)


@settings(deadline=None, max_examples=100)
@given(
    hnp.arrays(np.float64, st.integers(0, 300), elements=st.floats(-1e300, 1e300)),
    st.sampled_from([0.5, -0.25, 1 / 3, 1e-3]),
)
def test_any_doubles_agree_with_the_reference(
    x: NDArray[np.float64], scale: float
) -> None:
    assert_agrees(x)
    assert_agrees(x[np.abs(x) < 1e38].astype(np.float32), scale)


@settings(deadline=None, max_examples=200)
@given(
    hnp.arrays(np.float64, st.integers(0, 60), elements=st.floats(width=64)),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda scale: scale != 0),
)
def test_products_at_the_ends_of_the_range_agree_with_the_reference(
    x: NDArray[np.float64], scale: float
) -> None:
    """Sabotage that it caught: the row of the elements, multiplied afterwards."""
    assert_agrees(x, scale)
    with np.errstate(over="ignore"):
        assert_agrees(x.astype(np.float32), scale)


@pytest.mark.parametrize(
    ("scale", "counts"),
    [
        (2.0, {"positive_infinity": 1, "negative_infinity": 1, "zero": 1}),
        (0.25, {"positive_infinity": 0, "negative_infinity": 0, "zero": 3}),
        (-2.0, {"positive_infinity": 1, "negative_infinity": 1, "zero": 1}),
    ],
)
def test_a_product_that_overflows_is_infinite_and_one_that_vanishes_is_zero(
    scale: float, counts: dict[str, int]
) -> None:
    x = np.array([1.7e308, -1.7e308, 5e-324, -5e-324, 0.0, 1.0])
    actual = _core.reduce(x, scale)
    assert {name: int(actual[name]) for name in counts} == counts
    assert_agrees(x, scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts_agree_with_the_reference(dtype: np.dtype[Any]) -> None:
    values = np.random.default_rng(3).normal(0, 30, (6, 7, 8, 9))
    x = np.abs(values).astype(dtype) if dtype.kind == "u" else values.astype(dtype)
    channels_last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    for y in (
        x,
        x.T,
        x[:, ::2, ::-1, 1:],
        np.moveaxis(channels_last, -1, 1),
        np.broadcast_to(x[:, :1], x.shape),
        x[0, 0, 0, 0],
        x[:0],
    ):
        assert_agrees(np.asarray(y))
        for axis in range(np.ndim(y)):
            expected = unit_counts(y, axis, -9.0, 20.0)
            actual = _core.count_units(y, axis, -9.0, 20.0)
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_units_of_any_bit_patterns_agree(dtype: np.dtype[Any]) -> None:
    data = np.random.default_rng(5).bytes(60 * 70 * dtype.itemsize)
    x = np.frombuffer(data, dtype).reshape(60, 70)
    if dtype.kind == "b":
        x = x.view(np.uint8) % 2 == 1
    for y in (x, x.T, x[::2, ::3]):
        for axis in (0, 1):
            for low, high in ((-1.0, 1.0), (-math.inf, 0.1), (-1e30, 1e30)):
                expected = unit_counts(y, axis, low, high)
                actual = _core.count_units(y, axis, low, high)
                np.testing.assert_array_equal(actual, expected)


HARD_CASES = {
    "large mean": lambda g: g.normal(1e4, 0.02, 100_000),
    "very large mean": lambda g: g.normal(1e6, 1, 100_000),
    "heavy tails": lambda g: g.lognormal(0, 8, 100_000).clip(0, 1e37),
    "sorted": lambda g: np.sort(g.random(100_000)),
    "pairs": lambda g: np.where(np.arange(100_000) % 2, 1e8, -1e8) + g.normal(size=1),
    "outlier": lambda g: np.append(g.normal(size=100_000), 1e30),
    "tiny": lambda g: g.normal(0, 1e-25, 100_000),
    "zeros first": lambda g: np.append(np.zeros(3000), g.normal(1e4, 0.02, 100_000)),
    "one far element first": lambda g: np.append([-1e7], g.normal(1e4, 1, 100_000)),
    "constant": lambda g: np.full(100_000, g.normal()),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", HARD_CASES)
def test_hard_cases_agree_with_the_reference(case: str, dtype: Any) -> None:
    assert_agrees(HARD_CASES[case](np.random.default_rng(7)).astype(dtype))


@pytest.mark.parametrize("case", HARD_CASES)
def test_precise_mode_keeps_the_bound_of_float64(case: str) -> None:
    x = HARD_CASES[case](np.random.default_rng(7)).astype(np.float32)
    expected = row(x)
    for implementation in _core.implementations():
        actual = _core.reduce(x, precise=True, implementation=implementation)
        for name in ("m2", "l1", "l2"):
            np.testing.assert_allclose(actual[name], getattr(expected, name), 1e-12)
        off = abs(float(actual["mean"]) - expected.mean)
        assert off <= 1e-12 * expected.l1 / x.size


def test_threads_change_no_bit() -> None:
    x = np.random.default_rng(3).normal(3, 1, 2_500_000).astype(np.float32)
    for y in (x, x.reshape(1000, 2500).T, x.reshape(1000, 2500)[:, 100:]):
        alone = _core.reduce(y)
        for threads in (2, 5):
            assert _core.reduce(y, threads=threads).tobytes() == alone.tobytes()


def test_rows_within_a_larger_tensor_agree_with_the_reference() -> None:
    x = np.random.default_rng(4).normal(2, 1, (300, 4096)).astype(np.float32)
    for y in (x[:, 7:1000], x[:, :100], x[::2, 5:3000].T, x[::-3, 1:]):
        assert_agrees(y)
        assert_agrees(y.astype(np.float16)[:, 1:])


def forced(name: str, program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TDBG_FORCE_IMPLEMENTATION": name}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_best_implementation_is_used_by_default() -> None:
    if "TDBG_FORCE_IMPLEMENTATION" in os.environ:
        pytest.skip("one is forced")
    assert _core.implementation() == _core.implementations()[-1]


def test_a_forced_implementation_is_the_one_that_runs() -> None:
    """The forced ones run other code, not only under another name.

    They add up in different orders, so that the last bits of a sum differ.
    """
    program = (
        "import numpy as np; from tdbg import _core;"
        "import ml_dtypes;"
        "x = np.random.default_rng(0).lognormal(0, 3, 50000) - 20;"
        "rows = [_core.reduce(x.astype(t)) for t in (np.float32, ml_dtypes.bfloat16)];"
        "print(_core.implementation(), *(float(r['m2']).hex() for r in rows), sep=' ')"
    )
    names, bits = [], set()
    for name in _core.implementations():
        done = forced(name, program)
        assert done.returncode == 0, done.stderr
        ran, *m2 = done.stdout.split()
        names.append(ran)
        bits.add(tuple(m2))
    assert names == _core.implementations()
    assert len(bits) == len(names)


@pytest.mark.slow
@pytest.mark.skipif(
    "TDBG_FORCE_IMPLEMENTATION" in os.environ, reason="runs inside itself"
)
@pytest.mark.parametrize(
    "name", [each for each in _core.implementations() if each != _core.implementation()]
)
def test_every_other_implementation_passes_these_tests(name: str) -> None:
    program = (
        "import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', "
        f"{str(Path(__file__))!r}]))"
    )
    done = forced(name, program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_implementation_is_an_error_that_lists_the_names() -> None:
    done = forced("sse9", "from tdbg import _core; _core.implementation()")
    assert done.returncode != 0
    assert "ConfigurationError" in done.stderr
    assert "sse9" in done.stderr
    assert "portable" in done.stderr
