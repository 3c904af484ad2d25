"""Write the attack corpus: one small shard per abuse, named after the check that
stops it.

Usage: python tests/attacks/generate.py
Each shard holds an event, the abuse, and another event.  attacks.txt says what a
reader answers: the problem, how many events are left, and what reading the last
tensor says.  The bytes are laid out here by docs/format.md, without tdbg.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import zstandard

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python" / "helpers"))
from reference_reader import masked_crc  # noqa: E402

SALT = 0x1122334455667788
DAMAGE, FOREIGN, UNSUPPORTED, MISSING = "damage", "foreign", "unsupported", "missing"
NONE = "-"
HUGE = (1 << 64) - 1


def file_header(**fields: int) -> bytes:
    """A file header; a field named here replaces the right value."""
    f = {"version": 1, "size": 128, "compatible": 0, "incompatible": 0, "role": 1}
    f |= {"ordinal": 0, "rank": 0, "world": 1, "generation": 1, "number": 1}
    f |= {"created": 0, "first": 1} | fields
    head = b"\x89TDS\r\n\x1a\n" + struct.pack(
        "<HHIII16s16s5IIQqQ20x", f["version"], f["size"], f["compatible"],
        f["incompatible"], f["role"], bytes(range(16)), bytes(range(0xF0, 0x100)),
        f["ordinal"], f["rank"], f["world"], f["generation"], f["number"], 0, SALT,
        f["created"], f["first"],
    )  # fmt: skip
    return head + struct.pack("<I", masked_crc(head))


def record(kind: int, sequence: int, payload: bytes, step: int = 0, **f: int) -> bytes:
    """A record; a field named here replaces the right value."""
    checked = f.get("checked", len(payload))
    head = struct.pack(
        "<4sHHQQqQQIII", b"TDR1", kind, f.get("zero", 0), f.get("salt", SALT),
        sequence, step, f.get("length", len(payload)), checked,
        f.get("subject", 0), f.get("crc", masked_crc(payload[:checked])), 0,
    )  # fmt: skip
    head += struct.pack("<I", f.get("header_crc", masked_crc(head)))
    padding = -len(payload) % 64
    return head + payload + bytes([f.get("padding", 0)]) * padding


def event(sequence: int, text: bytes = b"{}", **fields: int) -> bytes:
    """An event record."""
    head = struct.pack("<HHIqII", 6, 1, 0, 0, fields.pop("said", len(text)), 0)
    return record(7, sequence, head + text, **fields)


def definition(
    sequence: int, id_: int = 1, shape: tuple[int, ...] = (1000,), **f: int
) -> bytes:
    """A definition record of a tensor of bytes."""
    n = f.get("n", len(shape))
    p = struct.pack(
        "<IHHI4H3I", id_, 1, f.get("dtype", 2), f.get("item", 1), n,
        f.get("aliases", 0), f.get("placements", 0), f.get("g", 0),
        f.get("name", 1), f.get("type", 0), 0,
    )  # fmt: skip
    p += struct.pack(f"<{len(shape)}q", *shape) + b"w" * max(1, f.get("real_name", 1))
    return record(2, sequence, p, subject=id_)


def tensor(
    sequence: int,
    chunks: list[tuple[bytes, int, int]],
    raw: int = 1000,
    id_: int = 1,
    **f: int,
) -> bytes:
    """A tensor record; a chunk is its stored bytes, codec and flags."""
    start = (64 + 16 * len(chunks) + 63) & ~63
    p = struct.pack(
        "<IHHIIQQII24x", id_, 0, 0, 0, f.get("chunk_size", 262144), raw,
        f.get("base", 0), f.get("n_chunks", len(chunks)), f.get("start", start),
    )  # fmt: skip
    for stored, codec, flags in chunks:
        crc = f.get("chunk_crc", masked_crc(stored))
        p += struct.pack("<IIBBHI", f.get("stored", len(stored)), crc, codec, flags,
                         0, 0)  # fmt: skip
    p = p.ljust(start, b"\0")
    checked = f.get("checked", len(p))
    p += b"".join(stored for stored, _, _ in chunks)
    step = f.get("step", 0)
    return record(4, sequence, p, step, subject=id_, checked=checked)


def between(*abuse: bytes, last: int = 0, **header: int) -> bytes:
    """The abuse between two events, the second of sequence *last*."""
    middle = b"".join(abuse)
    return file_header(**header) + event(1) + middle + event(last or 2 + len(abuse))


ZEROS = bytes(1000)
FRAME = zstandard.ZstdCompressor(level=1).compress(ZEROS)
SILENT = zstandard.ZstdCompressor(write_content_size=False).compress(ZEROS)
DEFINED = definition(2)


def planes(*stored: bytes, rotated: int = 0, width: int = 4, zero: int = 0) -> bytes:
    """A chunk of codec 3 with these planes."""
    lengths = struct.pack(f"<{len(stored)}I", *map(len, stored))
    return struct.pack("<BBH", rotated, width, zero) + lengths + b"".join(stored)


def sparse(bitmap: bytes, values: bytes, n_values: int, **f: int) -> bytes:
    """A chunk of codec 4 with this bitmap and these values."""
    head = struct.pack(
        "<BBHII", f.get("codec", 0), f.get("width", 4), f.get("zero", 0), n_values,
        f.get("length", len(bitmap)),
    )  # fmt: skip
    return head + bitmap + values


QUARTER = zstandard.compress(bytes(250))  # A plane of the 1000 bytes.
PLANES = planes(*[QUARTER] * 4)
BITMAP = b"\xff" + bytes(31)  # Of 250 elements, the first eight of which are not 0.
SPARSE = sparse(BITMAP, b"\1" * 32, 8)
RAW = [(ZEROS, 0, 0)]


def chunk(stored: bytes, codec: int) -> bytes:
    """A defined tensor of one chunk, which cannot be read."""
    return values(tensor(3, [(stored, codec, 0)]))


def values(*records: bytes) -> bytes:
    """A defined tensor that is listed and cannot be read."""
    return between(DEFINED, *records)


def window(frame: bytes, byte: int) -> bytes:
    """The frame with another window byte."""
    return frame[:5] + bytes([byte]) + frame[6:]


def overlapping() -> bytes:
    """Records within records, each to the end of the file: a quadratic trap."""
    n = 200
    return between(
        b"".join(
            record(3, 2 + i, b"", length=64 * (n - i - 1), checked=64 * (n - i - 1))
            for i in range(n)
        ),
        last=2 + n,
    )


BOMB = zstandard.ZstdCompressor(level=19).compress(bytes(16 << 20))

# name -> (bytes, problem, events left, reading the last tensor)
ATTACKS: dict[str, tuple[bytes, str, int, str]] = {
    "header_magic": (b"\x88" + between()[1:], DAMAGE, 0, NONE),
    "header_checksum": (between().replace(b"\xf0\xf1", b"\xf0\xf2"), DAMAGE, 0, NONE),
    "header_version": (between(version=2), UNSUPPORTED, 0, NONE),
    "header_size": (between(size=64), DAMAGE, 0, NONE),
    "header_features": (between(incompatible=1), UNSUPPORTED, 0, NONE),
    "header_role": (between(role=4), DAMAGE, 0, NONE),
    "header_rank": (between(rank=1), FOREIGN, 0, NONE),
    "header_generation": (between(generation=2), FOREIGN, 0, NONE),
    "header_shard_number": (between(number=2), FOREIGN, 0, NONE),
    "header_first_sequence": (between(first=0), DAMAGE, 0, NONE),
    "header_first_sequence_limit": (between(first=HUGE), DAMAGE, 0, NONE),
    "record_checksum": (between(event(2, header_crc=1)), DAMAGE, 2, NONE),
    "record_salt": (between(event(2, salt=SALT + 1)), DAMAGE, 2, NONE),
    "record_type_zero": (between(record(0, 2, b"")), DAMAGE, 2, NONE),
    "record_reserved": (between(event(2, zero=1)), DAMAGE, 2, NONE),
    "record_limit_of_type": (
        between(event(2, length=1 << 41, checked=1 << 41)), DAMAGE, 2, NONE),
    "record_length_wraps": (
        between(record(99, 2, b"", length=HUGE - 63, checked=HUGE - 63)),
        DAMAGE, 2, NONE),
    "record_beyond_the_file": (
        between(record(99, 2, b"", length=1 << 39, checked=1 << 39)),
        DAMAGE, 2, NONE),
    "record_checked_length": (between(event(2, checked=8)), DAMAGE, 2, NONE),
    "record_payload_checksum": (between(event(2, crc=7)), DAMAGE, 2, NONE),
    "record_padding": (between(event(2, padding=1)), DAMAGE, 2, NONE),
    "record_repeated": (between(event(1), last=2), DAMAGE, 2, NONE),
    "record_sequence_jump": (between(event(9), last=10), MISSING, 3, NONE),
    "record_sequence_limit": (between(event(HUGE), last=2), DAMAGE, 2, NONE),
    "records_overlap": (overlapping(), DAMAGE, 2, NONE),
    "event_length": (between(event(2, said=1000)), DAMAGE, 2, NONE),
    "definition_id_zero": (between(definition(2, id_=0)), DAMAGE, 2, NONE),
    "definition_dimensions": (between(definition(2, shape=(1,) * 65)), DAMAGE, 2, NONE),
    "definition_dimensions_wrap": (between(definition(2, n=0xFFFF)), DAMAGE, 2, NONE),
    "definition_global_dimensions": (between(definition(2, g=2)), DAMAGE, 2, NONE),
    "definition_name_limit": (
        between(definition(2, name=4097, real_name=4097)), DAMAGE, 2, NONE),
    "definition_name_length": (between(definition(2, name=4000)), DAMAGE, 2, NONE),
    "definition_aliases": (between(definition(2, aliases=0xFFFF)), DAMAGE, 2, NONE),
    "definition_placements": (
        between(definition(2, placements=0xFFFF)), DAMAGE, 2, NONE),
    "definition_negative_extent": (
        between(definition(2, shape=(-1,))), DAMAGE, 2, NONE),
    "definition_product": (
        between(definition(2, shape=(1 << 32, 1 << 32))), DAMAGE, 2, NONE),
    "definition_product_behind_zero": (
        between(definition(2, shape=(0, 1 << 32, 1 << 32))), DAMAGE, 2, NONE),
    "definition_item_size": (between(definition(2, item=0)), DAMAGE, 2, NONE),
    "definition_numpy_item_size": (
        between(definition(2, dtype=64, item=0)), DAMAGE, 2, NONE),
    "definition_element_type": (
        between(definition(2, dtype=999)), UNSUPPORTED, 2, NONE),
    "definition_changed": (
        between(DEFINED, definition(3, shape=(7,))), DAMAGE, 2, NONE),
    "rows_number": (
        between(record(3, 2, struct.pack("<IIQ", 16, 0xFFFFFFFF, 0))), DAMAGE, 2, NONE),
    "rows_size": (
        between(record(3, 2, struct.pack("<IIQ", 0, 1, 0))), DAMAGE, 2, NONE),
    "rows_fields": (
        between(record(3, 2, struct.pack("<IIQ", 16, 1, HUGE) + bytes(16))),
        DAMAGE, 2, NONE),
    "scalar_number": (
        between(record(6, 2, struct.pack("<II", 1 << 31, 32))), DAMAGE, 2, NONE),
    "span_size": (
        between(record(8, 2, struct.pack("<II", 1, 4) + bytes(48))), DAMAGE, 2, NONE),
    "histogram_number": (
        between(record(10, 2, struct.pack("<IHHHHI", 1, 0, 0, 1, 0, 1 << 31))),
        DAMAGE, 2, NONE),
    "histogram_keys": (
        between(record(10, 2, struct.pack("<IHHHHIHH4xQQ", 1, 0, 0, 1, 0, 2, 5, 5,
                                          1, 1))), DAMAGE, 2, NONE),
    "samples_number": (
        between(record(13, 2, struct.pack("<4I", 1, 1 << 31, 1 << 31, 0) + bytes(64))),
        DAMAGE, 2, NONE),
    "samples_size": (
        between(record(13, 2, struct.pack("<4I", 1, 2, 7, 0) + bytes(64))),
        DAMAGE, 2, NONE),
    "samples_flags": (
        between(record(13, 2, struct.pack("<4I", 1, 2, 8, 1) + bytes(64))),
        UNSUPPORTED, 2, NONE),
    "tensor_chunk_size_zero": (values(tensor(3, RAW, chunk_size=0)), DAMAGE, 2, NONE),
    "tensor_chunk_size_limit": (
        values(tensor(3, RAW, chunk_size=(16 << 20) + 1)), DAMAGE, 2, NONE),
    "tensor_raw_length_limit": (values(tensor(3, RAW, raw=1 << 62)), DAMAGE, 2, NONE),
    "tensor_chunk_number": (values(tensor(3, RAW, n_chunks=1 << 31)), DAMAGE, 2, NONE),
    "tensor_chunk_number_wraps": (
        values(tensor(3, [], raw=1 << 40, chunk_size=256, n_chunks=0)),
        DAMAGE, 2, NONE),
    "tensor_data_offset": (values(tensor(3, RAW, start=1 << 31)), DAMAGE, 2, NONE),
    "tensor_stored_sum": (values(tensor(3, RAW, stored=500)), DAMAGE, 2, NONE),
    "tensor_stored_more_than_raw": (
        values(tensor(3, RAW, raw=999)), DAMAGE, 2, NONE),
    "tensor_checked_length": (values(tensor(3, RAW, checked=64)), DAMAGE, 2, NONE),
    "tensor_difference_without_base": (
        values(tensor(3, [(FRAME, 1, 1)])), DAMAGE, 2, NONE),
    "values_definition": (values(tensor(3, RAW, id_=9)), NONE, 2, "corruption"),
    "values_raw_length": (
        values(tensor(3, [(ZEROS[1:], 0, 0)], raw=999)), NONE, 2, "corruption"),
    "values_checksum": (values(tensor(3, RAW, chunk_crc=1)), NONE, 2, "corruption"),
    "values_codec": (values(tensor(3, [(ZEROS, 5, 0)])), NONE, 2, "unsupported"),
    "values_flags": (values(tensor(3, [(ZEROS, 0, 2)])), NONE, 2, "unsupported"),
    "values_raw_size": (
        values(tensor(3, [(ZEROS[1:], 0, 0)])), NONE, 2, "corruption"),
    "values_no_frame": (values(tensor(3, [(b"x" * 99, 1, 0)])), NONE, 2, "corruption"),
    "values_frame_cut": (
        values(tensor(3, [(FRAME[:-1], 1, 0)])), NONE, 2, "corruption"),
    "values_frame_longer": (
        values(tensor(3, [(FRAME + b"\0", 1, 0)])), NONE, 2, "corruption"),
    "values_frames": (
        values(tensor(3, [(FRAME + FRAME, 1, 0)])), NONE, 2, "corruption"),
    "values_frame_size": (
        values(tensor(3, [(zstandard.compress(bytes(999)), 1, 0)])),
        NONE, 2, "corruption"),
    "values_frame_is_bomb": (values(tensor(3, [(BOMB, 1, 0)])), NONE, 2, "corruption"),
    "values_window": (
        values(tensor(3, [(window(SILENT, 0xFF), 1, 0)])), NONE, 2, "limit"),
    "values_memory": (
        between(definition(2, shape=(16 << 20,)),
                tensor(3, [(BOMB, 1, 0)], raw=16 << 20, chunk_size=16 << 20)),
        NONE, 2, "limit"),
    "values_planes_form": (chunk(planes(*[QUARTER] * 4, rotated=2), 3),
                           NONE, 2, "corruption"),
    "values_planes_width": (chunk(planes(*[QUARTER] * 3, width=3), 3),
                            NONE, 2, "corruption"),
    "values_planes_number": (chunk(planes(*[QUARTER] * 3, width=4), 3),
                             NONE, 2, "corruption"),
    "values_planes_reserved": (chunk(planes(*[QUARTER] * 4, zero=1), 3),
                               NONE, 2, "corruption"),
    "values_planes_cut": (chunk(PLANES[:-1], 3), NONE, 2, "corruption"),
    "values_planes_longer": (chunk(PLANES + b"\0", 3), NONE, 2, "corruption"),
    "values_planes_without_lengths": (chunk(PLANES[:19], 3), NONE, 2, "corruption"),
    "values_planes_length": (
        chunk(PLANES[:4] + b"\xff" * 4 + PLANES[8:], 3), NONE, 2, "corruption"),
    "values_plane_of_another_size": (
        chunk(planes(QUARTER, QUARTER, QUARTER, zstandard.compress(bytes(251))), 3),
        NONE, 2, "corruption"),
    "values_plane_is_bomb": (
        chunk(planes(QUARTER, QUARTER, QUARTER, BOMB[:249]), 3), NONE, 2, "corruption"),
    "values_plane_window": (
        chunk(planes(QUARTER, QUARTER, QUARTER, window(SILENT, 0xFF)), 3),
        NONE, 2, "limit"),
    "values_sparse_form": (chunk(sparse(BITMAP, b"\1" * 32, 8, codec=4), 4),
                           NONE, 2, "corruption"),
    "values_sparse_width": (chunk(sparse(BITMAP, b"\1" * 32, 8, width=0), 4),
                            NONE, 2, "corruption"),
    "values_sparse_reserved": (chunk(sparse(BITMAP, b"\1" * 32, 8, zero=1), 4),
                               NONE, 2, "corruption"),
    "values_sparse_cut": (chunk(SPARSE[:-1], 4), NONE, 2, "corruption"),
    "values_sparse_longer": (chunk(SPARSE + b"\0", 4), NONE, 2, "corruption"),
    "values_sparse_number": (chunk(sparse(BITMAP, b"\1" * 36, 9), 4),
                             NONE, 2, "corruption"),
    "values_sparse_number_wraps": (
        chunk(sparse(BITMAP, b"\1" * 32, 0x40000008), 4), NONE, 2, "corruption"),
    "values_sparse_bitmap_length": (
        chunk(sparse(BITMAP, b"\1" * 32, 8, length=33), 4), NONE, 2, "corruption"),
    "values_sparse_bitmap_frame": (
        chunk(sparse(zstandard.compress(BITMAP + b"\0"), b"\1" * 32, 8), 4),
        NONE, 2, "corruption"),
    "values_sparse_bits_behind": (
        chunk(sparse(b"\x7f" + bytes(30) + b"\x04", b"\1" * 32, 8), 4),
        NONE, 2, "corruption"),
    "values_sparse_planes": (
        chunk(sparse(BITMAP, planes(*[zstandard.compress(bytes(9))] * 4), 8, codec=3),
              4),
        NONE, 2, "corruption"),
    "values_base_is_missing": (
        values(tensor(3, [(FRAME, 1, 1)], base=77)), NONE, 2, "corruption"),
    "values_base_is_no_tensor": (
        values(tensor(3, [(FRAME, 1, 1)], base=1)), NONE, 2, "corruption"),
    "values_base_is_itself": (
        values(tensor(3, [(FRAME, 1, 1)], base=3)), NONE, 2, "corruption"),
    "values_bases_form_a_ring": (
        values(tensor(3, [(FRAME, 1, 1)], base=4), tensor(4, [(FRAME, 1, 1)], base=3)),
        NONE, 2, "corruption"),
    "values_base_of_another_definition": (
        between(DEFINED, definition(3, id_=2), tensor(4, RAW),
                tensor(5, [(FRAME, 1, 1)], base=4, id_=2)), NONE, 2, "corruption"),
}  # fmt: skip


def main() -> None:
    """Write all files anew."""
    for old in HERE.glob("*.tds"):
        old.unlink()
    lines = []
    for name, (data, problem, n_events, reading) in ATTACKS.items():
        (HERE / f"{name}.tds").write_bytes(data)
        lines.append(f"{name} {problem} {n_events} {reading}\n")
    (HERE / "attacks.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
