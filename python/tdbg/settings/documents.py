"""Reads a YAML or JSON file, which may be hostile: no code, no bombs, no guesses.

A document is refused if it is larger than 256 KiB, repeats a key, or refers to
another part of itself (an alias of YAML can stand for more than fits in memory).

Errors: ConfigurationError, naming the file.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from tdbg.errors import ConfigurationError
from tdbg.settings.place import Place

__all__ = ["MAX_BYTES", "read_document"]

MAX_BYTES = 256 * 1024


def read_document(path: str | os.PathLike[str], place: Place) -> object:
    """What the file says.

    It is JSON if its name ends in ``.json``, or in neither ``.yaml`` nor ``.yml`` and
    it begins with a brace; otherwise YAML.

    Args:
        path: The file, a regular one.
        place: Names it in messages.

    Raises:
        ConfigurationError: If it cannot be read, or is neither YAML nor JSON.
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
        msg = f"is no text in UTF-8: {error}"
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


def _load_json(text: str, place: Place) -> object:
    def mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                msg = f"the key {key!r} stands twice"
                raise place.error(msg)
            found[key] = value
        return found

    def constant(name: str) -> object:
        msg = f"{name} is no JSON"
        raise place.error(msg)

    try:
        return json.loads(text, object_pairs_hook=mapping, parse_constant=constant)
    except json.JSONDecodeError as error:
        msg = f"is no JSON: {error}"
        raise place.error(msg) from error
    except ConfigurationError:
        raise  # Ours, and a ValueError.
    except (ValueError, RecursionError) as error:
        msg = f"is no JSON that can be used: {error}"
        raise place.error(msg) from error


def _load_yaml(text: str, place: Place) -> object:
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
                        msg = f"line {line}: the key {key.value!r} stands twice"
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
        msg = f"is no YAML that can be used: {error}"
        raise place.error(msg) from error
