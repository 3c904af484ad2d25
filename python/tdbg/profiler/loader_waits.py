"""Measures iterators of batches that are not PyTorch's.

Thread safety: as the iterator.

Errors: those of the iterator, and none of tdbg.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tdbg.profiler.fetches import UNKNOWN
from tdbg.profiler.loader_numbers import NumberedLoader
from tdbg.profiler.loader_rows import (
    LoaderRows,
    enter_loader,
    is_inside,
    leave_loader,
    size_of,
)

__all__ = ["BatchWaits", "measure"]

_T = TypeVar("_T")


class BatchWaits:
    """What tdbg knows of an iterator that is not PyTorch's.

    Args:
        iterator: The iterator.
        numbered: Its loader.
        starting_ns: How long it took to begin.
        n_workers: Of the loader, as far as known.
        capacity: Batches that may be ready.
        ends_with: What the iterator raises behind the last batch.
    """

    def __init__(
        self,
        iterator: object,
        numbered: NumberedLoader,
        starting_ns: int = 0,
        n_workers: int = 0,
        capacity: int = 0,
        ends_with: type[Exception] = StopIteration,
    ) -> None:
        self._numbered = numbered
        self._epoch: int | None = None
        numbered.watch(iterator)
        self._starting_ns = starting_ns
        self._size = capacity, n_workers
        self._ends_with = ends_with

    def wait(
        self,
        iterator: object,
        fetch: Callable[[], _T],
        observers: Sequence[LoaderRows],
    ) -> _T:
        """Return the next batch, and measure how long it takes."""
        if self._epoch is None:  # Some iterators are made and never asked.
            self._epoch = self._numbered.begins(iterator)
        for rows in observers:
            rows.enter()
        began = time.monotonic_ns() - self._starting_ns
        self._starting_ns = 0
        try:
            enter_loader()
            batch = fetch()
        except self._ends_with:
            self._numbered.ends(iterator)
            raise
        finally:
            ended = time.monotonic_ns()
            leave_loader()
            for rows in observers:
                rows.leave()
        samples, n_bytes = size_of(batch)
        worker, depth = -1, -1  # Not known of a loader that is not PyTorch's.
        where = self._numbered.number, worker, os.getpid(), self._epoch, depth
        row = ended, *where, *self._size, samples, ended - began, *UNKNOWN, n_bytes
        for rows in observers:
            rows.add(row)
        return batch


def measure(
    batches: Iterator[_T],
    observers: Callable[[], Sequence[LoaderRows]],
    number: Callable[[object], NumberedLoader],
    starting_ns: int = 0,
    n_workers: int = 0,
    capacity: int = 0,
) -> tuple[Iterator[_T], NumberedLoader]:
    """Return an iterator over the same batches that measures them, and its loader.

    Args:
        batches: The iterator.
        observers: Returns who takes the rows now.
        number: Returns its loader, given the iterator that is returned.
        starting_ns: As ``BatchWaits``.
        n_workers: As ``BatchWaits``.
        capacity: As ``BatchWaits``.
    """
    kind = _SizedBatches if hasattr(type(batches), "__len__") else _Batches
    found = kind(batches, observers)
    numbered = number(found)
    found._waits = BatchWaits(found, numbered, starting_ns, n_workers, capacity)
    return found, numbered


class _Batches(Iterator[_T]):
    """An iterator whose batches are measured; its attributes are the iterator's."""

    _waits: BatchWaits

    def __init__(
        self, batches: Iterator[_T], observers: Callable[[], Sequence[LoaderRows]]
    ) -> None:
        self._batches = batches
        self._observers = observers

    def __next__(self) -> _T:
        observers = self._observers()
        if not observers or is_inside():
            return next(self._batches)
        return self._waits.wait(self, self._batches.__next__, observers)

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)


class _SizedBatches(_Batches[_T]):
    """One that has a length."""

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]
