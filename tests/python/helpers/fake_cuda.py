"""A CUDA device that is none: memory, streams and tensors of the fake driver.

tests/cpp/fake_cuda has the driver.  A tensor here is one of PyTorch's on the CPU whose
memory is the fake device's, and whose type says so through DLPack's exchange API.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

_KINDS = {  # dtype -> DLPack's code and bits.
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.int64: (0, 64),
    torch.int32: (0, 32),
    torch.int16: (0, 16),
    torch.int8: (0, 8),
    torch.uint8: (1, 8),
    torch.uint16: (1, 16),
    torch.uint32: (1, 32),
    torch.uint64: (1, 64),
    torch.bool: (6, 8),
    torch.float8_e4m3fn: (10, 8),
    torch.float8_e4m3fnuz: (11, 8),
    torch.float8_e5m2: (12, 8),
    torch.float8_e5m2fnuz: (13, 8),
    torch.float8_e8m0fnu: (14, 8),
}
_CUDA = 2


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("n_dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DLTensor))
_Stream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class _Api(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("tensor_from_object", _Read),
        ("current_stream", _Stream),
    )


class DeviceTensor(torch.Tensor):
    """A tensor whose memory the fake driver gave."""

    device_index: int
    __dlpack_c_exchange_api__: Any


@_Read
def _read(tensor: DeviceTensor, out: Any) -> int:
    raw = out.contents
    shape = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.shape)
    strides = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.stride())
    tensor.kept = (shape, strides)
    raw.data = tensor.data_ptr() or None
    raw.device_type, raw.device_id = _CUDA, tensor.device_index
    raw.n_dimensions = tensor.dim()
    raw.code, raw.bits = _KINDS[tensor.dtype]
    raw.lanes = 1
    raw.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    raw.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    raw.byte_offset = 0
    return 0


class FakeCuda:
    """The fake driver, loaded into this process, with what tests do with it.

    Args:
        library: libfakecuda.so.
    """

    def __init__(self, library: Path) -> None:
        os.environ["TDBG_CUDA_DRIVER"] = str(library)
        # The emulator has kernels of its own: any file will do as their image, so that
        # a build without CUDA is tested too.
        os.environ["TDBG_CUDA_KERNELS"] = str(library)
        self.library = ctypes.CDLL(str(library))
        self.stream: int | None = None
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._memory: list[tuple[int, int]] = []
        self._current_stream = _Stream(self._answer_stream)
        self._api = _Api(1, 3, None, None, None, None, _read, self._current_stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        DeviceTensor.__dlpack_c_exchange_api__ = new(
            ctypes.addressof(self._api), b"dlpack_exchange_api", None
        )
        self.check("cuInit", 0)

    def reset(self, n_devices: int = 1) -> None:
        """Forget failures and delays; REQUIRES that nothing is alive."""
        self.library.fakecuda_reset(n_devices)

    def check(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver."""
        answer = getattr(self.library, name)(*arguments)
        assert answer == 0, (name, answer)

    def fail(self, function: str, nth: int = 0, code: int = 719) -> None:
        """Let the n-th call from now fail; 0: every one."""
        self.library.fakecuda_fail(function.encode(), nth, code)

    def calls(self, function: str) -> int:
        """How often it was called."""
        return int(self.library.fakecuda_calls(function.encode()))

    def hold(self, on: bool) -> None:
        """Let all streams do nothing, or go on."""
        self.library.fakecuda_hold(int(on))

    @contextmanager
    def context(self, device: int) -> Iterator[None]:
        """Make the device's primary context the current one."""
        context = self._contexts.get(device)
        if context is None:
            context = self._contexts[device] = ctypes.c_void_p()
            self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.check("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self.check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def put(self, tensor: torch.Tensor, device: int = 0) -> DeviceTensor:
        """A copy of a tensor in the memory of the device."""
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        address = ctypes.c_uint64()
        size = max(1, flat.numel())
        with self.context(device):
            self.check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self._memory.append((device, address.value))
        buffer = (ctypes.c_uint8 * size).from_address(address.value)
        memory = torch.frombuffer(buffer, dtype=torch.uint8)[: flat.numel()]
        memory.copy_(flat)
        there = memory.view(tensor.dtype).reshape(tensor.shape)
        result = there.as_subclass(DeviceTensor)
        result.device_index = device
        return result

    def close(self) -> None:
        """Free all memory and contexts of the test."""
        for device, address in self._memory:
            with self.context(device):
                self.check("cuMemFree_v2", ctypes.c_uint64(address))
        self._memory.clear()
        for device in self._contexts:
            self.check("cuDevicePrimaryCtxRelease_v2", device)
        self._contexts.clear()

    def _answer_stream(self, _: int, __: int, out: Any) -> int:
        out[0] = self.stream
        return 0
