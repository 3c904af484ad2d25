"""Manifests and block objects: what says which files of a run are in a store.

Implements docs/format.md, "A run in an object store": bytes to values and back; no
store is asked here.

Thread safety: pure functions and immutable values.

Errors: bytes that are not what they should be raise CorruptionError, those of a later
tdbg UnsupportedFeature.  Both name the object.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tdbg.errors import CorruptionError, UnsupportedFeature
from tdbg.run.json_values import load_json

__all__ = [
    "INTERVAL_SECONDS",
    "MANIFESTS",
    "MANIFESTS_KEPT",
    "BlockObject",
    "Manifest",
    "ShippedFile",
    "blocks_name",
    "manifest_name",
    "manifest_number",
    "newest_manifests",
]

MANIFEST_FORMAT = "tdbg-manifest"
BLOCKS_FORMAT = "tdbg-blocks"
VERSION = 1
# The folders of manifests, one of each writer, beside `w` and `ctl`.
MANIFESTS = "m"
# A slow reader finds what it has seen in a listing for so many manifests more.
MANIFESTS_KEPT = 4
INTERVAL_SECONDS = 10
MAX_MANIFEST_BYTES = 64 * 1024
COMMIT_BYTES = 4096
# The commit page says in these bytes whose it is: docs/format.md.
COMMIT_HEADER_BYTES = 64
OPEN, CLOSED, DEAD = STATES = ("open", "closed", "dead")

_FILE_NAME = re.compile(r"\d{6,10}\.(tds|tdi)")
_MANIFEST_NAME = re.compile(r"(\d{10})\.json")
_BLOCKS_NAME = re.compile(r"blocks-\d{10}")


def manifest_name(number: int) -> str:
    """The name of a writer's manifest, in its folder.

    Example:
        >>> manifest_name(12)
        '0000000012.json'
    """
    return f"{number:010d}.json"


def manifest_number(name: str) -> int | None:
    """The number of the manifest of this name; None: it is none.

    Example:
        >>> manifest_number("0000000012.json"), manifest_number("blocks-0000000012")
        (12, None)
    """
    match = _MANIFEST_NAME.fullmatch(name)
    return int(match[1]) if match else None


def blocks_name(number: int) -> str:
    """The name of the block object that a manifest brought."""
    return f"blocks-{number:010d}"


def newest_manifests(paths: Sequence[str]) -> dict[str, int]:
    """The highest number of a manifest of each writer in a listing of ``m/``.

    Args:
        paths: Of all objects below it; what stands before the last two parts of each
            does not matter.

    Example:
        >>> newest_manifests(["b/run/m/train-0-1/0000000012.json", "b/run/m/x"])
        {'train-0-1': 12}
    """
    found: dict[str, int] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        number = manifest_number(name)
        if number is not None:
            writer = folder.rpartition("/")[2]
            found[writer] = max(number, found.get(writer, 0))
    return found


# Raised by a document in which something else stands than an uploader writes.
_UNREADABLE = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """A file of a writer that is in the store.

    Attributes:
        name: In the writer's folder: ``000001.tds`` or ``000001.tdi``.
        size: In bytes.
        ranges: Copies of those of its bytes that a reader needs first: offset, bytes.
    """

    name: str
    size: int
    ranges: tuple[tuple[int, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class BlockObject:
    """Files of a writer, and the bytes that opening them takes."""

    writer: str
    files: tuple[ShippedFile, ...]

    def encode(self) -> bytes:
        """The bytes of the object."""
        head = {
            "format": BLOCKS_FORMAT,
            "version": VERSION,
            "writer": self.writer,
            "files": [
                [f.name, f.size, [[at, len(some)] for at, some in f.ranges]]
                for f in self.files
            ],
        }
        pieces = [some for f in self.files for _, some in f.ranges]
        return b"".join([_to_json(head), *pieces])

    @classmethod
    def decode(cls, content: bytes, name: str) -> BlockObject:
        """What the bytes of the object *name* say.

        Raises:
            CorruptionError: If they are none of a block object, or too few.
            UnsupportedFeature: If a later tdbg wrote them.
        """
        head, _, rest = content.partition(b"\n")
        try:
            document = _document(head, BLOCKS_FORMAT, name)
            return cls(str(document["writer"]), _files_of(document["files"], rest))
        except _UNREADABLE as error:
            raise _damaged(name, error) from error


@dataclass(frozen=True, slots=True)
class Manifest:
    """What of one writer is in the store, at one moment.

    Attributes:
        run: What RUN.json holds.
        writer: The name of its folder: ``train-0-1``.
        number: Of the manifest; grows by one from 1.
        time: When it was made.
        interval: The next comes within so many seconds, while the state is open.
        state: ``open``, ``closed`` or ``dead``.
        commit: The commit page, without the zeros at its end.
        blocks: Name and size of each block object.
        n_files: How many files these list.
        n_bytes: Sizes of these files together.
        uploads: Counts of what the uploader asked of the store.
    """

    run: Mapping[str, Any]
    writer: str
    number: int
    time: dt.datetime
    state: str
    commit: bytes
    blocks: tuple[tuple[str, int], ...] = ()
    n_files: int = 0
    n_bytes: int = 0
    interval: float = INTERVAL_SECONDS
    uploads: Mapping[str, int] = field(default_factory=dict)

    @property
    def run_uuid(self) -> bytes:
        """The identity of the run, which every shard repeats."""
        return uuid.UUID(hex=self.run["uuid"]).bytes

    @property
    def owner(self) -> bytes:
        """Bytes by which this writer differs from every other of the same name."""
        return self.commit[:COMMIT_HEADER_BYTES]

    @property
    def commit_page(self) -> bytes:
        """The commit page, whole: 4096 bytes."""
        return self.commit.ljust(COMMIT_BYTES, b"\0")

    def encode(self) -> bytes:
        """The bytes of the object."""
        time = self.time.astimezone(dt.UTC).isoformat(timespec="milliseconds")
        return _to_json(
            {
                "format": MANIFEST_FORMAT,
                "version": VERSION,
                "run": dict(self.run),
                "writer": self.writer,
                "number": self.number,
                "time": time.replace("+00:00", "Z"),
                "interval": self.interval,
                "state": self.state,
                "commit": base64.b64encode(self.commit).decode(),
                "blocks": [{"name": n, "size": size} for n, size in self.blocks],
                "files": self.n_files,
                "bytes": self.n_bytes,
                "uploads": dict(self.uploads),
            }
        )

    @classmethod
    def decode(cls, content: bytes, name: str) -> Manifest:
        """What the bytes of the object *name* say.

        Raises:
            CorruptionError: If they are none of a manifest.
            UnsupportedFeature: If a later tdbg wrote them.
        """
        try:
            if len(content) > MAX_MANIFEST_BYTES:
                msg = f"longer than {MAX_MANIFEST_BYTES} bytes"
                raise ValueError(msg)
            return _manifest_of(_document(content, MANIFEST_FORMAT, name))
        except _UNREADABLE as error:
            raise _damaged(name, error) from error


def _manifest_of(document: Mapping[str, Any]) -> Manifest:
    run, state = document["run"], document["state"]
    uuid.UUID(hex=run["uuid"])
    time = dt.datetime.fromisoformat(document["time"])
    if state not in STATES or time.tzinfo is None:
        msg = f"state {state!r}, time {document['time']!r}"
        raise ValueError(msg)
    commit = base64.b64decode(document["commit"], validate=True)
    if len(commit) > COMMIT_BYTES:
        msg = f"a commit page of {len(commit)} bytes"
        raise ValueError(msg)
    return Manifest(
        run=run,
        writer=str(document["writer"]),
        number=_count(document["number"]),
        time=time,
        interval=_seconds(document["interval"]),
        state=state,
        commit=commit,
        blocks=tuple(
            (_match(_BLOCKS_NAME, each["name"]), _count(each["size"]))
            for each in document["blocks"]
        ),
        n_files=_count(document["files"]),
        n_bytes=_count(document["bytes"]),
        uploads={str(k): _count(v) for k, v in document["uploads"].items()},
    )


def _files_of(listed: Any, rest: bytes) -> tuple[ShippedFile, ...]:
    at, files = 0, []
    for name, size, places in listed:
        ranges = []
        for offset, length in places:
            some = rest[at : at + _count(length)]
            if len(some) < length or _count(offset) + length > _count(size):
                msg = f"a range of {length} bytes at {offset} of {name}"
                raise ValueError(msg)
            ranges.append((offset, some))
            at += length
        files.append(ShippedFile(_match(_FILE_NAME, name), _count(size), tuple(ranges)))
    if at != len(rest):
        msg = f"{len(rest) - at} bytes too many"
        raise ValueError(msg)
    return tuple(files)


def _document(text: bytes, form: str, name: str) -> dict[str, Any]:
    document = load_json(text)
    if document["format"] != form:
        raise ValueError(document["format"])
    if document["version"] != VERSION:
        msg = f"{name} has version {document['version']!r}; this tdbg reads {VERSION}"
        raise UnsupportedFeature(msg, file=name, kind="unsupported")
    found: dict[str, Any] = document
    return found


def _to_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(value)
    return value


def _seconds(value: Any) -> float:
    found = float(value)
    if not (math.isfinite(found) and found >= 0):
        raise ValueError(value)
    return found


def _match(pattern: re.Pattern[str], text: Any) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(text)
    return text


def _damaged(name: str, error: Exception) -> CorruptionError:
    detail = "" if isinstance(error, binascii.Error) else f": {error}"[:200]
    msg = f"{name} is not what an uploader writes{detail}"
    return CorruptionError(msg, file=name, kind="damage")
