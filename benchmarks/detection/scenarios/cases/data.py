"""Datasets whose samples take time, in one of the ways that samples do."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

__all__ = ["Computed", "FromFile", "Sleeping", "Streamed", "Vectors"]

Sample = tuple[torch.Tensor, int]


def sample(index: int) -> Sample:
    """A vector that tells its class."""
    values = torch.zeros(32)
    values[index % 10] = 1.0
    return values, index % 10


class Vectors(Dataset[Sample]):
    """Samples that are in memory."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        return sample(index)


class Sleeping(Vectors):
    """Samples that somebody else fetches: each takes *seconds*."""

    def __init__(self, length: int, seconds: float, slow_worker: float = 0.0) -> None:
        super().__init__(length)
        self._seconds = seconds
        self._slow_worker = slow_worker

    def __getitem__(self, index: int) -> Sample:
        info = get_worker_info()
        is_slow = self._slow_worker and info is not None and info.id == 0
        time.sleep(self._slow_worker if is_slow else self._seconds)
        return sample(index)


class Computed(Vectors):
    """Samples that take *seconds* of a core."""

    def __init__(self, length: int, seconds: float) -> None:
        super().__init__(length)
        self._seconds = seconds

    def __getitem__(self, index: int) -> Sample:
        burn(self._seconds)
        return sample(index)


class FromFile(Vectors):
    """Samples of 8 MiB each in a file, from the disk or from the page cache."""

    SIZE = 8 << 20

    def __init__(self, path: Path, length: int, *, is_direct: bool) -> None:
        super().__init__(length)
        self._path = path
        self._flags = os.O_RDONLY | (os.O_DIRECT if is_direct else 0)

    def __getitem__(self, index: int) -> Sample:
        n = self._path.stat().st_size // self.SIZE
        # O_DIRECT wants memory that begins at a page.
        with mmap.mmap(-1, 1 << 20) as room:
            file = os.open(self._path, self._flags)
            try:
                for part in range(self.SIZE >> 20):
                    os.preadv(file, [room], (index % n) * self.SIZE + (part << 20))
            finally:
                os.close(file)
        return sample(index)


class Streamed(IterableDataset[Sample]):
    """Samples that come one after the other."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        return (sample(i) for i in range(first, self._length, stride))


def burn(seconds: float) -> None:
    """Use that much time of a core."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
