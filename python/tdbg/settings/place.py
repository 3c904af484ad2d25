"""Where a setting stands, in a file or a variable, for messages that name it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tdbg.config import nearest
from tdbg.errors import ConfigurationError

__all__ = ["Place", "Placed", "short"]

_LONGEST = 200  # Characters of a value that a message repeats.


class Place(NamedTuple):
    """A place in a file of settings, or in a variable of the environment.

    Attributes:
        file: Name of the file or variable; empty for settings that came by arguments.
        path: The keys that lead there: ``collections.relu.include_regex[0]``.
    """

    file: str = ""
    path: str = ""

    def key(self, name: str) -> Place:
        """The place of a key of the mapping that is here."""
        return Place(self.file, f"{self.path}.{name}" if self.path else name)

    def item(self, index: int) -> Place:
        """The place of an item of the list that is here."""
        return Place(self.file, f"{self.path}[{index}]")

    def error(self, text: str) -> ConfigurationError:
        """An error about what is here."""
        return ConfigurationError(": ".join(filter(None, (*self, text))))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Errors of what is made from the value here say where it stands."""
        try:
            yield
        except ConfigurationError as error:
            where = ": ".join(filter(None, self))
            if not where:
                raise
            msg = f"{where}: {error}"
            raise type(error)(msg) from error

    def mapping(self, value: object, known: Iterable[str] = ()) -> Mapping[str, Any]:
        """The value, a mapping of texts that has none but the *known* keys.

        Raises:
            ConfigurationError: If it is none, or has others.
        """
        if not isinstance(value, Mapping):
            msg = f"must be a mapping of keys to values, not {short(value)}"
            raise self.error(msg)
        names = list(known)
        for key in value:
            if not isinstance(key, str):
                msg = f"the key {short(key)} must be text: quote it"
                raise self.error(msg)
            if names and key not in names:
                msg = f"unknown key {short(key)}; {nearest(key, names)}"
                raise self.error(msg)
        return value


class Placed(NamedTuple):
    """A value of which somebody else knows whether it can work, and where it stands.

    Attributes:
        value: As it was written.
        place: Whoever makes something of the value does so ``inside`` of it.
    """

    value: Any
    place: Place


def short(value: object) -> str:
    """A value as a message repeats it."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
