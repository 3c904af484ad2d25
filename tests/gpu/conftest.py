"""Where the tests of this folder run: ``make gpu-check``, not ``make test``.

TDBG_GPU_DEVICE is ``cuda``, or ``cpu`` to see on a machine without a GPU that the
tests themselves are right; TDBG_GPU_PATH is ``kernels`` or ``fallback``, what the
tests expect to take the tensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> str:
    """``cuda`` or ``cpu``; that it is missing is a failure."""
    name = os.environ.get("TDBG_GPU_DEVICE", "cuda")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.fail("no CUDA device: set TDBG_GPU_DEVICE=cpu to test the tests")
    return name


@pytest.fixture(scope="session")
def takes_kernels(device: str) -> bool:
    """Whether tensors must be taken by the kernels."""
    return device == "cuda" and os.environ.get("TDBG_GPU_PATH") != "fallback"


@pytest.fixture
def cuda(device: str) -> str:
    """Skips where there is no GPU: streams, graphs, the caching allocator."""
    if device != "cuda":
        pytest.skip("needs a GPU")
    return device


@pytest.fixture(autouse=True)
def nothing_is_left(device: str) -> Iterator[None]:
    """No test leaves an error on the device."""
    yield
    if device == "cuda":
        torch.cuda.synchronize()
