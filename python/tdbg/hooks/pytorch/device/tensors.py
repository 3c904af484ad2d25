"""The place of a tensor of PyTorch in memory, and the part of it on this rank.

Thread safety: pure functions.  Errors: none; what cannot be described is None.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _functorch as transforms

from tdbg.capture.adapter import Local, Part, TensorRef
from tdbg.run.schema import PlacementKind

__all__ = [
    "TYPES",
    "describe",
    "gradient_of",
    "is_on_device",
    "is_recording",
    "is_tensor",
    "is_whole",
    "local_of",
    "name_of",
    "plain_of",
    "sample_of",
    "warn_of_flat_parameters",
]


_TENSOR = "torch.distributed.tensor"
_COLLECTIVES = "torch.distributed._functional_collectives"
# Meshes with placements and shapes that are remembered: more than a model has.
_MAX_PARTS = 4096
# Elements of a tensor that are compared to see whether it has changed.
_SAMPLE = 64

_log = logging.getLogger("tdbg")


def warn_of_flat_parameters(model: torch.nn.Module) -> None:
    """Warn if a wrapper divides parameters among ranks without saying how."""
    for module in model.modules():
        strategy = getattr(module, "sharding_strategy", None)
        is_wrapper = type(module).__name__ == "FullyShardedDataParallel"
        if is_wrapper and getattr(strategy, "name", "") != "NO_SHARD":
            _log.warning(
                "FullyShardedDataParallel does not say which part of a parameter a "
                "rank has. tdbg records each rank's part of parameters and gradients, "
                "and readers see the part of one rank; use "
                "fully_shard"
            )
            return


def local_of(tensor: torch.Tensor) -> Local | None:
    """Return the plain tensor that lies on this rank.

    Its ``tensor`` is None if this rank has no part of the elements: if the ranks have
    yet to add them up (``Partial``), or if the rank is outside the mesh.  The call
    waits for a collective that is under way, as the next operation would.

    Returns:
        None, in the usual case, for a tensor that the ranks do not share.
    """
    kind = type(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return None
    part = None
    inner: Any = tensor
    # Where the module was never loaded there is no such tensor.
    distributed: Any = sys.modules.get(_TENSOR)
    if distributed is not None and isinstance(tensor, distributed.DTensor):
        shared: Any = tensor
        part = _part_of(shared.device_mesh, shared.placements, tuple(shared.shape))
        if part is None:
            return Local(None)
        with torch.no_grad():
            inner = shared.to_local()
    collectives: Any = sys.modules.get(_COLLECTIVES)
    if collectives is not None and isinstance(inner, collectives.AsyncCollectiveTensor):
        return Local(inner.trigger_wait(), part)
    return None if part is None else Local(inner, part)


def is_whole(local: Local) -> bool:
    """Return whether all elements are on this rank."""
    if local.tensor is None:
        return False
    whole = None if local.part is None else math.prod(local.part.global_shape)
    return whole in (None, local.tensor.numel())


@functools.lru_cache(_MAX_PARTS)
def _part_of(
    mesh: Any, placements: Sequence[Any], shape: tuple[int, ...]
) -> Part | None:
    """Return the place of this rank's part of a shared tensor; None if it has none."""
    utils: Any = sys.modules[f"{_TENSOR}._utils"]
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    found = []
    for size, at, placement in zip(mesh.shape, coordinate, placements, strict=True):
        # A single rank has nothing left to add up.
        if placement.is_partial() and size > 1:
            return None
        dimension = getattr(placement, "dim", None)
        kind = PlacementKind.REPLICATE if dimension is None else PlacementKind.SHARD
        found.append((kind, 0, (dimension or 0) % max(1, len(shape)), size, at))
    _, offset = utils.compute_local_shape_and_global_offset(shape, mesh, placements)
    return Part(shape, tuple(int(each) for each in offset), tuple(found))


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
    """Return NumPy's or ml_dtypes' name of an element type; None if it has none."""
    return _NAMES.get(dtype)


def plain_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside the wrappers of ``torch.func``, or the tensor itself.

    Inside ``vmap`` the tensor has all samples, along a dimension of their own.
    """
    while transforms.is_functorch_wrapped_tensor(tensor):
        tensor = transforms.get_unwrapped(tensor)
    return tensor


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch."""
    return isinstance(value, torch.Tensor)


def is_on_device(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies on a CUDA device."""
    return tensor.is_cuda


def is_recording() -> bool:
    """Return whether the current stream records a graph.

    Tensors then have no numbers yet, and who waits for some ends the recording.
    """
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


# No method of these classes stands between a tensor and its memory.
TYPES = (torch.Tensor, torch.nn.Parameter)


def dense_of(tensor: Any) -> TensorRef | None:
    """Return a sparse tensor of the CPU with all of its zeros; None for any other."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        return None
    try:
        with torch.no_grad():
            return describe(tensor.detach().to_dense().contiguous())
    except (RuntimeError, NotImplementedError):
        return None  # Not of this element type.


def describe(tensor: torch.Tensor) -> TensorRef | None:
    """Return the place of a tensor in memory; None if it cannot be captured.

    These tensors cannot be: sparse, quantized, complex and lazily negated ones, those
    on devices other than the CPU and CUDA's, those without memory of their own (meta,
    fake, traced, freed), and subclasses that dispatch their operations themselves
    (nested).  For a distributed tensor it is the place of this rank's part.
    """
    try:
        name = _NAMES.get(tensor.dtype)
        on_device = is_on_device(tensor)
        if name is None or not (tensor.is_cpu or on_device) or tensor.is_neg():
            return None
        if type(tensor) not in TYPES and _dispatches(type(tensor)):
            local = local_of(tensor)
            return None if local is None else _describe_local(local)
        pointer = tensor.data_ptr()  # Raises where there is no plain memory.
        if on_device:
            return TensorRef(0, name, tensor.shape, owner=tensor, on_device=True)
        if tensor.is_contiguous():
            if pointer == 0 and tensor.numel():
                return None
            return TensorRef(pointer, name, tensor.shape, owner=tensor)
        size = tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
        shape = tensor.shape
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return None  # Sparse, or a subclass that is a tensor by name only.
    return TensorRef(pointer, name, shape, strides, owner=tensor) if pointer else None


def _describe_local(local: Local) -> TensorRef | None:
    ref = None if local.tensor is None else describe(local.tensor)
    return None if ref is None else ref._replace(part=local.part)


def _dispatches(kind: type[torch.Tensor]) -> bool:
    plain = torch._C._disabled_torch_dispatch_impl
    return getattr(kind, "__torch_dispatch__", plain) is not plain


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a parameter; None if no backward gives it one.

    PyTorch warns if ``grad`` of such a tensor is read.  In meta-learning the result of
    an update may stand for a parameter.
    """
    return parameter.grad if parameter.is_leaf or parameter.retains_grad else None


def sample_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return some elements of a tensor on this rank, to be compared with later ones.

    No rank waits for another.  There may be no elements here.
    """
    local = local_of(tensor)
    if local is not None:
        tensor = torch.empty(0) if local.tensor is None else local.tensor
    return tensor.detach().reshape(-1)[:_SAMPLE].clone()
