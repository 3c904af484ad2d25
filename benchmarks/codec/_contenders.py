"""The codecs that are compared: each compresses an array to pieces and back.

All run on one thread, on chunks of 256 KiB as tdbg's shards have them, but blosc2
and ZipNN, which divide what they are given themselves.  tdbg writes into a buffer
that is there, as its writer does; the others return new bytes, as they do for their
users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import blosc2
import numpy as np
import zstandard
from numpy.typing import NDArray
from zipnn import ZipNN

from tdbg import _core

__all__ = ["Codec", "codecs"]

CHUNK = 256 << 10
WEIGHT, GRADIENT = 1, 3
Bytes = NDArray[np.uint8]


@dataclass
class Codec:
    """One contender: what *compress* returns *decompress* takes.

    *prepare*, which is not timed, makes what *compress* is given.
    """

    compress: Callable[[Bytes], list[bytes | memoryview]]
    decompress: Callable[[list[bytes | memoryview], Bytes], None]
    prepare: Callable[[Bytes], Bytes] = lambda values: values


def chunks(values: Bytes) -> list[Bytes]:
    """Views of *values*, a chunk each."""
    return [values[at : at + CHUNK] for at in range(0, len(values), CHUNK)]


def zstd(level: int, shuffle: int = 1) -> Codec:
    """Frames of chunks, whose bytes are first sorted into *shuffle* planes."""
    compressor = zstandard.ZstdCompressor(level)
    decompressor = zstandard.ZstdDecompressor()

    def compress(values: Bytes) -> list[bytes | memoryview]:
        return [
            compressor.compress(np.ascontiguousarray(c.reshape(-1, shuffle).T))
            for c in chunks(values)
        ]

    def decompress(pieces: list[bytes | memoryview], out: Bytes) -> None:
        for piece, to in zip(pieces, chunks(out), strict=True):
            raw = np.frombuffer(decompressor.decompress(piece), np.uint8)
            to.reshape(-1, shuffle)[:] = raw.reshape(shuffle, -1).T

    return Codec(compress, decompress)


def blosc(codec: blosc2.Codec, shuffle: blosc2.Filter, item: int) -> Codec:
    """blosc2 at level 1, in blocks of its own choice."""

    def compress(values: Bytes) -> list[bytes | memoryview]:
        packed = blosc2.compress2(
            values, codec=codec, clevel=1, typesize=item, filters=[shuffle], nthreads=1
        )
        return [packed]

    def decompress(pieces: list[bytes | memoryview], out: Bytes) -> None:
        out[:] = np.frombuffer(blosc2.decompress2(pieces[0], nthreads=1), np.uint8)

    return Codec(compress, decompress)


def zipnn(dtype: str) -> Codec:
    """ZipNN with its defaults for this element type."""
    inner = ZipNN(input_format="byte", bytearray_dtype=dtype, threads=1)

    def compress(values: Bytes) -> list[bytes | memoryview]:
        return [inner.compress(memoryview(values))]

    def decompress(pieces: list[bytes | memoryview], out: Bytes) -> None:
        out[:] = np.frombuffer(inner.decompress(pieces[0]), np.uint8)

    # It turns the elements where they lie, and does not turn them back.
    return Codec(compress, decompress, prepare=np.copy)


def tdbg(policy: str, dtype: str, base: Bytes | None, n: int) -> Codec:
    """The writer's choice; with *base* as a difference to these values."""
    encoder = _core.TensorCodec(policy, previous_bytes=2 * n)
    space = np.zeros(n + n // 4096 + 4096, np.uint8)
    item = 4 if dtype == "float32" else 2
    role = GRADIENT if base is None else WEIGHT

    def compress(values: Bytes) -> list[bytes | memoryview]:
        length = encoder.encode(values, space, dtype, role)
        return [memoryview(space)[:length]]

    def decompress(pieces: list[bytes | memoryview], out: Bytes) -> None:
        _core.decode_tensor(pieces[0], item, out, b"" if base is None else base)

    if base is not None:
        encoder.encode(base, space, dtype, role)  # The key frame, not timed.
    return Codec(compress, decompress)


def codecs(dtype: str, n: int, base: Bytes | None) -> dict[str, Callable[[], Codec]]:
    """Makers of the contenders for values of *n* bytes, by name."""
    item = 4 if dtype == "float32" else 2
    made: dict[str, Callable[[], Codec]] = {
        "ZipNN": lambda: zipnn(dtype),
        "zstd 1": lambda: zstd(1),
        "zstd 3": lambda: zstd(3),
        "shuffle, zstd 1": lambda: zstd(1, item),
        "blosc2 LZ4, bitshuffle": lambda: blosc(
            blosc2.Codec.LZ4, blosc2.Filter.BITSHUFFLE, item
        ),
        "blosc2 ZSTD, shuffle": lambda: blosc(
            blosc2.Codec.ZSTD, blosc2.Filter.SHUFFLE, item
        ),
        "tdbg auto": lambda: tdbg("auto", dtype, None, n),
        "tdbg max": lambda: tdbg("max", dtype, None, n),
    }
    if base is not None:
        made["tdbg auto, difference"] = lambda: tdbg("auto", dtype, base, n)
        made["tdbg max, difference"] = lambda: tdbg("max", dtype, base, n)
    return made
