"""``TorchAdapter``: the answers of PyTorch to what capture asks of a framework.

Thread safety: the training's thread.  Errors: none of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import torch

from tdbg.capture.adapter import DeviceArray, FrameworkAdapter, Local, Part
from tdbg.config.options import SessionOptions
from tdbg.hooks.pytorch.device.cuda import CudaTensors, foreign, number_of
from tdbg.hooks.pytorch.device.distributed import TorchStore, process_group_rank
from tdbg.hooks.pytorch.device.statistics import sparse_row, sparse_units
from tdbg.hooks.pytorch.device.tensors import (
    TYPES,
    dense_of,
    describe,
    is_tensor,
    local_of,
    plain_of,
)
from tdbg.hooks.pytorch.model.kinds import kind_of
from tdbg.run.schema import PlacementKind

__all__ = ["TorchAdapter"]

# Meshes with placements and shapes that are remembered: more than a model has.
_MAX_PARTS = 4096
_log = logging.getLogger("tdbg")


class TorchAdapter(FrameworkAdapter):
    """Describe PyTorch's tensors, its devices and its process group.

    Attributes:
        cuda: PyTorch's operations on CUDA devices.
    """

    name = "pytorch"
    version = str(torch.__version__)

    # Functions, so that a call of the method is one call.
    is_tensor = staticmethod(is_tensor)
    kind_of = staticmethod(kind_of)
    describe = staticmethod(describe)
    compute_row = staticmethod(sparse_row)
    compute_units = staticmethod(sparse_units)
    to_dense = staticmethod(dense_of)
    import_array = staticmethod(foreign)
    quietly = staticmethod(torch.no_grad)
    process_rank = staticmethod(process_group_rank)
    rank_store = staticmethod(TorchStore)

    def __init__(self) -> None:
        self.tensor_types = TYPES
        self.cuda = CudaTensors()
        self.device_backend = self.cuda
        self._workers: Collection[int] = ()
        self._has_warned = False
        # By the id of the spec that DTensors of one kind share; the spec is kept alive.
        self._known: dict[int, tuple[Any, Part | None]] = {}

    def session_opens(self, options: SessionOptions) -> None:
        """Remember which ranks write."""
        self._workers = options.workers

    def accelerators(self) -> tuple[str, ...]:
        """Return the name of the CUDA device that this process already uses."""
        cuda: Any = torch.cuda
        return (cuda.get_device_name(),) if cuda.is_initialized() else ()

    def n_threads(self) -> int:
        """Return the number of threads that PyTorch's operators use."""
        return torch.get_num_threads()

    def read_number(self, value: Any) -> float | DeviceArray | None:
        """Read a number; one on a CUDA device arrives later."""
        return number_of(value, self.cuda)

    def local_shard(self, tensor: torch.Tensor) -> Local | None:
        """Return the part on this rank, out of the wrappers of ``torch.func``, too.

        The placement that DTensors of one kind share is looked up once.
        """
        kind = type(tensor)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            plain = plain_of(tensor)
            return None if plain is tensor else Local(plain)
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
                self._warn_if_incomplete(found.part, shared.device_mesh)
        return found

    def _warn_if_incomplete(self, part: Part, mesh: Any) -> None:
        """Warn, once, if other ranks hold parts and do not write."""
        if self._has_warned or all(
            each[0] != PlacementKind.SHARD for each in part.placements
        ):
            return
        missing = set(mesh.mesh.flatten().tolist()).difference(self._workers)
        if missing:
            self._has_warned = True
            _log.warning(
                "tensors are sharded over ranks that do not all write (%d do not), so "
                "tdbg records the tensors incompletely; use include_workers='all'",
                len(missing),
            )
