"""Ways of keeping the tensors of many steps and reading them again, one file each.

A module has a class ``Format``; all write the same arrays.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONTENDERS", "Array", "Arrays", "Format", "make"]

Array = NDArray[np.float32]
Arrays = Mapping[str, Array]

#: By name: the module, and the packages whose versions matter.
CONTENDERS = {
    "safetensors": ("safetensors_files", ("safetensors",)),
    "tdbg": ("tdbg_run", ("tdbg",)),
    "torch.save": ("torch_save", ("torch",)),
    "npz": ("npz", ("numpy",)),
    "h5py": ("h5py_file", ("h5py",)),
    "zarr": ("zarr_group", ("zarr",)),
    "arrow IPC": ("arrow_ipc", ("pyarrow",)),
    "Parquet": ("parquet_file", ("pyarrow",)),
    "TensorBoard": ("tensorboard_events", ("tensorboard",)),
    "wandb": ("wandb_history", ("wandb",)),
    "smdebug": ("smdebug_trial", ("smdebug", "torch")),
    "tdbg, smdebug's files": ("tdbg_of_smdebug", ("tdbg", "smdebug")),
}


class Format(Protocol):
    """Writes a run below a folder of its own once; every answer opens it anew."""

    def __init__(self, folder: Path) -> None: ...

    def write(self, steps: Iterator[Arrays]) -> None:
        """Store the steps 0, 1, ..."""

    def names(self) -> set[str]:
        """The names of the tensors."""

    def one(self, step: int, name: str) -> Array:
        """One tensor at one step."""

    def column(self, name: str) -> list[Array]:
        """One tensor at all steps."""

    def everything(self) -> Iterator[Array]:
        """All tensors of all steps, by step and in the order of their names."""


def make(name: str, folder: Path) -> Format:
    """The contender of that name."""
    module = importlib.import_module(f"{__name__}.{CONTENDERS[name][0]}")
    made: Format = module.Format(folder)
    return made
