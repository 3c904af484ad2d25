"""The process group of PyTorch: this process's rank, and the store of all ranks.

Thread safety: pure functions; ``TorchStore`` as the store of PyTorch, which locks.

Errors: a store that fails raises RuntimeError.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import distributed

__all__ = ["TorchStore", "process_group_rank", "same_on_all"]

_n_stores: Counter[str] = Counter()  # How many of each name were made.


def process_group_rank() -> tuple[int, int] | None:
    """Rank and number of ranks of the process group; None while there is no group."""
    if not _is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def same_on_all(name: str, value: str) -> str:
    """The value that the first rank to ask gave, where the ranks can agree on it."""
    try:
        return TorchStore(name).settle("value", value)
    except (OSError, RuntimeError):
        return value


class TorchStore:
    """A ``KeyValueStore`` of all ranks: the default store of PyTorch.

    It may be made before ``init_process_group``: until then nothing can be posted,
    and nobody has.

    Args:
        name: What it is for, the same on all ranks: the run's directory as it was
            given.  Where several have one name, the first of each rank are one store,
            the second another, and so on.
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"tdbg/{name}/{_n_stores[name]}"
        _n_stores[name] += 1
        self._asked: Any = None  # An event of the device.

    def post(self, key: str, value: bytes) -> None:
        """Put the value there, for all ranks to see.

        Raises:
            RuntimeError: If there is no store, or it failed.
        """
        store = self._find()
        if store is None:
            msg = "there is no process group"
            raise RuntimeError(msg)
        store.set(self._name(key), value)

    def look(self, key: str) -> bytes | None:
        """The value, or None where nobody has posted one.

        Raises:
            RuntimeError: If the store failed.
        """
        store = self._find()
        if store is None or not store.check([self._name(key)]):
            return None
        return bytes(store.get(self._name(key)))

    def settle(self, key: str, value: str) -> str:
        """The value of whoever was first to settle this: this one, or another's.

        Raises:
            RuntimeError: If there is no store, or it failed.
        """
        store = self._find()
        if store is None:
            msg = "there is no process group"
            raise RuntimeError(msg)
        return bytes(store.compare_set(self._name(key), "", value)).decode()

    def keep_pace(self) -> bool:
        """Wait for what this rank had asked of its device before the last such call.

        Collective operations of a device are far behind those who asked for them;
        so far, and no farther.

        Returns:
            Whether there is such a device.

        Raises:
            RuntimeError: If the device failed.
        """
        cuda: Any = torch.cuda
        if not cuda.is_initialized():
            return False
        if not cuda.is_current_stream_capturing():
            before, self._asked = self._asked, cuda.Event(blocking=True)
            self._asked.record()
            if before is not None:
                before.synchronize()
        return True

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    @staticmethod
    def _find() -> Any:
        """The store; None while there is none."""
        # Looked for each time: a store that is kept outlives its process group.
        if not _is_initialized():
            return None
        # There is no public way to it, and every backend has one.
        find = getattr(distributed.distributed_c10d, "_get_default_store", None)
        return None if find is None else find()


def _is_initialized() -> bool:
    return distributed.is_available() and distributed.is_initialized()
