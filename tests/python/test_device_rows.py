"""Rows and unit counts by PyTorch's operations, against the reference and the core."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dtype_helpers import DTYPES, numpy_of, of_any_bits
from tdbg import _core
from tdbg.capture.units import UnitQuestion
from tdbg.hooks.pytorch import device_rows
from tdbg.hooks.pytorch.device_rows import FIELDS, row_words, unit_table
from tdbg.reference import Row, row, unit_counts

SIZES = (1, 7, 1000)


def core_row(words: torch.Tensor) -> dict[str, int | float]:
    """The words by name, the extremes as their bits."""
    bits = words.numpy().view(np.uint64)
    values = bits.view(np.float64)
    names = list(Row.__dataclass_fields__)
    return {
        name: int(bits[i]) if i < 7 else float(values[i])
        for i, name in enumerate(names)
    }


def assert_agrees(tensor: torch.Tensor, scale: float = 1.0) -> None:
    """The row is the reference's, and its extremes are the core's to the bit."""
    actual = core_row(row_words(tensor, scale))
    array = numpy_of(tensor)
    is_float = tensor.dtype.is_floating_point
    expected = row(array, scale if is_float else 1.0)
    for name in ("count", "nan", "positive_infinity", "negative_infinity", "zero"):
        assert actual[name] == getattr(expected, name), name
    n_infinite = expected.positive_infinity + expected.negative_infinity
    finite = expected.count - expected.nan - n_infinite
    if finite == 0:
        return
    core = _core.reduce(array, scale if is_float else 1.0)
    if scale == 1.0:
        for name in ("min", "max"):
            same = np.array([actual[name]], np.uint64)
            if is_float:  # Zeros of either sign are one.
                assert same.view(np.float64)[0] == core[name].view(np.float64), name
            else:
                assert same[0] == core[name].view(np.uint64), name
    assert actual["abs_min"] == pytest.approx(expected.abs_min, rel=1e-15, abs=0)
    tiny = 5e-324 * finite
    for name in ("m2", "l1", "l2"):
        np.testing.assert_allclose(
            actual[name], getattr(expected, name), 2e-12, tiny, err_msg=name
        )
    error = abs(float(actual["mean"]) - expected.mean)
    assert error <= 1e-12 * expected.l1 / finite + tiny


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_type_agrees_with_the_reference(name: str, size: int) -> None:
    assert_agrees(of_any_bits(name, size))


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_a_factor_is_applied_in_float64(name: str) -> None:
    tensor = of_any_bits(name, 300)
    assert_agrees(tensor, 1.0 / 65536.0)
    divisor = torch.tensor(65536.0)
    assert row_words(tensor, divisor).equal(row_words(tensor, 1.0 / 65536.0))


@pytest.mark.parametrize("name", ["int64", "uint64", "bool"])
def test_integers_are_not_multiplied(name: str) -> None:
    tensor = of_any_bits(name, 100)
    assert row_words(tensor, 0.5).equal(row_words(tensor))


@pytest.mark.parametrize(
    "values",
    [
        [1e200, -1e200, 3e200],  # Squares overflow.
        [1e-200, 2e-200, -1e-200],  # Squares underflow.
        [5e-324, -5e-324, 0.0],
        [1e8 + 1, 1e8 + 2, 1e8 + 3],  # A spread that is tiny beside the mean.
        [0.1] * 1001,  # A constant has no variance at all.
        [-0.0, 0.0],
        [math.nan, math.inf, -math.inf],
        [math.nan, 2.0, -math.inf],
        [1.7e308, -1.7e308],
    ],
)
def test_hard_cases(values: list[float]) -> None:
    assert_agrees(torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("value", [0.1, 1 / 3, -2.7, 1e8 + 0.1, 3.3e200])
@pytest.mark.parametrize("count", [3, 999, 1001, 77777])
def test_a_constant_is_its_own_mean_and_has_no_variance(
    value: float, count: int
) -> None:
    words = core_row(row_words(torch.full((count,), value, dtype=torch.float64)))
    assert words["mean"] == value
    assert words["m2"] == 0.0


def test_of_no_elements_all_words_are_zero() -> None:
    assert row_words(torch.empty(0, 3)).equal(torch.zeros(FIELDS, dtype=torch.int64))


def test_the_extremes_of_large_integers_are_exact() -> None:
    least, greatest = -(2**63), 2**63 - 1
    words = row_words(torch.tensor([greatest, least, 2**53 + 1]))
    assert words[5:7].tolist() == [least, greatest]
    unsigned = torch.tensor([2**64 - 1, 2**63 + 1], dtype=torch.uint64)
    extremes = row_words(unsigned)[5:7].view(torch.uint64)
    assert extremes.tolist() == [2**63 + 1, 2**64 - 1]


def test_layouts_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(40, 30, generator=torch.Generator().manual_seed(2))
    whole = core_row(row_words(tensor))
    monkeypatch.setattr(device_rows, "CHUNK", 64)
    assert_agrees(tensor.t())
    assert_agrees(tensor[::3, 1::2])
    assert_agrees(tensor[0].expand(5, 30))
    assert_agrees(of_any_bits("float16", 1000))
    assert_agrees(of_any_bits("uint64", 1000))
    in_chunks = core_row(row_words(tensor))
    assert in_chunks == pytest.approx(whole, rel=1e-13)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(5,), (4, 6), (3, 5, 2, 2), (0, 4), (4, 0)])
def test_units_agree_with_the_reference(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_rows, "CHUNK", 8)
    tensor = of_any_bits(name, math.prod(shape)).reshape(shape)
    axis = min(1, len(shape) - 1)
    expected = unit_counts(numpy_of(tensor), axis, -1.0, 2.0)
    question = UnitQuestion(-1.0, 2.0)
    assert unit_table(tensor, question).tolist() == expected.tolist()
    by_row = unit_counts(numpy_of(tensor), 0, 0.0, math.inf)
    by_row[0] += by_row[1]
    by_row[1] = 0
    of_rows = unit_table(tensor, UnitQuestion(of_rows=True))
    assert of_rows.tolist() == by_row.tolist()
