"""The decoders that docs/format.md shows, which a test compares with this file.

They take what a third party has, `zstandard` and NumPy, and believe what they read:
the checksums of the chunks have been compared before.
"""

from __future__ import annotations

import struct

import numpy as np
import zstandard

__all__ = ["planes", "sparse"]


# [begin]
def frame(stored: bytes, n: int) -> np.ndarray:  # n bytes, raw or a zstd frame
    if len(stored) != n:
        stored = zstandard.ZstdDecompressor().decompress(stored, n)
    return np.frombuffer(stored, np.uint8, n)


def planes(stored: bytes, n: int) -> bytes:  # codec 3; n: the chunk's raw length
    rotated, width = stored[0], stored[1]
    elements = np.empty((n // width, width), np.uint8)
    at = 4 + 4 * width
    for i, length in enumerate(struct.unpack_from(f"<{width}I", stored, 4)):
        elements[:, i] = frame(stored[at : at + length], n // width)
        at += length
    if rotated:
        bits = np.unpackbits(elements, axis=1, bitorder="little")
        elements = np.packbits(np.roll(bits, -1, axis=1), axis=1, bitorder="little")
    return elements.tobytes() + stored[at:]


def sparse(stored: bytes, n: int) -> bytes:  # codec 4
    codec, width, _, n_values, length = struct.unpack_from("<BBHII", stored)
    bitmap = frame(stored[12 : 12 + length], (n // width + 7) // 8)
    mask = np.unpackbits(bitmap, count=n // width, bitorder="little").astype(bool)
    tail = len(stored) - n % width
    values = stored[12 + length : tail]
    if codec == 3:
        values = planes(values, n_values * width)
    elements = np.zeros((n // width, width), np.uint8)
    elements[mask] = np.frombuffer(values, np.uint8).reshape(-1, width)
    return elements.tobytes() + stored[tail:]


# [end]
