"""``smdebug.core.collection_manager``: the collections of one hook."""

from __future__ import annotations

from collections.abc import Iterable

from tdbg import collections as native
from tdbg.compat.smdebug.core.collection import BUILT_IN, Collection
from tdbg.compat.smdebug.exceptions import SMDebugError, SMDebugTypeError

__all__ = ["CollectionManager"]


class CollectionManager(native.CollectionRegistry):
    """The collections by name; one that is asked for is made.

    What is captured are those whose names the hook was given.
    """

    built_in = BUILT_IN

    def __init__(self, kind: type[Collection] = Collection) -> None:
        self._kind = kind
        super().__init__()

    @property
    def collections(self) -> dict[str, native.Collection]:
        """All of them by name."""
        return {item.name: item for item in self}

    def get_collections(self) -> dict[str, native.Collection]:
        """All of them by name."""
        return self.collections

    def get(self, name: str, create: bool = True) -> native.Collection:
        """The collection of this name, which is made if need be.

        Raises:
            SMDebugError: If it is not there and not to be made.
        """
        if name not in self._collections:
            if not create:
                msg = f"there is no collection {name!r}"
                raise SMDebugError(msg)
            return self._own(self._make(name))
        return self._collections[name]

    def add(self, collection: object) -> None:
        """Take this collection in, or one of this name.

        It replaces one of the same name, and is captured if the hook was given its
        name.

        Raises:
            SMDebugTypeError: If it is neither.
        """
        if isinstance(collection, str):
            self.get(collection)
        elif isinstance(collection, native.Collection):
            if not isinstance(collection, Collection):
                collection = self._kind.of_native(collection)
            self._own(collection)
        else:
            msg = f"expected a Collection, not {collection!r}"
            raise SMDebugTypeError(msg)

    def unconfigured(self, names: Iterable[str]) -> list[str]:
        """Those of *names* that select nothing so far, sorted."""
        empty = [self._collections[name] for name in names if name in self._collections]
        return sorted(
            item.name
            for item in empty
            if item.name not in self.built_in
            and not item.include_regex
            and not item.tensor_names
        )

    def _make(self, name: str) -> native.Collection:
        return self._kind(name)
