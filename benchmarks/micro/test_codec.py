"""Compressing and decompressing the values of one tensor."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks._harness import check, check_equal
from tdbg import _core
from tdbg.config import Role

ELEMENTS = 1_000_000
DTYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
#: Gradients are compressed as they are, weights as a difference where one pays.
ROLE = int(Role.GRADIENT)


def make(dtype: str, what: str) -> Any:
    """Normally distributed values, half of them zero for an activation."""
    drawn = np.random.default_rng(0).normal(0, 0.02, ELEMENTS)
    if what == "activation":
        drawn = np.maximum(drawn, 0)
    return drawn.astype(DTYPES[dtype]).view(np.uint8)


def space(raw: Any) -> Any:
    return np.zeros(raw.size + raw.size // 4096 + 4096, np.uint8)


def round_trip(payload: Any, raw: Any, dtype: str) -> None:
    out = np.zeros_like(raw)
    _core.decode_tensor(payload, np.dtype(DTYPES[dtype]).itemsize, out)
    check_equal(out, raw, "what was compressed")


@pytest.mark.parametrize("what", ["gradient", "activation"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_encode(benchmark: BenchmarkFixture, dtype: str, what: str) -> None:
    raw = make(dtype, what)
    out = space(raw)
    encoder = _core.TensorCodec()
    round_trip(out[: encoder.encode(raw, out, dtype, ROLE)], raw, dtype)
    length = benchmark(encoder.encode, raw, out, dtype, ROLE)
    benchmark.extra_info["ratio"] = round(raw.size / length, 3)
    round_trip(out[:length], raw, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_encode_difference(benchmark: BenchmarkFixture, dtype: str) -> None:
    """Of a weight that changes in one of a hundred elements from save to save."""
    role = int(Role.WEIGHT)
    before = make(dtype, "weight")
    after = before.copy()
    after[::100] ^= 1
    out = space(after)

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        encoder = _core.TensorCodec(previous_bytes=4 * after.size)
        encoder.encode(before, out, dtype, role)  # The key frame.
        return (encoder,), {}

    def encode(encoder: _core.TensorCodec) -> int:
        return encoder.encode(after, out, dtype, role)

    length = benchmark.pedantic(encode, setup=fresh, rounds=30)
    got = np.zeros_like(after)
    item = np.dtype(DTYPES[dtype]).itemsize
    _core.decode_tensor(out[:length], item, got, before)
    check_equal(got, after, "the difference")
    check(length < after.size // 4, f"{length} bytes are no difference")


@pytest.mark.parametrize("dtype", DTYPES)
def test_decode(benchmark: BenchmarkFixture, dtype: str) -> None:
    raw = make(dtype, "gradient")
    out = space(raw)
    payload = out[: _core.TensorCodec().encode(raw, out, dtype, ROLE)]
    got = np.zeros_like(raw)
    benchmark(_core.decode_tensor, payload, np.dtype(DTYPES[dtype]).itemsize, got)
    check_equal(got, raw, "what was decompressed")
