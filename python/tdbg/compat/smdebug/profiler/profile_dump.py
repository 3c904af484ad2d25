"""Reads what cProfile dumps, without running or trusting any of it.

A dump is a dictionary in the format of Python's module ``marshal``, which may crash
the interpreter on damaged data.  This reader knows the few types that a dump has:
dictionaries, tuples, texts and numbers.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

from tdbg.compat.smdebug.profiler.damage import ProfilerFileError

_REFERENCE: Final = 0x80
_MOST_LEVELS = 32
_LENGTHS: Final = {"z": 1, "Z": 1, "a": 4, "A": 4, "u": 4, "t": 4, "s": 4}
_CONSTANTS: Final = {"N": None, "T": True, "F": False}
_END = object()


def function_stats(path: Path) -> dict[Any, Any]:
    """Return the statistics of functions in a dump, as ``pstats`` holds them.

    By (file, line, function): primitive calls, all calls, seconds in the function,
    seconds below it, and the callers.

    Raises:
        ProfilerFileError: If the file is cut, or is no dump of cProfile.
    """
    try:
        found = _Dump(path.read_bytes()).value()
    except OSError as error:
        raise ProfilerFileError.of(error, "read", path) from error
    except (ValueError, IndexError, struct.error, TypeError) as error:
        msg = f"{path} is cut or no dump of cProfile: {error}"
        raise ProfilerFileError(msg, file=str(path), kind="damage") from error
    is_dump = isinstance(found, dict) and all(map(_is_entry, found.items()))
    if not is_dump:
        msg = f"{path} has no statistics of functions, as cProfile dumps them"
        raise ProfilerFileError(msg, file=str(path), kind="damage")
    stats: dict[Any, Any] = found
    return stats


def _is_entry(entry: tuple[Any, Any]) -> bool:
    key, value = entry
    return (
        _is_function(key)
        and isinstance(value, tuple)
        and len(value) == 5
        and all(isinstance(each, int | float) for each in value[:4])
        and isinstance(value[4], dict)
        and all(map(_is_function, value[4]))
    )


def _is_function(key: Any) -> bool:
    kinds = (str, int, str)
    return (
        isinstance(key, tuple)
        and len(key) == len(kinds)
        and all(map(isinstance, key, kinds))
    )


class _Dump:
    """The bytes of a dump, read from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._known: list[Any] = []

    def value(self, level: int = 0) -> Any:
        """Read one value.

        Raises:
            ValueError: If it is of a type that no dump has.
        """
        if level > _MOST_LEVELS:
            msg = "it is nested too deeply"
            raise ValueError(msg)
        code = self._take(1)[0]
        kind = chr(code & ~_REFERENCE)
        if not code & _REFERENCE:
            return self._of(kind, level)
        place = len(self._known)
        self._known.append(None)
        self._known[place] = found = self._of(kind, level)
        return found

    def _of(self, kind: str, level: int) -> Any:
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _LENGTHS:
            return self._take(self._number(_LENGTHS[kind])).decode("utf-8", "replace")
        if kind == "i":
            return int.from_bytes(self._take(4), "little", signed=True)
        if kind == "l":
            return self._long()
        if kind == "g":
            return struct.unpack("<d", self._take(8))[0]
        if kind in "()":
            length = self._number(1 if kind == ")" else 4)
            self._has(length)
            return tuple(self.value(level + 1) for _ in range(length))
        if kind == "{":
            return self._dictionary(level)
        if kind == "0":
            return _END
        if kind == "r":
            return self._known[self._number(4)]
        msg = f"a value of the unknown type {kind!r} at byte {self._at - 1}"
        raise ValueError(msg)

    def _dictionary(self, level: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while (key := self.value(level + 1)) is not _END:
            found[key] = self.value(level + 1)
        return found

    def _long(self) -> int:
        size = int.from_bytes(self._take(4), "little", signed=True)
        digits = [self._number(2) for _ in range(self._has(abs(size)))]
        found = sum(digit << (15 * place) for place, digit in enumerate(digits))
        return -found if size < 0 else found

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _has(self, n_values: int) -> int:
        if n_values > len(self._data) - self._at:
            msg = f"it ends at byte {len(self._data)}"
            raise ValueError(msg)
        return n_values

    def _take(self, size: int) -> bytes:
        self._has(size)
        self._at += size
        return self._data[self._at - size : self._at]
