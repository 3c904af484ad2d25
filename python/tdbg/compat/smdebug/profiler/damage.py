"""Reads the JSON of a profile that may be cut, or not be what its name says.

What is sound is returned, and what is lost is told: nothing that comes from a file is
trusted, and none of it is run.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tdbg.compat.smdebug.exceptions import SMDebugValueError
from tdbg.errors import StorageError

#: A compressed file that unfolds to more is refused.
LARGEST: Final = 2 << 30
# NaN and inf are not below it.
_LARGEST_NUMBER = 2.0**63
#: Seconds since the epoch of the last time that a calendar has: of the year 9999.
LAST_SECOND: Final = 253_402_300_799
_MOST_FLAWS = 20
_BLOCK = 1 << 20


class ProfilerFileError(SMDebugValueError, StorageError):
    """A file of a profile gives nothing; ``file`` has its path."""


@dataclass(frozen=True)
class Damage:
    """The part of a file of a profile that could not be read.

    Attributes:
        path: The file.
        reason: What is wrong, in words, with the first line that is.
        n_read: Events that were read from the file all the same.
        n_flaws: Places at which something was lost.
    """

    path: str
    reason: str
    n_read: int
    n_flaws: int

    def __str__(self) -> str:
        places = "1 place is" if self.n_flaws == 1 else f"{self.n_flaws} places are"
        events = "1 event" if self.n_read == 1 else f"{self.n_read} events"
        return f"{self.path}: {places} damaged ({self.reason}); {events} read"


class Flaws:
    """Collects what is wrong with one file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._first = ""
        self.count = 0

    def add(self, line: int, reason: object) -> None:
        """Note that something was lost at a line, from 1; 0: line unknown."""
        where = f"line {line}: " if line else ""
        self._first = self._first or f"{where}{reason}"
        self.count += 1

    def result(self, n_read: int) -> Damage | None:
        """Return the damage, or None.

        Raises:
            ProfilerFileError: If nothing was read at all.
        """
        if not self.count:
            return None
        damage = Damage(self._path, self._first, n_read, self.count)
        if not n_read:
            msg = f"nothing in {self._path} can be read ({self._first})"
            raise ProfilerFileError(msg, file=self._path, kind="damage")
        return damage


def text_of(path: Path, flaws: Flaws) -> str:
    """Return the text of a file, unfolded if it ends with .gz.

    Raises:
        ProfilerFileError: If it cannot be opened, or unfolds to more than 2 GiB.
    """
    try:
        data = _unfolded(path, flaws) if path.suffix == ".gz" else path.read_bytes()
    except OSError as error:
        raise ProfilerFileError.of(error, "read", path) from error
    return data.decode("utf-8", errors="replace")


def _unfolded(path: Path, flaws: Flaws) -> bytes:
    found: list[bytes] = []
    size = 0
    unfolding = zlib.decompressobj(zlib.MAX_WBITS | 16)
    rest = path.read_bytes()
    try:
        while rest and not unfolding.eof:
            found.append(unfolding.decompress(rest, _BLOCK))
            rest = unfolding.unconsumed_tail
            size += len(found[-1])
            if size > LARGEST:
                msg = f"{path} unfolds to more than 2 GiB: it is no trace"
                raise ProfilerFileError(msg, file=str(path), kind="damage")
        if not unfolding.eof:
            flaws.add(0, "the compressed data is cut")
    except zlib.error as error:
        flaws.add(0, f"the compressed data is damaged: {error}")
    return b"".join(found)


def elements(text: str, flaws: Flaws) -> list[Any]:
    """Return the elements of a JSON array, or of "traceEvents" in an object.

    Those of a cut or damaged text are the ones that are whole.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return list(_whole_elements(text, flaws))
    if isinstance(found, dict):
        found = found.get("traceEvents")
    if isinstance(found, list):
        return found
    flaws.add(1, "it is JSON, but no array of events as smdebug 1.0 writes it")
    return []


def _whole_elements(text: str, flaws: Flaws) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    at = max(text.find('"traceEvents"'), 0)
    at = text.find("[", at) + 1
    if not at:
        flaws.add(1, "it is no JSON")
        return
    while flaws.count <= _MOST_FLAWS:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at < len(text) and text[at] == "]":
            return
        try:
            element, at = decoder.raw_decode(text, at)
            yield element
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, at) + 1
            reason = "the file ends here" if at >= len(text) else _short(error)
            flaws.add(line, reason)
            at = text.find("\n{", at) + 1
            if not at:
                return


def lines(text: str, flaws: Flaws) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line that is JSON; blank ones are not."""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            flaws.add(number, _short(error))


def _short(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "it is nested too deeply" if isinstance(error, RecursionError) else "no JSON"


def number(fields: dict[str, Any], key: str) -> float:
    """Return a finite number of an event.

    Raises:
        ValueError: If there is none.
    """
    value: Any = fields.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) < _LARGEST_NUMBER:
        msg = f"{key!r} is {value!r:.40}, not a number"
        raise ValueError(msg)
    found: float = value
    return found


def word(fields: dict[str, Any], key: str) -> str:
    """Return a text of an event.

    Raises:
        ValueError: If there is none.
    """
    value = fields.get(key)
    if not isinstance(value, str):
        msg = f"{key!r} is {value!r:.40}, not a text"
        raise ValueError(msg)
    return value
