"""Where a tensor lies, as the core wants to know it."""

from __future__ import annotations

from typing import Any

import torch

from tdbg.capture.tensors import Local, TensorRef
from tdbg.hooks.pytorch.sharding import local_of

__all__ = ["TYPES", "describe", "is_on_device", "is_tensor", "name_of"]

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


def name_of(dtype: torch.dtype) -> str | None:
    """NumPy's or ml_dtypes' name of an element type; None where there is none."""
    return _NAMES.get(dtype)


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor."""
    return isinstance(value, torch.Tensor)


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether it lies on a CUDA device."""
    return tensor.is_cuda


# Of these no class method stands between the tensor and its memory.
TYPES = (torch.Tensor, torch.nn.Parameter)


def describe(tensor: torch.Tensor) -> TensorRef | None:
    """Where it lies; None for what cannot be captured.

    That is: sparse, quantized, complex and lazily negated tensors, those on other
    devices than the CPU and CUDA's, those without memory of their own (meta, fake,
    traced, freed), and subclasses that dispatch their operations themselves (nested).
    Of a distributed tensor it is where this rank's part lies.
    """
    try:
        name = _NAMES.get(tensor.dtype)
        is_remote = is_on_device(tensor)
        if name is None or not (tensor.is_cpu or is_remote) or tensor.is_neg():
            return None
        if type(tensor) not in TYPES and _dispatches(type(tensor)):
            local = local_of(tensor)
            return None if local is None else _describe_local(local)
        pointer = tensor.data_ptr()  # Raises where there is no plain memory.
        if is_remote:
            return TensorRef(0, name, tensor.shape, owner=tensor, is_remote=True)
        if tensor.is_contiguous():
            if pointer == 0 and tensor.numel():
                return None
            return TensorRef(pointer, name, tensor.shape, owner=tensor)
        size = tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
        shape = tensor.shape
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return None  # Sparse, or a subclass that only looks like a tensor.
    return TensorRef(pointer, name, shape, strides, owner=tensor) if pointer else None


def _describe_local(local: Local) -> TensorRef | None:
    ref = None if local.tensor is None else describe(local.tensor)
    return None if ref is None else ref._replace(part=local.part)


def _dispatches(kind: type[torch.Tensor]) -> bool:
    plain = torch._C._disabled_torch_dispatch_impl
    return getattr(kind, "__torch_dispatch__", plain) is not plain
