"""A device that is none: tensors of the CPU that tdbg takes for tensors on CUDA.

What is sent arrives when the test says so.  Everything behind PyTorch's calls for
CUDA streams and events is tested with it; those calls themselves are not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from typing import Any

import pytest
import torch
from numpy.typing import NDArray

from tdbg.hooks.pytorch import adapter
from tdbg.hooks.pytorch.device import tensors
from tdbg.hooks.pytorch.device.cuda import CudaTensors


class SentArray:
    """A copy that is there when its device has caught up."""

    def __init__(
        self, device: PretendedDevice, tensor: torch.Tensor, dtype: str
    ) -> None:
        self._device = device
        self._copy = tensor.clone()
        self._dtype = dtype
        self._number = device.n_sent
        self.n_bytes = tensor.numel() * tensor.element_size()

    def is_there(self) -> bool:
        return self._device.is_prompt or self._number < self._device.n_done

    @property
    def array(self) -> NDArray[Any]:
        assert self.is_there(), "read before it was there"
        return self._copy.numpy().view(self._dtype)


class PretendedDevice(CudaTensors):
    """Sends to the memory of the CPU, in order, but not at once."""

    def __init__(self) -> None:
        self.n_sent = 0
        self.n_done = 0
        self.is_prompt = False  # From then on everything is there at once.
        self.is_recording_graph = False
        self.stream: Hashable = "stream 0"

    def catch_up(self) -> None:
        """Everything sent so far arrives."""
        self.n_done = self.n_sent

    def queue(self, tensor: torch.Tensor) -> Hashable:
        return tensor.device, self.stream

    def send(self, tensor: torch.Tensor, dtype: str) -> Any:
        sent = SentArray(self, tensor, dtype)
        self.n_sent += 1
        return sent

    def is_capturing(self) -> bool:
        return self.is_recording_graph

    def on_stream(self, _: Any) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


def pretend(monkeypatch: pytest.MonkeyPatch) -> PretendedDevice:
    """Every tensor of hooks made from now on lies on the device that is returned."""
    device = PretendedDevice()
    monkeypatch.setattr(tensors, "is_on_device", lambda _: True)
    monkeypatch.setattr(adapter, "TYPES", ())
    monkeypatch.setattr(adapter, "CudaTensors", lambda: device)
    return device


def forbid_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever would wait for a device raises."""

    def refuse(*_: Any, **__: Any) -> Any:
        msg = "this waits for the device"
        raise AssertionError(msg)

    for name in ("item", "tolist", "cpu", "numpy", "__float__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    for name in ("__bool__", "__index__", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
