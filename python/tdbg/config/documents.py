"""Reads YAML and JSON files, which may be hostile.

Nothing in a file is executed.  A document is refused if it is larger than 256 KiB,
repeats a key, or refers to another part of itself (an alias of YAML can stand for more
than fits in memory).

Errors: ConfigurationError, naming the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tdbg.config.messages import nearest, short
from tdbg.errors import ConfigurationError

__all__ = ["MAX_BYTES", "Located", "Location", "read_document"]


class Location(NamedTuple):
    """A place in a file of settings, or in a variable of the environment.

    Attributes:
        file: Name of the file or variable; empty for arguments.
        path: The keys that lead to the place: ``collections.relu.include_regex[0]``.
    """

    file: str = ""
    path: str = ""

    def key(self, name: str) -> Location:
        """Return the place of a key of the mapping at this place."""
        return Location(self.file, f"{self.path}.{name}" if self.path else name)

    def item(self, index: int) -> Location:
        """Return the place of an item of the list at this place."""
        return Location(self.file, f"{self.path}[{index}]")

    def error(self, text: str) -> ConfigurationError:
        """Make an error about the value at this place."""
        return ConfigurationError(": ".join(filter(None, (*self, text))))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Put this place in front of the message of a ConfigurationError."""
        try:
            yield
        except ConfigurationError as error:
            where = ": ".join(filter(None, self))
            if not where:
                raise
            msg = f"{where}: {error}"
            raise type(error)(msg) from error

    def mapping(self, value: object, known: Iterable[str] = ()) -> Mapping[str, Any]:
        """Return the value, which must be a mapping whose keys are text and *known*.

        Raises:
            ConfigurationError: If it is not a mapping, or has an unknown key.
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


class Located(NamedTuple):
    """A value that another package validates, and its place.

    Attributes:
        value: The value as it was written.
        place: Its place; validate inside ``place.inside()``, so that errors name it.
    """

    value: Any
    place: Location


MAX_BYTES = 256 * 1024


def read_document(path: str | os.PathLike[str], place: Location) -> object:
    """Read the document of a file.

    The file is JSON if its name ends in ``.json``, or if the name ends in neither
    ``.yaml`` nor ``.yml`` and the text begins with a brace; otherwise it is YAML.

    Args:
        path: The file, which must be a regular one.
        place: Names the file in messages.

    Raises:
        ConfigurationError: If the file cannot be read, or is neither YAML nor JSON.
    """
    try:
        content = _read(path)
    except OSError as error:
        reason = error.strerror or str(error)
        msg = f"cannot be read: {reason}"
        raise place.error(msg) from error
    if len(content) > MAX_BYTES:
        msg = f"is larger than {MAX_BYTES // 1024} KiB"
        raise place.error(msg)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"is not UTF-8 text: {error}"
        raise place.error(msg) from error
    name = os.fspath(path).lower()
    is_json = name.endswith(".json") or (
        not name.endswith((".yaml", ".yml")) and text.lstrip().startswith("{")
    )
    return _load_json(text, place) if is_json else _load_yaml(text, place)


def _read(path: str | os.PathLike[str]) -> bytes:
    # Opening a pipe would wait for its writer; O_NONBLOCK makes it return at once.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            msg = "not a regular file"
            raise OSError(msg)
        return file.read(MAX_BYTES + 1)


def _load_json(text: str, place: Location) -> object:
    def mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                msg = f"the key {key!r} appears twice"
                raise place.error(msg)
            found[key] = value
        return found

    def constant(name: str) -> object:
        msg = f"{name} is not valid JSON"
        raise place.error(msg)

    try:
        return json.loads(text, object_pairs_hook=mapping, parse_constant=constant)
    except json.JSONDecodeError as error:
        msg = f"is not valid JSON: {error}"
        raise place.error(msg) from error
    except ConfigurationError:
        raise  # Ours, and a ValueError.
    except (ValueError, RecursionError) as error:
        msg = f"is not usable JSON: {error}"
        raise place.error(msg) from error


def _load_yaml(text: str, place: Location) -> object:
    import yaml  # Only here: reading JSON, or no file at all, needs none of it.

    class Loader(yaml.SafeLoader):
        """Plain values only, no aliases, no repeated keys."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event: Any = self.peek_event()  # type: ignore[no-untyped-call]
                line = event.start_mark.line + 1
                msg = f"line {line}: aliases (*name) are not supported"
                raise yaml.YAMLError(msg)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key.value, str):
                    if key.value in seen:
                        line = key.start_mark.line + 1
                        msg = f"line {line}: the key {key.value!r} appears twice"
                        raise yaml.YAMLError(msg)
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        loader = Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError as error:
        msg = "is nested too deeply"
        raise place.error(msg) from error
    except (
        yaml.YAMLError,
        # What its constructors raise for values that do not fit their tags.
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ) as error:
        msg = f"is not usable YAML: {error}"
        raise place.error(msg) from error
