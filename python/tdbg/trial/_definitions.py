"""The definitions of a writer, each asked for when it is needed first.

Thread safety: none; the trial's lock is held around every use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tdbg._core import Definition

if TYPE_CHECKING:
    from tdbg._core import RunReader

__all__ = ["Definitions", "Ids"]


class Definitions(Mapping[int, Definition]):
    """Definitions by id, the last of each."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._found: dict[int, Definition] = {}
        self._n_listed = 0  # How many of the reader's list are in it.
        self._n_known = reader.n_definitions

    def refresh(self) -> None:
        """Forget what may have changed, if anything has come."""
        known = self._reader.n_definitions
        if known != self._n_known:
            self._n_known = known
            self._found.clear()
            self._n_listed = 0

    def __getitem__(self, number: int) -> Definition:
        found = self._found.get(number)
        if found is None:
            found = self._reader.definition(number)
            if found is None:
                raise KeyError(number)
            self._found[number] = found
        return found

    def __contains__(self, number: object) -> bool:
        if number in self._found:
            return True
        return isinstance(number, int) and self._reader.definition(number) is not None

    def __iter__(self) -> Iterator[int]:
        if self._n_listed != self._n_known:
            for definition in self._reader.definitions():
                self._found[definition.id] = definition
            self._n_listed = self._n_known
        return iter(self._found)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Ids(Mapping[str, list[int]]):
    """Ids of the definitions of each name, in the order in which they came."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._found: dict[str, list[int]] = {}

    def refresh(self) -> None:
        """Forget what may have changed."""
        self._found.clear()

    def __getitem__(self, name: str) -> list[int]:
        found = self._found.get(name)
        if found is None:
            found = self._reader.ids_of(name)
            if not found and "\\" in name:
                # As a name that is not UTF-8 is shown.
                found = _ids_of_shown(self._reader, name)
            if not found:
                raise KeyError(name)
            self._found[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.names())

    def __len__(self) -> int:
        return len(self._reader.names())


def _ids_of_shown(reader: RunReader, name: str) -> list[int]:
    found = (d.id for d in reader.definitions() if d.name == name)
    return list(dict.fromkeys(found))
