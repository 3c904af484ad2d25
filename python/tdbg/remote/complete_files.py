"""Which files of a writer are complete, and the bytes of them that opening takes.

Implements docs/format.md, "A run in an object store".

Thread safety: pure functions of what is on the disk.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

__all__ = ["CompleteFile", "complete_files", "opening_bytes"]

_FILE = re.compile(r"(\d{6,10})\.(tds|tdi)")
# docs/format.md: the footer ends an index, and the header begins a shard.
_FOOTER = b"TDIFOOT2"
FOOTER_BYTES = 64
SHARD_HEADER_BYTES = 128
INDEX_HEADER_BYTES = 64
ENTRY_BYTES = 64
# The `end` record, and what stands before it in a small shard.
SHARD_TAIL_BYTES = 256
# A smaller index is copied whole; of a larger one, these sections that fit.
WHOLE_BYTES = 8 * 1024
DEFINITION_SECTIONS = (1, 2, 3)


class CompleteFile(NamedTuple):
    """A file that will not change any more.

    Attributes:
        path: Where it lies.
        size: In bytes.
    """

    path: Path
    size: int


def complete_files(
    folder: Path, *, has_ended: bool, known: Container[str] = ()
) -> list[CompleteFile]:
    """The complete files of a writer, in order: each shard, then its index.

    Args:
        folder: The writer's.
        has_ended: Whether the writer will write no more.
        known: Names of files that are complete, which are not looked at again.
    """
    found = _by_number(folder)
    numbers = sorted(found)
    complete = []
    for number in numbers:
        shard, index = found[number].get("tds"), found[number].get("tdi")
        if index and index.path.name not in known and not _is_index_of(index, shard):
            index = None
        if index is None and number == numbers[-1] and not has_ended:
            break
        complete += [each for each in (shard, index) if each and each.size]
    return complete


def _by_number(folder: Path) -> dict[int, dict[str, CompleteFile]]:
    found: dict[int, dict[str, CompleteFile]] = {}
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return {}
    for path in paths:
        match = _FILE.fullmatch(path.name)
        if match and path.is_file() and not path.is_symlink():
            file = CompleteFile(path, path.stat().st_size)
            found.setdefault(int(match[1]), {})[match[2]] = file
    return found


def _is_index_of(index: CompleteFile, shard: CompleteFile | None) -> bool:
    """Whether an index was written to its end; it names the length of its shard."""
    footer = _read(index.path, index.size - FOOTER_BYTES, FOOTER_BYTES)
    if len(footer) < FOOTER_BYTES or not footer.startswith(_FOOTER):
        return False
    (length,) = struct.unpack_from("<Q", footer, 16)
    return shard is None or bool(length == shard.size)


def opening_bytes(file: CompleteFile) -> tuple[tuple[int, bytes], ...]:
    """Ranges of a file that a reader reads when it opens it: offset, bytes."""
    if file.path.suffix == ".tds":
        places = [(0, SHARD_HEADER_BYTES), (file.size - SHARD_TAIL_BYTES, file.size)]
    elif file.size <= WHOLE_BYTES:
        places = [(0, file.size)]
    else:
        places = _of_index(file)
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((max(0, a), min(b, file.size)) for a, b in places):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return tuple((a, _read(file.path, a, b - a)) for a, b in merged if b > a)


def _of_index(file: CompleteFile) -> list[tuple[int, int]]:
    """Header, directory and footer of an index, and the sections of definitions."""
    footer = _read(file.path, file.size - FOOTER_BYTES, FOOTER_BYTES)
    directory_at, n_entries = struct.unpack_from("<QI", footer, 32)
    places = [(0, INDEX_HEADER_BYTES), (directory_at, file.size)]
    directory = _read(file.path, directory_at, n_entries * ENTRY_BYTES)
    room = WHOLE_BYTES
    for at in range(0, len(directory) - ENTRY_BYTES + 1, ENTRY_BYTES):
        kind, size, offset, n = struct.unpack_from("<IIQQ", directory, at)
        if kind in DEFINITION_SECTIONS and size * n <= room:
            places.append((offset, offset + size * n))
            room -= size * n
    return places


def _read(path: Path, start: int, length: int) -> bytes:
    if start < 0:
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)
