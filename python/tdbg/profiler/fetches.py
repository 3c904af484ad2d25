"""What fetching costs in the workers of a loader, through memory that they share.

A loader makes one small file in memory for its workers.  Each worker writes 32 bytes a
batch into its own part; the loader's process reads them when the batch has arrived,
which is later: nothing is locked, and nothing waits.

Thread safety: one writer for each part, one reader.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

__all__ = ["UNKNOWN", "Fetch", "FetchMemory", "WorkerFetches"]

# A part begins with the worker's process number; then a ring of slots follows.
_HEAD = struct.Struct("<q")
_HEAD_BYTES = 64
# Which batch, and ns: wall time, processor time; and what it drew.
_SLOT = struct.Struct("<qqqq")
_LEAST_SLOTS = 64
_EPOCH_SHIFT = 40
_FOLDER = Path("/dev/shm")  # noqa: S108 - made by mkstemp, and unlinked at once


class Fetch(NamedTuple):
    """What it cost a worker to fetch a batch; -1: unknown.

    Attributes:
        wall_ns: From the request to the batch, with the collate function.
        cpu_ns: Processor time of the worker's thread in it.
    """

    wall_ns: int = -1
    cpu_ns: int = -1


#: Of a batch that nobody measured.
UNKNOWN = Fetch()


def _n_slots(n_ahead: int) -> int:
    """Return how many slots cover batches fetched ahead."""
    return max(_LEAST_SLOTS, 4 * n_ahead)


def _key(epoch: int, number: int) -> int:
    return (epoch << _EPOCH_SHIFT | number) + 1


class FetchMemory:
    """The memory of one loader's workers, in the loader's process.

    Args:
        n_workers: How many workers there are.
        n_ahead: How many batches each may fetch ahead.

    Attributes:
        path: Of the file, which has no name any more once all workers have it.
        n_slots: Batches that each part holds.

    Raises:
        OSError: If there is no room for it.
    """

    def __init__(self, n_workers: int, n_ahead: int) -> None:
        self.n_slots = _n_slots(n_ahead)
        self._part_bytes = _HEAD_BYTES + self.n_slots * _SLOT.size
        folder = _FOLDER if _FOLDER.is_dir() else None
        descriptor, self.path = tempfile.mkstemp(
            prefix=f"tdbg-loader-{os.getpid()}-", dir=folder
        )
        try:
            # Room that is only promised ends whoever writes into it.
            os.posix_fallocate(descriptor, 0, n_workers * self._part_bytes)
            self._memory = mmap.mmap(descriptor, n_workers * self._part_bytes)
        except BaseException:
            self.unlink()
            raise
        finally:
            os.close(descriptor)

    def read(self, worker: int, epoch: int, number: int) -> Fetch:
        """Return what a worker's batch cost, by its number in the epoch."""
        slot = number % self.n_slots
        offset = worker * self._part_bytes + _HEAD_BYTES + slot * _SLOT.size
        key, wall, cpu, _ = _SLOT.unpack_from(self._memory, offset)
        return Fetch(wall, cpu) if key == _key(epoch, number) else UNKNOWN

    def drawn(self, worker: int, epoch: int, number: int) -> int:
        """Return what a worker's fetch drew (``drawn_since``); 0: nothing is known."""
        slot = number % self.n_slots
        offset = worker * self._part_bytes + _HEAD_BYTES + slot * _SLOT.size
        key, _, _, drawn = _SLOT.unpack_from(self._memory, offset)
        return int(drawn) if key == _key(epoch, number) else 0

    def unlink(self) -> None:
        """Take the name of the file away; who has the memory keeps it."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108


class WorkerFetches:
    """A worker's part of the memory, in the worker.

    Args:
        path: The file, as ``FetchMemory`` names it.
        worker: Number of the worker.
        n_slots: As ``FetchMemory`` has it.

    Raises:
        OSError: If there is no such file.
    """

    def __init__(self, path: str, worker: int, n_slots: int) -> None:
        part_bytes = _HEAD_BYTES + n_slots * _SLOT.size
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._offset = worker * part_bytes
        self._n_slots = n_slots
        self._epoch = -1
        self._number = 0
        _HEAD.pack_into(self._memory, self._offset, os.getpid())
        # The last worker that comes takes the name of the file away.
        parts = range(0, len(self._memory), part_bytes)
        if all(_HEAD.unpack_from(self._memory, part)[0] for part in parts):
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108

    def begin_epoch(self) -> None:
        """Count batches from 0 again."""
        self._epoch += 1
        self._number = 0

    @property
    def number(self) -> int:
        """The number of the next batch in its epoch."""
        return self._number

    def write(self, wall_ns: int, cpu_ns: int, drawn: int = 0) -> None:
        """Note what the next batch of the epoch cost, and drew."""
        slot = self._number % self._n_slots
        _SLOT.pack_into(
            self._memory,
            self._offset + _HEAD_BYTES + slot * _SLOT.size,
            _key(self._epoch, self._number),
            wall_ns,
            cpu_ns,
            drawn,
        )
        self._number += 1
