"""Reads objects of a store: many ranges at once, again where that may help.

Thread safety: may be used from any thread.

Errors: those of ``Store``, and CorruptionError for an object that is not what its
manifest says.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TypeVar

from tdbg.errors import CorruptionError, StorageError
from tdbg.remote.stores import Store

__all__ = ["Fetcher"]

AT_ONCE = 16
# What failed with kind "io" is tried again after these seconds.
PAUSES = (0.1, 0.4, 1.0)
_Value = TypeVar("_Value")
_Item = TypeVar("_Item")


class Fetcher:
    """Reads what lies below the URL of a store.

    Args:
        store: Where the objects are.

    Attributes:
        sizes: The size that each object must have, by name, as far as it is known.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sizes: dict[str, int] = {}
        self._versions: dict[str, str] = {}

    def read(self, name: str) -> bytes:
        """An object, whole."""
        return self.again(lambda: self.store.read(name))

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        """Several objects, whole, at once."""
        return self.each(self.read, names)

    def range(self, name: str, offset: int, length: int) -> bytes:
        """Some bytes of an object.

        Raises:
            CorruptionError: If the object has another size than its manifest says, or
                is another one than before.
        """
        return self.again(lambda: self._range(name, offset, length))

    def ranges(self, folder: str, asked: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Ranges of objects in a folder, at once: name, offset, length of each."""

        def one(each: tuple[str, int, int]) -> bytes:
            return self.range(f"{folder}/{each[0]}", each[1], each[2])

        return self.each(one, asked)

    def each(
        self, function: Callable[[_Item], _Value], items: Sequence[_Item]
    ) -> list[_Value]:
        """Call a function with each item, many at once."""
        if len(items) < 2:
            return [function(item) for item in items]
        with futures.ThreadPoolExecutor(min(AT_ONCE, len(items)), "tdbg-fetch") as pool:
            return list(pool.map(function, items))

    def _range(self, name: str, offset: int, length: int) -> bytes:
        try:
            found, version = self.store.read_range(name, offset, offset + length)
        except StorageError as error:
            if error.kind == "missing":
                shown = f"{self.store.url}/{name}"
                msg = f"{shown} was there, as its manifest says, and is not any more"
                raise StorageError(msg, file=shown, kind="missing") from None
            raise
        shown = f"{self.store.url}/{name}"
        if version != self._versions.setdefault(name, version):
            msg = f"{shown} was replaced while it was read; open the run again"
            raise CorruptionError(msg, file=shown, offset=offset, kind="damage")
        if len(found) == length:
            return found
        size = self.store.size(name)
        known = self.sizes.get(name, size)
        if size != known:
            msg = (
                f"{shown} was replaced: it has {size:,} bytes, and its manifest says "
                f"{known:,}"
            )
            raise CorruptionError(msg, file=shown, offset=offset, kind="damage")
        msg = f"{shown}: {len(found):,} of {length:,} bytes came, from {offset:,} on"
        raise StorageError(msg, file=shown, offset=offset, kind="io")

    def again(self, function: Callable[[], _Value]) -> _Value:
        """Call a function, a few times more while the store does not answer."""
        for pause in PAUSES:
            try:
                return function()
            except StorageError as error:
                if error.kind != "io":
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        return function()
