"""Typed arrays as bytes that a page reads without parsing: docs/dashboard.md.

The layout: a little-endian uint32, the length of the header; the header, JSON, padded
with spaces so that what follows begins at a multiple of 8; the arrays, each padded to
a multiple of 8 with zeros.  The header has under ``arrays`` name, dtype, shape and
offset of each, counted from the end of the header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MEDIA_TYPE", "pack", "unpack"]

MEDIA_TYPE = "application/x-tdbg-arrays"
ALIGNMENT = 8
# What a page has a typed array for.
DTYPES = ("float32", "float64", "uint32", "int32", "uint8")


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Bytes of a header and of arrays, each C-contiguous and little-endian.

    Args:
        header: What JSON can hold; ``arrays`` is added to it.
        arrays: float32, float64, uint32, int32 or uint8, by name.

    Raises:
        ValueError: If an array has another dtype.

    Example:
        >>> header, arrays = unpack(pack({"a": 1}, {"x": np.zeros(2, np.float32)}))
        >>> header["a"], arrays["x"].tolist()
        (1, [0.0, 0.0])
    """
    described, bodies, offset = [], [], 0
    for name, array in arrays.items():
        dtype = array.dtype.name
        if dtype not in DTYPES:
            msg = f"array {name!r} has dtype {dtype}; use one of {', '.join(DTYPES)}"
            raise ValueError(msg)
        little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        body = little.tobytes()
        described.append(
            {
                "name": name,
                "dtype": dtype,
                "shape": list(array.shape),
                "offset": offset,
            }
        )
        body += b"\0" * (-len(body) % ALIGNMENT)
        bodies.append(body)
        offset += len(body)
    text = json.dumps({**header, "arrays": described}, allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % ALIGNMENT)
    return b"".join((len(text).to_bytes(4, "little"), text, *bodies))


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of what ``pack`` made.

    Raises:
        ValueError: If the bytes are not that.
    """
    end = 4 + int.from_bytes(content[:4], "little")
    if len(content) < 4 or end > len(content):
        msg = f"{len(content)} bytes hold no header"
        raise ValueError(msg)
    header = json.loads(content[4:end])
    arrays = {}
    for each in header.pop("arrays"):
        dtype = np.dtype(each["dtype"]).newbyteorder("<")
        count = int(np.prod(each["shape"], dtype=np.int64))
        array = np.frombuffer(content, dtype, count, end + each["offset"])
        arrays[each["name"]] = array.reshape(each["shape"])
    return header, arrays
