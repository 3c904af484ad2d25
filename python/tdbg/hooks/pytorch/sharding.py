"""Tensors that several ranks share: DTensors, and results of collectives under way.

What is captured of one is what lies on this rank, as it lies, without communication:
the row of a shard.  Where it lies in the whole is told with it, so that a reader can
put the ranks' rows together (docs/distributed.md).

Thread safety: pure functions; ``Shards`` belongs to the training's thread.

Errors: what PyTorch raises where a mesh or its process group is gone.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
from collections.abc import Collection, Sequence
from typing import Any

import torch

from tdbg.capture.tensors import Local, Part

__all__ = ["Shards", "is_whole", "local_of", "warn_of_flat_parameters"]

_SHARD, _REPLICATE = 1, 2  # docs/format.md, record type `definition`.
_TENSOR = "torch.distributed.tensor"
_COLLECTIVES = "torch.distributed._functional_collectives"
# Meshes with placements and shapes that are remembered: more than a model has.
_MAX_PARTS = 4096

_log = logging.getLogger("tdbg")


class Shards:
    """Says what this rank holds of a tensor, and warns where others' parts are lost.

    Args:
        workers: The ranks that write.
    """

    def __init__(self, workers: Collection[int]) -> None:
        self._workers = workers
        self._has_warned = False
        # By the id of what DTensors of one kind share, which is kept for it.
        self._known: dict[int, tuple[Any, Part | None]] = {}

    def local(self, tensor: torch.Tensor) -> Local | None:
        """What of the tensor lies here; None for one that is not shared."""
        kind = type(tensor)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            return None
        shared: Any = tensor
        spec = getattr(shared, "_spec", None)
        known = self._known.get(id(spec))
        if known is not None:
            inner = shared._local_tensor
            if type(inner) is torch.Tensor:
                part = known[1]
                return Local(None if part is None else inner, part)
        found = local_of(tensor)
        if found is not None and spec is not None:
            if len(self._known) >= _MAX_PARTS:
                self._known.clear()
            self._known[id(spec)] = spec, found.part
            if found.part is not None:
                self._check(found.part, shared.device_mesh)
        return found

    def _check(self, part: Part, mesh: Any) -> None:
        """Warn, once, where others have parts and do not write."""
        if self._has_warned or all(each[0] != _SHARD for each in part.placements):
            return
        missing = set(mesh.mesh.flatten().tolist()).difference(self._workers)
        if missing:
            self._has_warned = True
            _log.warning(
                "tensors are sharded over ranks of which %d write nothing: what is "
                "recorded of them is incomplete; use include_workers='all'",
                len(missing),
            )


def warn_of_flat_parameters(model: torch.nn.Module) -> None:
    """Say so where parameters are divided by a wrapper that does not say how."""
    for module in model.modules():
        strategy = getattr(module, "sharding_strategy", None)
        is_wrapper = type(module).__name__ == "FullyShardedDataParallel"
        if is_wrapper and getattr(strategy, "name", "") != "NO_SHARD":
            _log.warning(
                "FullyShardedDataParallel does not say which part of a parameter a "
                "rank has: what is recorded of parameters and gradients is each "
                "rank's part, and what readers merge is that of one rank; use "
                "fully_shard"
            )
            return


def local_of(tensor: torch.Tensor) -> Local | None:
    """What of the tensor lies on this rank, plain and as it is.

    Nothing of it (``tensor`` is None) where that is no part of the elements: of sums
    that ranks have yet to add up (``Partial``), or where this rank is outside the
    mesh.  The result of a collective that is under way is waited for, as the next
    operation would.

    Returns:
        None for a tensor that is not shared: the usual case.
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
    """Whether all elements are here."""
    if local.tensor is None:
        return False
    whole = None if local.part is None else math.prod(local.part.global_shape)
    return whole in (None, local.tensor.numel())


@functools.lru_cache(_MAX_PARTS)
def _part_of(
    mesh: Any, placements: Sequence[Any], shape: tuple[int, ...]
) -> Part | None:
    """Where this rank's part of such a tensor lies; None where there is none."""
    utils: Any = sys.modules[f"{_TENSOR}._utils"]
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    found = []
    for size, at, placement in zip(mesh.shape, coordinate, placements, strict=True):
        # Of a single rank nothing is left to add up.
        if placement.is_partial() and size > 1:
            return None
        dimension = getattr(placement, "dim", None)
        kind = _REPLICATE if dimension is None else _SHARD
        found.append((kind, 0, (dimension or 0) % max(1, len(shape)), size, at))
    _, offset = utils.compute_local_shape_and_global_offset(shape, mesh, placements)
    return Part(shape, tuple(int(each) for each in offset), tuple(found))
