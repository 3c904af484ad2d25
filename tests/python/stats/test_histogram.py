"""Histograms: the kernel against the reference, and what is read off the bins."""

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
from numpy.typing import NDArray

from tdbg import _core
from tdbg.errors import ConfigurationError
from tdbg.stats import reference
from tdbg.stats.histogram import Histogram, has_edge_values
from tdbg.stats.number_formats import NARROW_TYPES, borders_of

FLOATS = [
    *(np.dtype(name) for name in ("float16", "float32", "float64")),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
    np.dtype(ml_dtypes.float8_e4m3fnuz),
    np.dtype(ml_dtypes.float8_e5m2fnuz),
    np.dtype(ml_dtypes.float8_e8m0fnu),
]
DTYPES = FLOATS + [
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    )
]


def assert_agrees(x: NDArray[Any], scale: float = 1.0) -> None:
    keys, counts = _core.count_bins(x, scale)
    expected_keys, expected_counts = reference.histogram(x, scale)
    np.testing.assert_array_equal(keys, expected_keys)
    np.testing.assert_array_equal(counts, expected_counts)


def any_bits(dtype: np.dtype[Any], size: int, seed: int) -> NDArray[Any]:
    data = np.random.default_rng(seed).bytes(size * dtype.itemsize)
    if dtype.kind == "b":
        return np.frombuffer(data, np.uint8) % 2 == 1
    return np.frombuffer(data, dtype)


@st.composite
def arrays_of_any_bits(draw: st.DrawFn) -> NDArray[Any]:
    dtype = draw(st.sampled_from(DTYPES))
    x = any_bits(dtype, draw(st.integers(0, 2500)), draw(st.integers(0, 2**32 - 1)))
    layout = draw(st.sampled_from(["plain", "every other", "backwards", "two rows"]))
    if layout == "two rows":
        return x[: len(x) // 2 * 2].reshape(2, -1).T
    return {"plain": x, "every other": x[::2], "backwards": x[::-1]}[layout]


@settings(deadline=None, max_examples=300)
@given(arrays_of_any_bits())
def test_the_kernel_counts_what_the_reference_counts(x: NDArray[Any]) -> None:
    assert_agrees(x)


@settings(deadline=None)
@given(
    st.sampled_from(FLOATS),
    st.integers(0, 1500),
    st.integers(0, 2**32 - 1),
    st.sampled_from([-1.0, 2.0**-16, -(2.0**-3), 2.0**7, 0.3, 1e-40, 1e30, -65536.0]),
)
def test_scaled_elements_are_counted_as_products(
    dtype: np.dtype[Any], size: int, seed: int, scale: float
) -> None:
    assert_agrees(any_bits(dtype, size, seed), scale)


@pytest.mark.parametrize("name", _core.implementations())
def test_every_implementation_counts_alike(name: str) -> None:
    program = (
        "import numpy as np, test_histogram as t\n"
        f"assert t._core.implementation() == {name!r}\n"
        "for seed, dtype in enumerate(t.DTYPES):\n"
        "    t.assert_agrees(t.any_bits(dtype, 5000, seed))\n"
    )
    environment = os.environ | {
        "TDBG_FORCE_IMPLEMENTATION": name,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), *filter(None, sys.path)]
        ),
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_what_cannot_be_counted_is_named() -> None:
    with pytest.raises(TypeError, match="complex64"):
        Histogram.of(np.zeros(3, np.complex64))
    with pytest.raises(ConfigurationError, match="cannot be scaled"):
        Histogram.of(np.zeros(3, np.int32), 0.5)


def test_special_elements_have_counts_of_their_own() -> None:
    x = np.array([0.0, -0.0, 1e-45, -1e-45, np.nan, -np.nan, np.inf, -np.inf, 2.0])
    h = Histogram.of(x.astype(np.float32))
    counts = (h.zero, h.nan, h.positive_infinity, h.negative_infinity, h.finite)
    assert counts == (2, 2, 1, 1, 5)
    assert h.keys.tolist() == [0, 1, 0x4000, 0x7F80, 0x7FC0, 0x8001, 0xFF80]
    assert h.edges[:3].tolist() == [[0, 0], [0, 2.0**-132], [2, 2 + 2.0**-6]]
    assert h.edges[5].tolist() == [-(2.0**-132), 0]
    assert np.isnan(h.edges[4]).all()


def test_what_lies_beyond_float32_is_finite() -> None:
    h = Histogram.of(np.array([1e300, -1e300, 1e-300, -1e-300]))
    assert h.keys.tolist() == [0x0001, 0x7F7F, 0x8001, 0xFF7F]
    assert h.finite == 4
    assert h.zero == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 400), max_size=5), st.sampled_from(DTYPES))
def test_merging_counts_all_elements(sizes: list[int], dtype: np.dtype[Any]) -> None:
    parts = [any_bits(dtype, size, seed) for seed, size in enumerate(sizes)]
    whole = np.concatenate(parts) if parts else any_bits(dtype, 0, 0)
    merged = Histogram.merge(Histogram.of(part) for part in parts)
    assert merged == Histogram.of(whole)
    assert merged.count == whole.size
    if len(parts) == 2:
        assert Histogram.of(parts[0]) + Histogram.of(parts[1]) == merged


def test_a_merged_histogram_is_on_edges_where_all_are() -> None:
    exact = Histogram.of(np.ones(3, ml_dtypes.bfloat16))
    assert exact.on_edges
    assert (exact + exact).on_edges
    assert not (exact + Histogram.of(np.ones(3, np.float32))).on_edges


@settings(deadline=None)
@given(
    st.sampled_from(["float32", "float64", "bfloat16"]),
    st.integers(1, 400),
    st.integers(0, 2**32 - 1),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
def test_quantiles_are_within_their_bound(
    name: str, size: int, seed: int, q: list[float]
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size) * np.exp(rng.normal(0, 8, size))
    values[rng.random(size) < 0.2] = 0
    values = np.clip(values, -1e37, 1e37)
    x = values.astype(getattr(ml_dtypes, name, name)).astype(np.float64)
    h = Histogram.of(values.astype(getattr(ml_dtypes, name, name)))
    found = h.quantile(q)
    for level, actual in zip(q, found, strict=True):
        low, high = (
            np.quantile(x, level, method=method) for method in ("lower", "higher")
        )
        share = level * (size - 1) % 1
        expected = low + (high - low) * share
        bound = 0.0 if h.on_edges else 2.0**-8
        error = max(abs(low), abs(high)) * (bound + 1e-12) + 2.0**-133
        assert abs(actual - expected) <= error
    assert h.median == h.quantile(0.5)


def test_quantiles_of_infinities_and_nan() -> None:
    h = Histogram.of(np.array([-np.inf, 1.0, np.inf, np.inf], np.float32))
    assert h.quantile(0) == -math.inf
    assert h.quantile(1) == math.inf
    assert h.quantile([2 / 3, 1]).tolist() == [math.inf, math.inf]
    assert math.isnan(Histogram.of(np.array([1.0, np.nan])).quantile(0.5))
    assert math.isnan(Histogram.of(np.zeros(0)).median)
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        h.quantile(1.5)


def test_the_distribution_function() -> None:
    x = np.random.default_rng(0).normal(size=20000)
    for h, points in (
        (Histogram.of(x.astype(np.float32)), x),
        (Histogram.of(x.astype(ml_dtypes.bfloat16)), x.astype(ml_dtypes.bfloat16)),
    ):
        at = np.array([-9.0, -1.5, -0.1, 0.0, 0.003, 0.7, 2.0, 9.0])
        expected = (points.astype(np.float64)[:, None] <= at).mean(axis=0)
        np.testing.assert_allclose(h.cdf(at), expected, atol=2e-3)
    mixed = Histogram.of(np.array([-np.inf, -1.0, 0.0, 0.0, 5.0, np.nan]))
    found = mixed.cdf([-np.inf, -2, -0.5, -1e-40, 0, 1, 6, np.nan])
    assert found[:-1].tolist() == [0.2, 0.2, 0.4, 0.4, 0.8, 0.8, 1.0]
    assert math.isnan(found[-1])
    assert mixed.cdf(0.0) == 0.8
    assert math.isnan(Histogram.of(np.zeros(0)).cdf(1.0))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float64])
def test_linear_bins_are_those_of_numpy(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(1, 3, 50000).astype(dtype)
    x[:100] = 0
    h = Histogram.of(np.concatenate([x, np.array([np.nan, np.inf, -np.inf], dtype)]))
    counts, edges = h.to_numpy(40)
    assert counts.sum() == pytest.approx(50000)
    expected, _ = np.histogram(x.astype(np.float64), edges)
    if h.on_edges:
        np.testing.assert_array_equal(counts, expected)
    np.testing.assert_allclose(counts, expected, atol=0.01 * 50000 / 10)
    counts, edges = h.to_numpy([-1.0, 0.0, 2.0])
    expected, _ = np.histogram(x.astype(np.float64), edges)
    np.testing.assert_allclose(counts, expected, rtol=0.02)


def test_linear_bins_of_little() -> None:
    assert Histogram.of(np.zeros(0)).to_numpy(3)[0].tolist() == [0, 0, 0]
    assert Histogram.of(np.full(2, np.nan)).to_numpy(2)[0].tolist() == [0, 0]
    assert Histogram.of(np.zeros(5)).to_numpy(2)[0].sum() == 5
    assert Histogram.of(np.array([0.0, 4.0])).to_numpy([0, 1, 2])[0].tolist() == [1, 0]
    # The last bin has its right edge.
    assert Histogram.of(np.array([-1.0, 0.0])).to_numpy([-2, 0])[0].tolist() == [2]
    for bins in (0, [3, 2, 1], "none", [[1]]):
        with pytest.raises(ConfigurationError, match="bins"):
            Histogram.of(np.ones(3)).to_numpy(bins)  # type: ignore[arg-type]


def lost_by_casting(x: NDArray[np.float64], dtype: str) -> tuple[float, float, float]:
    """Shares of underflow, subnormal and overflow, by doing it."""
    narrow: Any = np.dtype(getattr(ml_dtypes, dtype, dtype))
    info: Any = ml_dtypes.finfo(narrow)
    x = x[np.isfinite(x) & (x != 0)]
    if not x.size:
        return 0.0, 0.0, 0.0
    with np.errstate(over="ignore"):
        # By way of float32, as trainings cast; exact for what is drawn here.
        cast = np.abs(x.astype(np.float32).astype(narrow).astype(np.float64))
    tiny = (cast > 0) & (cast < float(info.smallest_normal))
    return (
        float((cast == 0).mean()),
        float(tiny.mean()),
        float((~np.isfinite(cast)).mean()),
    )


@settings(deadline=None)
@given(
    st.sampled_from(NARROW_TYPES),
    st.sampled_from(["float32", "bfloat16", "float16"]),
    st.floats(-45, 45),
    st.sampled_from([1.0, 2.0**10, 2.0**-7, 3.7]),
    st.integers(0, 2**32 - 1),
)
def test_lost_shares_are_those_of_the_cast(
    target: str, source: str, log_size: float, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=500) * np.exp2(rng.normal(log_size, 6, 500))
    values[:50] = np.exp2(np.floor(np.log2(np.abs(values[:50]))))  # On borders.
    if source == "float16":
        values = np.clip(values, -65504, 65504)
    x = values.astype(getattr(ml_dtypes, source, source))
    exact = x.astype(np.float64)
    products = exact * scale
    # Scaled as the histogram is told: in float64, rounded once by the cast.
    products = products.astype(np.float32).astype(np.float64)
    expected = lost_by_casting(products, target)
    h = Histogram.of(x)
    lost = h.lost_in(target, scale=scale)
    found = (lost.underflow, lost.subnormal, lost.overflow)
    slack = lost.uncertain + 1e-12
    if scale == 3.7:
        slack += 2 / 500  # Products that rounding brings over a border.
    for actual, truth in zip(found, expected, strict=True):
        assert abs(actual - truth) <= slack
    if h.on_edges:
        assert lost.uncertain == 0


def test_borders_are_decided_as_casts_decide_them() -> None:
    for dtype in NARROW_TYPES:
        borders = borders_of(dtype)
        narrow: Any = np.dtype(getattr(ml_dtypes, dtype, dtype))
        normal = float(ml_dtypes.finfo(narrow).smallest_normal)

        def cast(x: float, towards: float | None = None, narrow: Any = narrow) -> float:
            """Cast a float32, or the one next to it."""
            near = np.float32(x)
            assert near == x
            if towards is not None:
                near = np.nextafter(near, np.float32(towards))
            with np.errstate(over="ignore"):
                return float(near.astype(narrow))

        assert cast(borders.vanishing) == 0
        assert cast(borders.vanishing, 1) > 0
        assert cast(borders.normal) == normal
        assert cast(borders.normal, 0) < normal
        assert math.isfinite(cast(borders.overflow)) is not borders.overflows_at
        assert not math.isfinite(cast(borders.overflow, np.inf))
        assert math.isfinite(cast(borders.overflow, 0))


def test_shares_of_float8_are_exact_off_the_borders() -> None:
    x = np.float32(1.001) * np.exp2(np.arange(-20, 20, dtype=np.float32))
    for target in ("float8_e4m3fn", "float8_e5m2"):
        lost = Histogram.of(x).lost_in(target)
        found = (lost.underflow, lost.subnormal, lost.overflow)
        assert found == pytest.approx(lost_by_casting(x.astype(np.float64), target))
    lost = Histogram.of(np.array([0, np.nan, np.inf], np.float32)).lost_in("float16")
    assert (lost.underflow, lost.overflow, lost.uncertain) == (0, 0, 0)


def test_bad_questions_about_losses_are_named() -> None:
    h = Histogram.of(np.ones(3))
    with pytest.raises(ConfigurationError, match="float8_e5m2"):
        h.lost_in("float4")
    for scale in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigurationError, match="scale"):
            h.lost_in("float16", scale=scale)


def test_a_histogram_cannot_be_changed_or_made_of_nonsense() -> None:
    h = Histogram.of(np.ones(3))
    with pytest.raises(ValueError, match="read-only"):
        h.counts[0] = 7
    assert repr(h) == "Histogram(count=3, bins=1)"
    assert h != 3
    with pytest.raises(ConfigurationError, match="ascend"):
        Histogram(np.array([2, 1], np.uint16), np.array([1, 1], np.uint64))
    with pytest.raises(ConfigurationError, match="shape"):
        Histogram(np.array([1], np.uint16), np.array([1, 1], np.uint64))


def test_types_whose_elements_are_edges() -> None:
    for dtype in DTYPES:
        x = any_bits(dtype, 4000, 3)
        with np.errstate(invalid="ignore", over="ignore"):
            values = x.astype(np.float64)
            near = values.astype(np.float32)
        finite = np.isfinite(values)
        fits = bool(np.all(near[finite] == values[finite]))
        fits &= not np.any(near[finite].view(np.uint32) & 0xFFFF)
        assert fits == has_edge_values(dtype.name), dtype
