"""Rows, values and units of tensors on a device, against the Python reference."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from gpu_helpers import (
    EVERYTHING,
    Rows,
    assert_nothing_lost,
    assert_path,
    assert_row,
    make_hook,
)

from dtype_helpers import DTYPES, numpy_of, of_any_bits

# Around a vector load, a warp, a block, a tile, and several tiles.
SIZES = (1, 3, 15, 16, 17, 31, 255, 1023, 4097, 65_537, 1_000_003)
# Where there is no GPU only the tests are tested.
IS_CPU = os.environ.get("TDBG_GPU_DEVICE") == "cpu"
if IS_CPU:
    SIZES = SIZES[:-2]
MANY = 100 if IS_CPU else 1500


@pytest.mark.parametrize("name", DTYPES)
def test_every_size_and_alignment(
    name: str, tmp_path: Path, device: str, takes_kernels: bool
) -> None:
    whole = of_any_bits(name, max(SIZES) + 16, device)
    tensors = {}
    for size in SIZES:
        for offset in range(5 if size < 5000 else 2):
            tensors[f"{size}+{offset}"] = whole[offset : offset + size]
    with make_hook(tmp_path) as hook:
        for key, tensor in tensors.items():
            hook.save_tensor(key, tensor)
        hook.flush()
        assert_nothing_lost(hook)
        assert_path(hook, takes_kernels, device)
    rows = Rows(tmp_path)
    for key, tensor in tensors.items():
        assert_row(rows.of(key)[0], numpy_of(tensor), f"{name} {key}")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "int32"])
def test_layouts(name: str, tmp_path: Path, device: str) -> None:
    base = of_any_bits(name, 7 * 13 * 5 * 6, device).reshape(7, 13, 5, 6)
    tensors = {
        "transposed": base.permute(3, 1, 0, 2),
        "strided": base[::2, 1::3],
        "expanded": base[:1].expand(4, 13, 5, 6),
        "scalar": base[0, 0, 0, 0],
        "empty": base[:0],
        "channels last": base.contiguous(memory_format=torch.channels_last),
    }
    with make_hook(tmp_path, save_config=EVERYTHING) as hook:
        for key, tensor in tensors.items():
            hook.save_tensor(key, tensor)
        hook.flush()
        assert_nothing_lost(hook)
    rows = Rows(tmp_path)
    for key, tensor in tensors.items():
        assert_row(rows.of(key)[0], numpy_of(tensor), f"{name} {key}")
        value = rows.values(key)[0]
        assert value.tobytes() == numpy_of(tensor).tobytes(), key


@pytest.mark.parametrize(
    "values",
    [
        [1e200, -1e200, 3e200],
        [1e-200, 2e-200, -1e-200],
        [5e-324, -5e-324, 0.0],
        [1e8 + 1, 1e8 + 2, 1e8 + 3],
        [0.1] * 100_001,
        [float("nan"), float("inf"), -float("inf")],
        [float("nan")] * 40_000 + [2.0],
    ],
)
def test_hard_cases(values: list[float], tmp_path: Path, device: str) -> None:
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    narrow = tensor.to(torch.float32)
    with make_hook(tmp_path) as hook:
        hook.save_tensor("wide", tensor)
        hook.save_tensor("narrow", narrow)
    rows = Rows(tmp_path)
    assert_row(rows.of("wide")[0], numpy_of(tensor), "wide")
    assert_row(rows.of("narrow")[0], numpy_of(narrow), "narrow")


def test_many_tensors_in_a_step(
    tmp_path: Path, device: str, takes_kernels: bool
) -> None:
    generator = torch.Generator(device=device).manual_seed(3)
    tensors = {
        f"t{i}": torch.randn(1 + 37 * i, device=device, generator=generator)
        for i in range(MANY)
    }
    with make_hook(tmp_path) as hook:
        for key, tensor in tensors.items():
            hook.save_tensor(key, tensor)
        hook.flush()
        assert_nothing_lost(hook)
        assert_path(hook, takes_kernels, device)
    rows = Rows(tmp_path)
    for key, tensor in tensors.items():
        assert_row(rows.of(key)[0], numpy_of(tensor), key)


def test_the_same_data_gives_the_same_bits(tmp_path: Path, device: str) -> None:
    tensor = of_any_bits("float32", 3_000_000, device)
    with make_hook(tmp_path) as hook:
        hook.save_tensor("first", tensor)
        for i in range(50):  # Other work beside it.
            hook.save_tensor(f"other {i}", tensor[i : 100 * i + 1])
        hook.save_tensor("second", tensor.clone())
    rows = Rows(tmp_path)
    first, second = rows.of("first")[0], rows.of("second")[0]
    for name in (first.dtype.names or ())[6:]:
        assert first[name].tobytes() == second[name].tobytes(), name


def test_raw_values(tmp_path: Path, device: str) -> None:
    tensors = {name: of_any_bits(name, 100_000, device) for name in DTYPES}
    with make_hook(tmp_path, save_config=EVERYTHING) as hook:
        for key, tensor in tensors.items():
            hook.save_tensor(key, tensor)
        hook.flush()
        assert_nothing_lost(hook)
    rows = Rows(tmp_path)
    for key, tensor in tensors.items():
        assert np.array_equal(
            rows.values(key)[0].view(np.uint8), numpy_of(tensor).view(np.uint8)
        )


def test_another_librarys_array(tmp_path: Path, device: str) -> None:
    tensor = torch.arange(10.0, device=device)

    class Foreign:
        """Only the protocol."""

        def __dlpack__(self, **options: object) -> object:
            return tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> object:
            return tensor.__dlpack_device__()

        def __array__(self, *_: object, **__: object) -> object:
            return tensor.cpu().numpy()

    with make_hook(tmp_path) as hook:
        hook.save_tensor("x", Foreign())
    assert float(Rows(tmp_path).of("x")[0]["mean"]) == 4.5
