"""Tensors of every type with statistics, of any bit patterns."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

FLOATS = (
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DTYPES = (*FLOATS, *INTEGERS, "bool")


def numpy_of(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy of the elements, as NumPy and ml_dtypes have them."""
    name = str(tensor.dtype).removeprefix("torch.")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    array = flat.view(torch.uint8).numpy().view(getattr(ml_dtypes, name, name))
    return np.array(array.reshape(tensor.shape))


def of_any_bits(
    name: str, size: int, device: str = "cpu", seed: int = 1
) -> torch.Tensor:
    """Elements of any bit patterns: NaN, infinities, subnormal numbers."""
    dtype = getattr(torch, name)
    if size == 0:
        return torch.empty(0, dtype=dtype, device=device)
    data = np.random.default_rng(seed).integers(0, 256, size * dtype.itemsize)
    tensor = torch.tensor(data.astype(np.uint8), device=device)
    if name == "bool":
        return tensor % 2 == 1
    tensor = tensor.view(dtype)
    if name == "float64":  # Sums near the greatest number overflow in any order.
        return torch.where(tensor.abs() < 1e300, tensor, 1e300)
    return tensor
