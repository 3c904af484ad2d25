"""The rows and facts of the loaders of a session.

Thread safety: any thread that iterates over a loader.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import islice
from typing import Any

from tdbg.capture.session import Session
from tdbg.profiler.phase_rows import PhaseRows
from tdbg.run.profile_tables import Phase

__all__ = ["LoaderRows", "enter_loader", "is_inside", "leave_loader", "size_of"]

# A program that makes loaders without end is described so far.
_MAX_LOADERS = 1000
# Parts of a batch that are looked at.
_MAX_PARTS = 16
_inside = threading.local()


class LoaderRows(PhaseRows):
    """Collects what the loaders of a session do.

    Args:
        session: Writes it.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session, "loader", Phase.DATA_WAIT)
        self._described: set[int] = set()

    def describe(self, loader: int, facts: Mapping[str, Any]) -> None:
        """Write the facts of a loader, once."""
        if loader not in self._described and len(self._described) < _MAX_LOADERS:
            self._described.add(loader)
            self.write_fact({"what": "loader", "loader": loader, **facts})

    def started(self, loader: int, epoch: int, began_ns: int, ended_ns: int) -> None:
        """Write how long it took to begin an epoch, workers included."""
        if loader < _MAX_LOADERS and epoch < _MAX_LOADERS:
            self.write_fact(
                {
                    "what": "loader_start",
                    "loader": loader,
                    "epoch": epoch,
                    "start_ns": began_ns,
                    "duration_ns": ended_ns - began_ns,
                }
            )


def is_inside() -> bool:
    """Whether a loader fetches a batch on this thread.

    A loader inside of another one is part of what the outer one costs.
    """
    return getattr(_inside, "depth", 0) > 0


def enter_loader() -> None:
    """Begin to fetch a batch on this thread, until ``leave_loader``."""
    _inside.depth = 1


def leave_loader() -> None:
    """End what ``enter_loader`` began."""
    _inside.depth = 0


def size_of(batch: Any) -> tuple[int, int]:
    """Return how many samples a batch has, and bytes; -1: unknown.

    By the arrays in it: the first one's first extent, and all their bytes.

    Example:
        >>> size_of((np.zeros((4, 3), np.float32), np.zeros(4, np.int64)))
        (4, 80)
    """
    try:
        return _size_of_arrays(batch)
    except Exception:  # Of arrays that are not what they seem.
        return -1, -1


def _size_of_arrays(batch: Any) -> tuple[int, int]:
    samples, n_bytes = -1, -1
    for part in islice(_parts(batch), _MAX_PARTS):
        shape = getattr(part, "shape", None)
        if shape is None:
            continue
        if samples < 0 and len(shape):
            samples = int(shape[0])
        size = getattr(part, "nbytes", None)
        if isinstance(size, int):
            n_bytes = max(n_bytes, 0) + size
    return samples, n_bytes


def _parts(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return batch.values()
    return batch if isinstance(batch, list | tuple) else (batch,)
