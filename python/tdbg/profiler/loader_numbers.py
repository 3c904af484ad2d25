"""The numbers of loaders: one that is made anew goes on with the number of its former.

Programs often make a loader for each epoch.  It is the former one if it is of the same
kind, and nobody uses the former any more.  Two loaders that live at once always have
two numbers.

Thread safety: any thread.  Errors: none.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from typing import Any

__all__ = ["LoaderNumbers", "NumberedLoader"]

# A program that makes loaders of ever new kinds is remembered so far.
_MAX_KINDS = 1000


class NumberedLoader:
    """A number, and the loader that has it now.

    Attributes:
        number: The number.
        epoch: Number of the newest epoch; -1: none has begun.
        ending_ns: How long it took to end the latest epoch, its workers included.
        draws: What is known of what it draws, for who notes it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = -1
        self.ending_ns = 0
        self.draws: Any = None
        self._loader: weakref.ref[Any] | None = None
        self._data: weakref.ref[Any] | None = None
        self._iterators: dict[int, weakref.ref[Any]] = {}

    def belongs_to(self, loader: Any, data: Any) -> None:
        """Be a loader's from now on, which reads *data*."""
        self._loader = weakref.ref(loader)
        self._data = _reference(data)

    def watch(self, iterator: Any) -> None:
        """An iterator is there, and may be asked for batches."""
        self._iterators[id(iterator)] = weakref.ref(iterator)

    def begins(self, iterator: Any) -> int:
        """An epoch begins; return its number."""
        self.watch(iterator)
        self.epoch += 1
        return self.epoch

    def ends(self, iterator: Any) -> None:
        """An iterator is exhausted, and so is a loader that is nothing else."""
        self._iterators.pop(id(iterator), None)
        if self.is_of(iterator):
            self._loader = None

    @property
    def is_in_use(self) -> bool:
        """Whether the loader exists, or somebody iterates over it."""
        if self._loader is not None and self._loader() is not None:
            return True
        living = {
            k: found for k, found in self._iterators.items() if found() is not None
        }
        self._iterators = living
        return bool(living)

    @property
    def is_lost(self) -> bool:
        """Whether the data are gone, so that no loader of them can follow."""
        return self._data is not None and self._data() is None

    def is_of(self, loader: Any) -> bool:
        """Whether it is the number of a loader."""
        return self._loader is not None and self._loader() is loader


def _reference(data: Any) -> weakref.ref[Any] | None:
    """Return a reference; None: lists and the like have none, their kind must do."""
    try:
        return weakref.ref(data)
    except TypeError:
        return None


class LoaderNumbers:
    """Numbers loaders in the order in which they are first iterated over.

    Example:
        >>> class Loader: ...
        >>> numbers, data = LoaderNumbers(), [1, 2]
        >>> first = Loader()
        >>> numbers.of(first, "train", data).number
        0
        >>> second = Loader()
        >>> numbers.of(second, "train", data).number  # The first one lives.
        1
        >>> del first
        >>> third = Loader()
        >>> numbers.of(third, "train", data).number
        0
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._by_loader: dict[int, NumberedLoader] = {}
        self._most_loaders = _MAX_KINDS
        self._by_kind: dict[Hashable, list[NumberedLoader]] = {}

    def new(self) -> NumberedLoader:
        """Return a number for what nothing else is known of."""
        with self._lock:
            return self._new()

    def of(self, loader: Any, kind: Hashable, data: Any) -> NumberedLoader:
        """Return the number of a loader.

        Args:
            loader: The loader.
            kind: What it has in common with one that is made anew.
            data: What it reads, which is the same object again.
        """
        with self._lock:
            found = self._by_loader.get(id(loader))
            if found is None or not found.is_of(loader):
                found = self._former((kind, id(data)))
                found.belongs_to(loader, data)
                self._remember(loader, found)
            return found

    def _remember(self, loader: Any, found: NumberedLoader) -> None:
        if len(self._by_loader) >= self._most_loaders:
            living = {key: x for key, x in self._by_loader.items() if x.is_in_use}
            self._by_loader = living
            self._most_loaders = max(_MAX_KINDS, 2 * len(living))
        self._by_loader[id(loader)] = found

    def _former(self, kind: Hashable) -> NumberedLoader:
        if len(self._by_kind) >= _MAX_KINDS:
            self._by_kind.clear()
        known = self._by_kind.setdefault(kind, [])
        known[:] = [each for each in known if not each.is_lost]
        found = next((each for each in known if not each.is_in_use), None)
        if found is None:
            found = self._new()
            known.append(found)
        return found

    def _new(self) -> NumberedLoader:
        self._next += 1
        return NumberedLoader(self._next - 1)
