"""Where a tensor lies, as the core wants to know it."""

from __future__ import annotations

from typing import Any

import torch

from tdbg.capture.recorder import TensorRef

__all__ = ["describe", "is_tensor"]

_NAMES = {
    getattr(torch, name): name
    for name in (
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
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
    if hasattr(torch, name)
}


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor."""
    return isinstance(value, torch.Tensor)


def describe(tensor: torch.Tensor) -> TensorRef | None:
    """Where it lies; None for what cannot be captured.

    That is: sparse, quantized, complex and lazily negated tensors, those on other
    devices than the CPU, and those without memory of their own (meta, fake,
    traced, freed).
    """
    try:
        name = _NAMES.get(tensor.dtype)
        if name is None or not tensor.is_cpu or tensor.is_neg():
            return None
        pointer = tensor.data_ptr()  # Raises where there is no plain memory.
        if tensor.is_contiguous():
            if pointer == 0 and tensor.numel():
                return None
            return TensorRef(pointer, name, tensor.shape)
        size = tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return None  # Sparse, or a subclass that only looks like a tensor.
    return TensorRef(pointer, name, tensor.shape, strides) if pointer else None
