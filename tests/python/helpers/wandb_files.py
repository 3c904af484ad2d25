"""Reads what W&B wrote offline, by its own messages."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["records", "rows"]

BLOCK, HEAD = 32768, 7
WHOLE, LAST = 1, 4


def records(file: Path) -> Iterator[Any]:
    """Yield the messages of a .wandb file, which is a log of LevelDB behind 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = file.read_bytes(), HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:  # No head fits: zeros up to the next block.
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (WHOLE, LAST):
            yield Record.FromString(parts)
            parts = b""


def rows(file: Path) -> list[dict[str, Any]]:
    """Return what was logged, a dictionary for each row."""
    return [
        {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records(file)
        if record.HasField("history")
    ]
