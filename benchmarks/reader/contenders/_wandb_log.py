"""The file of an offline run of wandb: a log of LevelDB, with a head of its own.

The log has blocks of 32 KiB.  A record is in one part, or in several where it crosses
the end of a block; each part has a checksum.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from benchmarks._harness import check

__all__ = ["records"]

BLOCK = 1 << 15
# Checksum, length, and which part it is.
HEAD = struct.Struct("<IHB")
WHOLE, LAST = 1, 4
# Of the file; with a magic number and a version it is as long as the head of a part.
IDENT = b":W&B"


def records(file: bytes) -> Iterator[bytes]:
    """The records of a log.

    Raises:
        WrongAnswer: If it is no such file, or a checksum is wrong.
    """
    check(file.startswith(IDENT), "wandb: no file of a run")
    at, parts = HEAD.size, bytearray()
    while at + HEAD.size <= len(file):
        if BLOCK - at % BLOCK < HEAD.size:
            at += BLOCK - at % BLOCK
            continue
        crc, length, kind = HEAD.unpack_from(file, at)
        body = file[at + HEAD.size : at + HEAD.size + length]
        check(zlib.crc32(body, zlib.crc32(bytes([kind]))) == crc, "wandb: checksum")
        at += HEAD.size + length
        parts += body
        if kind in (WHOLE, LAST):
            yield bytes(parts)
            parts.clear()
