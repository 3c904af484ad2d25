"""Tensors on CUDA devices, by PyTorch's own operations.

``CudaTensors`` is a ``DeviceBackend``.  All work goes on the current stream of the
tensor's device: there it reads what the training has written, and memory that the
training frees afterwards is reused only after the read.  Results follow to pinned
memory.  No call waits for a device.

Thread safety: all functions may be called from any thread.

Errors: a call returns None where PyTorch fails (no memory, a device in an error).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.utils.dlpack
from numpy.typing import NDArray

from tdbg.capture.adapter import UnitSummarySpec
from tdbg.hooks.pytorch.device import tensors
from tdbg.hooks.pytorch.device.statistics import row_words, unit_table
from tdbg.hooks.pytorch.device.tensors import is_whole, local_of

__all__ = ["CudaArray", "CudaTensors", "foreign", "number_of", "scale_of"]

_DLPACK_CUDA = 2


class CudaArray:
    """A copy of a tensor on its way to pinned memory.

    Args:
        tensor: A contiguous tensor on a CUDA device; its current stream copies it.
        dtype: NumPy's name of the element type that ``array`` has.
    """

    def __init__(self, tensor: torch.Tensor, dtype: str) -> None:
        self._dtype = dtype
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(tensor.device))
        self.n_bytes = tensor.numel() * tensor.element_size()

    def is_there(self) -> bool:
        """Return whether the copy is complete, without waiting.

        Raises:
            RuntimeError: If the device is in an error.
        """
        # An event must not be asked while the stream records a graph.
        if torch.cuda.is_current_stream_capturing():
            return False
        return bool(self._event.query())

    @property
    def array(self) -> NDArray[Any]:
        """The copy."""
        return self._host.numpy().view(self._dtype)


class CudaTensors:
    """Work on tensors of CUDA devices for which the core has no kernels."""

    def n_bytes(self, tensor: torch.Tensor) -> int:
        """Return the size of the tensor's elements in bytes."""
        return tensor.numel() * tensor.element_size()

    def queue(self, tensor: torch.Tensor) -> Hashable:
        """Return the current stream of the tensor's device."""
        return torch.cuda.current_stream(tensor.device)

    def row(
        self, tensor: torch.Tensor, scale: float | torch.Tensor
    ) -> torch.Tensor | None:
        """Compute the tensor's statistics, as words on its device."""
        return self._attempt(lambda: row_words(tensor, scale))

    def send_rows(
        self, queue: Hashable, rows: Sequence[torch.Tensor]
    ) -> CudaArray | None:
        """Send rows that this stream has computed."""
        with self.on_stream(queue):
            return self._attempt(lambda: self.send(torch.stack(list(rows)), "uint64"))

    def values(self, tensor: torch.Tensor) -> CudaArray | None:
        """Send the elements, in C order."""

        def send() -> CudaArray:
            flat = tensor.detach().reshape(-1).contiguous()
            return self.send(flat.view(torch.uint8), "uint8")

        return self._attempt(send)

    def units(self, tensor: torch.Tensor, spec: UnitSummarySpec) -> CudaArray | None:
        """Send the counts of the units."""

        def send() -> CudaArray:
            return self.send(unit_table(tensor, spec), "u8")

        return self._attempt(send)

    def number(self, tensor: torch.Tensor) -> CudaArray | None:
        """Send the tensor's only element as a float64."""

        def send() -> CudaArray:
            return self.send(tensor.detach().reshape(1).to(torch.float64), "float64")

        return self._attempt(send)

    # ---- what a test without a device replaces -----------------------------------

    def send(self, tensor: torch.Tensor, dtype: str) -> CudaArray:
        """Begin the copy of a contiguous tensor."""
        return CudaArray(tensor, dtype)

    def is_capturing(self) -> bool:
        """Return whether the stream records a graph, so that no result would arrive."""
        return tensors.is_recording()

    def on_stream(self, queue: Any) -> contextlib.AbstractContextManager[Any]:
        """Make this stream the current one."""
        return torch.cuda.stream(queue)

    def _attempt(self, action: Callable[[], Any]) -> Any | None:
        if self.is_capturing():
            return None
        try:
            with torch.no_grad():
                return action()
        except (RuntimeError, NotImplementedError, TypeError):
            return None


def scale_of(divisor: Any) -> float | torch.Tensor:
    """Return the scale of gradients that were multiplied by *divisor*.

    This is a factor, or the divisor itself if it lies on a device: only the device
    reads it then.
    """
    if isinstance(divisor, torch.Tensor) and tensors.is_on_device(divisor):
        return divisor.detach()
    return 1.0 / float(divisor)


def foreign(value: Any) -> Any:
    """Return another library's array on a CUDA device as a tensor of the same memory.

    The array is read by DLPack, or by the CUDA array interface if it has no DLPack.
    The current stream then waits for the array's own.  Anything else is returned as
    it is.
    """
    if isinstance(value, torch.Tensor):
        return value
    try:
        if hasattr(value, "__dlpack_device__"):
            is_cuda = value.__dlpack_device__()[0] == _DLPACK_CUDA
            return torch.utils.dlpack.from_dlpack(value) if is_cuda else value
        if hasattr(value, "__cuda_array_interface__"):
            return torch.as_tensor(value)
    except (RuntimeError, TypeError, ValueError, BufferError):
        return value
    return value


def number_of(value: Any, remote: CudaTensors) -> float | CudaArray | None:
    """Return a number, or one on its way from a device; None if it is not a number."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        local = local_of(value)
        if local is not None:
            if not is_whole(local):
                return None  # ``item`` would return the element of this part.
            value = local.tensor
        if tensors.is_on_device(value):
            return remote.number(value) if value.numel() == 1 else None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
