"""Event files: records that hold one tensor each.

A record is a length, a checksum of the length, an ``Event`` message, and a checksum:
smdebug writes that of a constant there, not that of the message.  So nothing in the
file tells whether the elements of a tensor are what was written; what is around them
is checked here.

The wire format of protocol buffers is decoded here, too, as far as events need it: that
is shorter than what it takes to install the library, whose versions exclude each other.

Thread safety: pure functions.

Errors: ``Damage``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tdbg._core import masked_crc32c
from tdbg.importers.smdebug.damage import Damage
from tdbg.importers.smdebug.files import OpenFile
from tdbg.modes import ModeKeys

__all__ = ["MAX_RECORD_BYTES", "StoredTensor", "read_record", "records_of"]

HEADER_BYTES, FOOTER_BYTES = 12, 4
# smdebug 1.0.34: core/tfrecord/record_writer.py, CHECKSUM_MAGIC_BYTES.
_FOOTER = masked_crc32c(b"0x12345678")
# No message of protocol buffers is longer.
MAX_RECORD_BYTES = 2 << 30
MAX_DIMENSIONS = 32
_MODES = {mode.value: mode for mode in ModeKeys}

# TensorFlow's numbers of element types: tensorflow/core/framework/types.proto.
_STRING = 7
_DTYPES: dict[int, Any] = {
    1: np.float32,
    2: np.float64,
    3: np.int32,
    4: np.uint8,
    5: np.int16,
    6: np.int8,
    8: np.complex64,
    9: np.int64,
    10: np.bool_,
    14: ml_dtypes.bfloat16,
    17: np.uint16,
    18: np.complex128,
    19: np.float16,
    22: np.uint32,
    23: np.uint64,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a record holds.

    Attributes:
        name: Of the tensor, as smdebug names it.
        value: The elements, of smdebug's shape and element type.
        step: The global step.
        mode: The mode of the step; None if the record does not say.
        mode_step: Its number in that mode; None likewise.
        wall_ns: When it was written, in ns since 1970 UTC; 0: not known.
    """

    name: str
    value: NDArray[Any]
    step: int
    mode: ModeKeys | None
    mode_step: int | None
    wall_ns: int


def records_of(file: OpenFile) -> Iterator[tuple[int, int]]:
    """Yield where records begin, and their lengths, as the file itself tells."""
    at = 0
    while at < file.size:
        length = HEADER_BYTES + _length_of(file.read(at, HEADER_BYTES)) + FOOTER_BYTES
        if length > file.size - at:
            msg = f"the file ends within the record at byte {at}"
            raise Damage(msg)
        yield at, length
        at += length


def read_record(file: OpenFile, start: int, length: int) -> StoredTensor:
    """Read the record that an index says is there."""
    if start < 0 or not HEADER_BYTES + FOOTER_BYTES <= length <= MAX_RECORD_BYTES:
        msg = f"there is no record of {length} bytes at byte {start}"
        raise Damage(msg)
    if start + length > file.size:
        msg = f"the file has {file.size} bytes; its record ends at {start + length}"
        raise Damage(msg)
    record = memoryview(file.read(start, length))
    if len(record) != length:
        msg = f"only {len(record)} of {length} bytes can be read"
        raise Damage(msg)
    if _length_of(record[:HEADER_BYTES]) != length - HEADER_BYTES - FOOTER_BYTES:
        msg = f"the record at byte {start} is not as long as the index says"
        raise Damage(msg)
    if struct.unpack("<I", record[-FOOTER_BYTES:])[0] != _FOOTER:
        msg = f"the record at byte {start} does not end as smdebug ends it"
        raise Damage(msg)
    return _event(record[HEADER_BYTES:-FOOTER_BYTES])


def _length_of(header: bytes | memoryview) -> int:
    if len(header) < HEADER_BYTES:
        msg = "the file ends within a record"
        raise Damage(msg)
    length, checksum = struct.unpack("<QI", header)
    if checksum != masked_crc32c(bytes(header[:8])):
        msg = "the checksum of a record's length is wrong"
        raise Damage(msg)
    return int(length)


def _event(message: memoryview) -> StoredTensor:
    wall_time, step, summary = 0.0, 0, None
    for number, content in _fields(message):
        if number == 1:
            wall_time = _as_float(content)
        elif number == 2:
            step = _as_integer(content)
        elif number == 5:
            summary = _as_bytes(content)
    if summary is None:
        msg = "a record holds no tensor"
        raise Damage(msg)
    values = [_as_bytes(c) for number, c in _fields(summary) if number == 1]
    if len(values) != 1:
        msg = f"a record holds {len(values)} tensors instead of one"
        raise Damage(msg)
    return _tensor_of(values[0], step, _ns(wall_time))


def _ns(seconds: float) -> int:
    # Beyond this there is no year that a training may have run in.
    return int(seconds * 1e9) if 0 < seconds < 1 << 33 else 0


def _tensor_of(message: memoryview, step: int, wall_ns: int) -> StoredTensor:
    name, value = "", None
    plugins: dict[str, str] = {}
    for number, content in _fields(message):
        if number == 1:
            name = _as_text(content)
        elif number == 8:
            value = _as_bytes(content)
        elif number == 9:
            plugins = _plugins(_as_bytes(content))
    if value is None or not name:
        msg = "a record holds no tensor with a name"
        raise Damage(msg)
    mode, mode_step = plugins.get("mode"), plugins.get("mode_step")
    return StoredTensor(
        name=name,
        value=_array(value, name),
        step=step,
        mode=None if mode is None else _MODES.get(_integer(mode)),
        mode_step=None if mode_step is None else _integer(mode_step),
        wall_ns=wall_ns,
    )


def _plugins(message: memoryview) -> dict[str, str]:
    """Return what smdebug tells of the step beside the tensor."""
    found = {}
    for number, plugin in _fields(message):
        if number == 1:
            content = {n: _as_text(c) for n, c in _fields(_as_bytes(plugin))}
            found[content.get(1, "")] = content.get(2, "")
    return found


def _integer(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        msg = f"{text[:40]!r} stands where a number belongs"
        raise Damage(msg)
    return int(text)


def _array(message: memoryview, name: str) -> NDArray[Any]:
    code, content = 0, memoryview(b"")
    shape: tuple[int, ...] = ()
    texts: list[str] = []
    for number, field in _fields(message):
        if number == 1:
            code = _as_integer(field)
        elif number == 2:
            shape = _shape(_as_bytes(field), name)
        elif number == 4:
            content = _as_bytes(field)
        elif number == 8:
            texts.append(_as_text(field))
    if code == _STRING or (code == 0 and not content):
        return _texts(texts, shape)
    if code not in _DTYPES:
        msg = f"there is no element type {code}"
        raise Damage(msg)
    dtype = np.dtype(_DTYPES[code])
    expected = math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        msg = (
            f"it has {len(content)} bytes; {dtype.name} of shape {shape} has {expected}"
        )
        raise Damage(msg)
    return np.frombuffer(content, dtype).reshape(shape)


def _texts(texts: list[str], shape: tuple[int, ...]) -> NDArray[Any]:
    if shape != (len(texts),):
        msg = f"it has {len(texts)} texts; its shape is {shape}"
        raise Damage(msg)
    return np.array(texts, np.str_)


def _shape(message: memoryview, name: str) -> tuple[int, ...]:
    shape = []
    for number, content in _fields(message):
        if number != 2:
            continue
        size, label = 0, None
        for inner, field in _fields(_as_bytes(content)):
            if inner == 1:
                size = _as_integer(field)
            elif inner == 2:
                label = _as_text(field)
        # smdebug names a dimension by the tensor and the size: it says it twice.
        if size < 0 or label not in (None, f"{name}_{size}"):
            msg = f"a dimension has the size {size} and the name {str(label)[:80]!r}"
            raise Damage(msg)
        shape.append(size)
    if len(shape) > MAX_DIMENSIONS:
        msg = f"it has {len(shape)} dimensions"
        raise Damage(msg)
    return tuple(shape)


# --- The wire format of protocol buffers --------------------------------------

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the numbers of a message's fields, and what they hold."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            msg = "a field of a message has the number 0"
            raise Damage(msg)
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            length, at = _varint(message, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            msg = f"a field of a message has the type {kind}"
            raise Damage(msg)
        if length > end - at:
            msg = f"a field of {length} bytes stands in a message that has {end - at}"
            raise Damage(msg)
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in message[at : at + _MAX_VARINT_BYTES]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    msg = "a number in a message does not end"
    raise Damage(msg)


def _as_integer(value: int | memoryview) -> int:
    """Return a field's content as an integer of 64 bits with a sign."""
    if not isinstance(value, int):
        msg = "a field holds bytes where a number belongs"
        raise Damage(msg)
    return value - (1 << 64) if value >= 1 << 63 else value


def _as_bytes(value: int | memoryview) -> memoryview:
    """Return a field's content as bytes, such as a message within."""
    if isinstance(value, int):
        msg = "a field holds a number where bytes belong"
        raise Damage(msg)
    return value


def _as_text(value: int | memoryview) -> str:
    """Return a field's content as text."""
    try:
        return str(_as_bytes(value), "utf-8")
    except UnicodeDecodeError as error:
        msg = "a text in a message is not UTF-8"
        raise Damage(msg) from error


def _as_float(value: int | memoryview) -> float:
    """Return a field's content as a double."""
    content = _as_bytes(value)
    if len(content) != struct.calcsize("<d"):
        msg = "a field holds no double where one belongs"
        raise Damage(msg)
    number: float = struct.unpack("<d", content)[0]
    return number
