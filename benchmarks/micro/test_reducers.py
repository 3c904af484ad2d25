"""The statistics pass, unit summaries and histograms of one tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks._harness import check, check_equal
from benchmarks.reducers.statistics_pass import values, verify
from tdbg import _core
from tdbg.stats.reference import unit_counts

ELEMENTS = 1_000_000


@pytest.mark.parametrize("elements", [256, ELEMENTS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64"])
def test_statistics(benchmark: BenchmarkFixture, dtype: str, elements: int) -> None:
    x = values(dtype, elements)
    verify(x)
    benchmark(_core.reduce, x)


@pytest.mark.parametrize("implementation", _core.implementations())
def test_implementation(benchmark: BenchmarkFixture, implementation: str) -> None:
    x = values("float32", ELEMENTS)
    verify(x)
    benchmark(_core.reduce, x, implementation=implementation)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_histogram(benchmark: BenchmarkFixture, dtype: str) -> None:
    x = values(dtype, ELEMENTS)
    keys, counts = benchmark(_core.count_bins, x)
    check(np.all(np.diff(keys.astype(np.int64)) > 0), "keys ascend")
    check_equal(int(counts.sum()), x.size, "all elements are counted")


@pytest.mark.parametrize("shape", [(64, 128, 14, 14), (4096, 256)])
def test_unit_counts(benchmark: BenchmarkFixture, shape: tuple[int, ...]) -> None:
    drawn: Any = np.random.default_rng(0).normal(size=shape)
    x = drawn.astype(np.float32)
    check_equal(_core.count_units(x, 1, -1, 1), unit_counts(x, 1, -1, 1), "units")
    benchmark(_core.count_units, x, 1, -1, 1)
