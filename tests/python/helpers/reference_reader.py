"""A reader of one writer directory, written from docs/format.md and nothing else.

It is slow, keeps everything in memory, and shares no code with tdbg.  Its answers
are lines that compare with those of the core; values of tensors are hexadecimal.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

import reference_codecs

__all__ = ["Reader", "masked_crc"]

MAGIC = b"\x89TDS\r\n\x1a\n"
ROLES = {"train": 1, "engine": 2, "profiler": 3}
ITEM_SIZES = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 4, 8: 8, 9: 8, 16: 2, 17: 4}
ITEM_SIZES |= {18: 8, 19: 2, 20: 1, 21: 1, 22: 1, 23: 1, 24: 1, 32: 8, 33: 16}
LIMITS = {1: 64 << 20, 2: 64 << 10, 3: 64 << 20, 4: 1 << 40, 5: 64 << 10}
LIMITS |= {6: 64 << 20, 7: 1 << 20, 8: 64 << 20, 9: 64 << 10, 10: 64 << 20}
LIMITS |= {11: 1 << 30, 12: 64 << 10, 13: 64 << 20}
# A default row: count ... zero, min, max, abs_min, mean, m2, l1, l2.
EMPTY_ROW = struct.pack("<5Q7d", 0, 0, 0, 0, 0, np.inf, -np.inf, np.inf, 0, 0, 0, 0)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of *data*."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _align(n: int) -> int:
    return (n + 63) & ~63


class Bad(Exception):
    """Something is not as the format says."""


def _check(condition: bool, what: str) -> None:
    if not condition:
        raise Bad(what)


@dataclass
class Shard:
    """One file: its bytes, its salt, and how far it was read."""

    name: str
    data: bytes
    salt: int = 0
    sequence: int = 0
    last_step: dict[str, tuple[int, int]] = field(default_factory=dict)

    def position(self, what: str, step: int, n: int) -> int:
        """Count *n* rows or tensors of *step*; return the first one's position."""
        seen_step, at = self.last_step.get(what, (step, 0))
        at = at if seen_step == step else 0
        self.last_step[what] = (step, at + n)
        return at


class Reader:
    """All answers about a writer directory, in `lines`, in the order of the records."""

    def __init__(self, directory: Path) -> None:
        match = re.fullmatch(r"(\w+)-(\d+)-(\d+)", directory.name)
        _check(match is not None, f"{directory}: no writer directory")
        assert match is not None
        self.place = (ROLES[match[1]], int(match[2]), int(match[3]))
        self.run: bytes | None = None
        self.definitions: dict[int, dict[str, Any]] = {}
        self.lines: list[list[Any]] = []
        self.tensors: list[tuple[str, int, bytes, list[Any]]] = []
        self.values: dict[tuple[str, int], bytes] = {}
        for path in sorted(directory.glob("*.tds")):
            self._read_shard(Shard(path.name, path.read_bytes()), int(path.stem))
        self._read_values()

    def _read_shard(self, shard: Shard, number: int) -> None:
        try:
            self._read_header(shard, number)
        except Bad:
            self.lines.append(["refused", shard.name])
            return
        at, end = 128, len(shard.data)
        while at < end:
            try:
                at = self._read_record(shard, at)
            except Bad:
                following = self._find_record(shard, at + 64)
                if following is None:
                    return  # The tail.
                self.lines.append(["damage", shard.name, at, following - at])
                at = following
                shard.sequence = self._header(shard, at)[1] - 1

    def _read_header(self, shard: Shard, number: int) -> None:
        header = shard.data[:128]
        _check(len(header) == 128 and header[:8] == MAGIC, "magic")
        version, size, _, incompatible, role = struct.unpack_from("<HHIII", header, 8)
        _check(struct.unpack_from("<I", header, 124)[0] == masked_crc(header[:124]),
               "checksum")  # fmt: skip
        _check((version, size, incompatible) == (1, 128, 0), "version or features")
        _, rank, _, generation, own = struct.unpack_from("<5I", header, 56)
        _check(((role, rank, generation), own) == (self.place, number), "place")
        self.run = self.run or header[24:40]
        _check(header[24:40] == self.run, "another run")
        shard.salt, _, first = struct.unpack_from("<QqQ", header, 80)
        shard.sequence = first - 1

    def _header(self, shard: Shard, at: int) -> tuple[int, int, int, int, int, int]:
        header = shard.data[at : at + 64]
        _check(len(header) == 64, "short")
        magic, kind, zero, salt, sequence, step, length, checked = struct.unpack_from(
            "<4sHHQQqQQ", header
        )
        _check(magic == b"TDR1" and salt == shard.salt and kind > 0, "no record")
        _, crc, zero2, own = struct.unpack_from("<4I", header, 48)
        _check(own == masked_crc(header[:60]) and zero == zero2 == 0, "checksum")
        _check(length <= LIMITS.get(kind, 1 << 40), "limit")
        if kind == 4:
            _check(checked <= min(length, 128 << 20), "checked length")
        else:
            _check(checked == length, "checked length")
        return kind, sequence, step, length, checked, crc

    def _find_record(self, shard: Shard, at: int) -> int | None:
        for offset in range(at, len(shard.data) - 63, 64):
            try:
                if self._header(shard, offset)[1] > shard.sequence:
                    return offset
            except Bad:
                continue
        return None

    def _read_record(self, shard: Shard, at: int) -> int:
        kind, sequence, step, length, checked, crc = self._header(shard, at)
        end = _align(at + 64 + length)
        _check(end <= len(shard.data), "incomplete")
        payload = shard.data[at + 64 : at + 64 + length]
        _check(masked_crc(payload[:checked]) == crc, "payload")
        _check(not any(shard.data[at + 64 + length : end]), "padding")
        _check(sequence > shard.sequence, "repeated")
        if sequence > shard.sequence + 1 and at > 128:
            self.lines.append(["missing", shard.name, at])
        shard.sequence = sequence
        take: dict[int, Callable[..., None]] = {
            2: self._definition, 3: self._rows, 4: self._tensor, 5: self._step,
            6: self._scalars, 7: self._event, 8: self._spans, 9: self._gap,
            10: self._histogram,
            13: self._samples,
        }  # fmt: skip
        if kind in take:
            take[kind](shard, payload, step, sequence)
        return end

    def _definition(self, _: Shard, p: bytes, *__: int) -> None:
        id_, role, dtype, item = struct.unpack_from("<IHHI", p)
        n, n_aliases, n_placements, g, n_name, n_type, flags = struct.unpack_from(
            "<4H3I", p, 12
        )
        _check(item == ITEM_SIZES.get(dtype, item), "item size")
        at = 32
        extents = []
        for count in (n, g, g):
            extents.append(list(struct.unpack_from(f"<{count}q", p, at)))
            at += 8 * count
        placements = []
        for _i in range(n_placements):
            placements.append(list(struct.unpack_from("<BBHII", p, at)))
            at += 16
        name, type_text = p[at : at + n_name], p[at + n_name : at + n_name + n_type]
        at += n_name + n_type
        aliases = []
        for _i in range(n_aliases):
            (length,) = struct.unpack_from("<I", p, at)
            aliases.append(p[at + 4 : at + 4 + length].decode())
            at += 4 + length
        line = [id_, role, dtype, item, flags, name.decode(), type_text.decode(),
                *extents, placements, aliases]  # fmt: skip
        if self.definitions.get(id_, {}).get("line") != line:
            self.lines.append(["definition", *line])
        raw = item * int(np.prod(extents[0], dtype=object)) if n else item
        self.definitions[id_] = {"line": line, "raw": raw, "item": item}

    def _rows(self, shard: Shard, p: bytes, step: int, _: int) -> None:
        size, n, fields = struct.unpack_from("<IIQ", p)
        first = shard.position("rows", step, n)
        for i in range(n):
            at = 16 + i * size
            definition, call, micro, flags = struct.unpack_from("<IHHI", p, at)
            row = bytearray(EMPTY_ROW)
            at += 16
            for bit in range(64):
                if fields >> bit & 1:
                    if bit < 12:
                        row[8 * bit : 8 * bit + 8] = p[at : at + 8]
                    at += 8
            self.lines.append(
                ["row", step, definition, call, micro, flags, first + i, row.hex()]
            )

    def _tensor(self, shard: Shard, p: bytes, step: int, sequence: int) -> None:
        definition, call, micro = struct.unpack_from("<IHH", p)
        position = shard.position("tensors", step, 1)
        line = ["tensor", step, sequence, definition, call, micro, position]
        self.lines.append(line)
        self.tensors.append((shard.name, sequence, p, line))

    def _read_values(self) -> None:
        # At the end: a definition that is damaged here may stand in a later shard.
        for shard, sequence, payload, line in self.tensors:
            try:
                value = self._values(shard, payload)
                self.values[shard, sequence] = value
                line.append(value.hex())
            except (Bad, zstandard.ZstdError):
                line.append(None)

    def _values(self, shard: str, p: bytes) -> bytes:
        definition, _, _, _, size, raw, base, n, start = struct.unpack_from(
            "<IHHIIQQII", p
        )
        _check(definition in self.definitions, "definition")
        _check(raw == self.definitions[definition]["raw"], "raw length")
        _check(n == -(-raw // size) and start == _align(64 + 16 * n), "chunks")
        out = bytearray()
        for i in range(n):
            stored, crc, codec, flags = struct.unpack_from("<IIBB", p, 64 + 16 * i)
            chunk = p[start : start + stored]
            start += stored
            _check(masked_crc(chunk) == crc and flags in (0, 1), "chunk")
            length = min(size, raw - i * size)
            plain = self._decode(chunk, codec, length, definition)
            if flags & 1:
                _check((shard, base) in self.values, "base")
                before = self.values[shard, base][i * size : i * size + length]
                xor = np.frombuffer(plain, "u1") ^ np.frombuffer(before, "u1")
                plain = xor.tobytes()
            out += plain
        return bytes(out)

    def _decode(self, chunk: bytes, codec: int, length: int, definition: int) -> bytes:
        _check(codec in (0, 1, 2, 3, 4), "codec")
        if codec in (1, 2):
            chunk = zstandard.ZstdDecompressor().decompress(chunk, length)
        elif codec == 3:
            chunk = reference_codecs.planes(chunk, length)
        elif codec == 4:
            chunk = reference_codecs.sparse(chunk, length)
        _check(len(chunk) == length, "length")
        item = self.definitions[definition]["item"]
        if codec == 2:
            whole = length // item * item
            planes = np.frombuffer(chunk[:whole], "u1").reshape(item, -1)
            chunk = planes.T.tobytes() + chunk[whole:]
        return chunk

    def _step(self, _: Shard, p: bytes, step: int, sequence: int) -> None:
        fields = struct.unpack_from("<IIqqqQQQQIIqq", p)
        self.lines.append(["step", step, sequence, *fields[:10], *fields[11:]])

    def _scalars(self, _: Shard, p: bytes, step: int, __: int) -> None:
        n, size = struct.unpack_from("<II", p)
        for i in range(n):
            *fields, value = struct.unpack_from("<IIqQ", p, 8 + i * size)
            self.lines.append(["scalar", step, *fields, f"{value:016x}"])

    def _event(self, _: Shard, p: bytes, step: int, sequence: int) -> None:
        kind, severity, flags, wall, length = struct.unpack_from("<HHIqI", p)
        text = p[24 : 24 + length].decode()
        self.lines.append(["event", step, sequence, kind, severity, flags, wall, text])

    def _spans(self, _: Shard, p: bytes, step: int, __: int) -> None:
        n, size = struct.unpack_from("<II", p)
        for i in range(n):
            fields = struct.unpack_from("<IIqqQIIq", p, 8 + i * size)
            self.lines.append(["span", step, *fields[:6], fields[7]])

    def _gap(self, _: Shard, p: bytes, *__: int) -> None:
        lacking = struct.unpack_from("<QQ", p, 40) if len(p) >= 56 else (0, 0)
        fields = struct.unpack_from("<qqQQII", p)
        self.lines.append(["gap", *fields, *(lacking if lacking[1] else ())])

    def _histogram(self, _: Shard, p: bytes, step: int, __: int) -> None:
        definition, call, micro, scheme, _zero, n = struct.unpack_from("<IHHHHI", p)
        keys = list(struct.unpack_from(f"<{n}H", p, 16))
        counts = list(struct.unpack_from(f"<{n}Q", p, (16 + 2 * n + 7) & ~7))
        self.lines.append(
            ["histogram", step, definition, call, micro, scheme, keys, counts]
        )

    def _samples(self, _: Shard, p: bytes, *__: int) -> None:
        definition, n, size, flags = struct.unpack_from("<4I", p)
        _check(flags == 0 and size >= 8 and n * size <= len(p) - 16, "samples")
        own = self.definitions[definition]["item"] if n else 0
        for i in range(n):
            row = p[16 + i * size :][:own]
            self.lines.append(["samples", definition, row.hex()])
