"""The process group of PyTorch: this process's rank, and the store of all ranks.

Thread safety: any thread; the store of PyTorch locks.

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
    """Return the rank and the number of ranks; None while there is no process group."""
    if not _is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def same_on_all(name: str, value: str) -> str:
    """Return the value that the first rank gave, if the ranks can agree on one."""
    try:
        return TorchStore(name).settle("value", value)
    except (OSError, RuntimeError):
        return value


class TorchStore:
    """A ``KeyValueStore`` of all ranks: the default store of PyTorch.

    You may make it before ``init_process_group``.  Until then nothing can be posted
    and nothing is there.

    Args:
        name: The purpose of the store, the same on all ranks: the run's directory as
            the user gave it.  If a rank makes several of one name, its first shares
            a store with the first of the other ranks, its second with the second.
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"tdbg/{name}/{_n_stores[name]}"
        _n_stores[name] += 1
        self._asked: Any = None  # An event of the device.

    def post(self, key: str, value: bytes) -> None:
        """Post a value for all ranks to see.

        Raises:
            RuntimeError: If there is no store, or it failed.
        """
        store = self._find()
        if store is None:
            msg = "there is no process group"
            raise RuntimeError(msg)
        store.set(self._name(key), value)

    def look(self, key: str) -> bytes | None:
        """Return the value, or None if no rank has posted one.

        Raises:
            RuntimeError: If the store failed.
        """
        store = self._find()
        if store is None or not store.check([self._name(key)]):
            return None
        return bytes(store.get(self._name(key)))

    def settle(self, key: str, value: str) -> str:
        """Return the value of the rank that was first to settle this key.

        Raises:
            RuntimeError: If there is no store, or it failed.
        """
        store = self._find()
        if store is None:
            msg = "there is no process group"
            raise RuntimeError(msg)
        return bytes(store.compare_set(self._name(key), "", value)).decode()

    def keep_pace(self) -> bool:
        """Wait for the work that this rank gave its device before the previous call.

        A device runs collective operations long after the program asked for them.
        This bounds the distance.

        Returns:
            Whether the rank has such a device.

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
        """Return the store; None while there is none."""
        # Looked for each time: a store that is kept outlives its process group.
        if not _is_initialized():
            return None
        # There is no public way to it, and every backend has one.
        find = getattr(distributed.distributed_c10d, "_get_default_store", None)
        return None if find is None else find()


def _is_initialized() -> bool:
    return distributed.is_available() and distributed.is_initialized()
