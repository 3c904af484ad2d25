"""Ways of storing the tensors of a step, one file each.

A module has a class ``Store``.  The same arrays are written at every step, so that
what is timed is the storing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONTENDERS", "Arrays", "Store", "make"]

Arrays = Mapping[str, NDArray[np.float32]]

#: By name: the module, and the packages whose versions matter.
CONTENDERS = {
    "raw": ("raw_writev", ()),
    "tdbg": ("tdbg_values", ("tdbg", "torch")),
    "torch.save": ("torch_save", ("torch",)),
    "safetensors": ("safetensors_file", ("safetensors",)),
    "npz": ("npz", ("numpy",)),
    "h5py": ("h5py_file", ("h5py",)),
    "zarr": ("zarr_group", ("zarr",)),
    "arrow IPC": ("arrow_ipc", ("pyarrow",)),
    "TensorBoard": ("tensorboard_events", ("tensorboard",)),
}


class Store(Protocol):
    """Stores steps below a folder of its own.

    Args:
        folder: Exists, and is empty.
        arrays: What to write at each step, by name.
    """

    def __init__(self, folder: Path, arrays: Arrays) -> None: ...

    def write(self, step: int) -> None:
        """Store a step; when it returns, another process can read it."""

    def read(self, step: int) -> Arrays:
        """Read a step back, from the disk or its cache."""

    def forget(self, step: int) -> None:
        """Delete what was stored for a step, if it is a file of its own."""

    def close(self) -> None:
        """Write no more."""


def make(name: str, folder: Path, arrays: Arrays) -> Store:
    """The store of that name."""
    module = importlib.import_module(f"{__name__}.{CONTENDERS[name][0]}")
    store: Store = module.Store(folder, arrays)
    return store
