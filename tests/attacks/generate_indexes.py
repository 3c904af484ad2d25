"""Write the attacks by an index: a sealed shard and its index, once for each abuse.

Usage: python tests/attacks/generate_indexes.py
The last record of the shard but `step` and `end` is damaged, so that a walk over the
records has something to report: that tells whether a reader walked.  Checksums fit, but
for the one that an attack is about.  indexes.txt says when a reader walks: as it opens
the shard, when it is asked for everything, or never; its answers are those of the
records in each case, or ("told") a problem says that they are fewer.  The bytes are
laid out here by docs/format.md, without tdbg.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python" / "helpers")]
from generate import SALT, definition, event, file_header, record, tensor  # noqa: E402

from reference_reader import masked_crc  # noqa: E402

OPENED, ASKED, NEVER, TOLD = "opened", "asked", "never", "told"
HUGE = (1 << 64) - 1
#: Sizes of the entries, by kind.
SIZES = [0, 16, 1, 4, 104, 48, 24, 4, 32, 24, 4, 48, 4, 8, 24, 120, 64]
STEPPED = (4, 5, 8, 11)
#: Where these do not hold, the table that they are about is read as a whole.
LISTS = (6, 7, 9, 10)
LONG = 14  # Steps of a shard whose columns are worth reading.


def fields(number: int) -> bytes:
    """The twelve fields of a row."""
    return struct.pack("<7Q5d", number, *range(6), *(number / 4 + i for i in range(5)))


class Shard:
    """A sealed shard, and the entries that tell of its records."""

    def __init__(self, n_steps: int = 2) -> None:
        self.bytes = file_header()
        self.n = 0
        self.sections: dict[int, list[bytes]] = {kind: [] for kind in range(1, 17)}
        of = self.sections
        for id_ in (1, 2):
            data = definition(self.n + 1, id_, (8,))
            self.add(data)
            (length,) = struct.unpack_from("<Q", data, 32)
            payload = data[64 : 64 + length]
            of[1].append(struct.pack("<IIQ", id_, length, sum(map(len, of[2]))))
            of[2].append(payload)
            of[3].append(struct.pack("<I", id_ - 1))
        self.add_record(event(self.n + 1, step=-1), 7, 6, -1)
        for step in range(n_steps):
            self.add_step(step)
        self.n_records, self.last_step = self.n, n_steps - 1
        for id_ in (1, 2):
            column = [
                struct.pack("<qIHHII", step, id_, 0, 0, 0, id_ - 1) + fields(step + id_)
                for step in range(n_steps)
            ]
            crc = masked_crc(b"".join(column))
            of[14].append(group(id_, len(of[15]), n_steps, crc))
            of[15] += column
        of[12] = [struct.pack("<I", 1), struct.pack("<I", 2)]
        of[13] = [struct.pack("<Q", 2)]
        of[6], of[9] = [group(1, 0, n_steps)], [group(2, 0, n_steps)]
        of[7] = [struct.pack("<I", i) for i in range(n_steps)]
        of[10] = list(of[7])

    def add(self, data: bytes) -> int:
        """Append a record; returns where it stands."""
        at = len(self.bytes)
        self.bytes += data
        self.n += 1
        return at

    def add_record(self, data: bytes, kind: int, subject: int, step: int) -> None:
        """A record of which the index holds the place only."""
        at = self.add(data)
        length, checked = struct.unpack_from("<QQ", data, 32)
        (crc,) = struct.unpack_from("<I", data, 52)
        entry = struct.pack(
            "<HHIQqQQQIH6x", kind, 0, subject, self.n, step, at, length, checked, crc, 0
        )
        self.sections[16].append(entry + struct.pack("<I", masked_crc(entry)))

    def add_step(self, step: int) -> None:
        """Rows, a tensor, a scalar, a histogram, something damaged, and the step."""
        of = self.sections
        payload = struct.pack("<IIQ", 112, 2, (1 << 12) - 1)
        for id_ in (1, 2):
            payload += struct.pack("<IHHII", id_, 0, 0, 0, 0) + fields(step + id_)
        at = self.add(record(3, self.n + 1, payload, step))
        place = struct.pack("<qQQQ", step, at + 64, len(payload), 2 * step)
        of[11].append(place + struct.pack("<IIII", 2, masked_crc(payload), 0, 0))

        data = tensor(self.n + 1, [(bytes([7 + step]) * 8, 0, 0)], 8, step=step)
        (length,) = struct.unpack_from("<Q", data, 32)
        at = self.add(data)
        place = struct.pack("<qQQQ", step, self.n, at, length)
        of[5].append(place + struct.pack("<IIHHI", 1, 1, 0, 0, 0))

        entry = struct.pack("<IIqdQ", 2, 0, 5, step + 0.5, 0)
        self.add(record(6, self.n + 1, struct.pack("<II", 1, 32) + entry, step))
        of[8].append(struct.pack("<q", step) + entry[:24])

        bins = struct.pack("<IHHHHIHH4xQQ", 1, 0, 0, 1, 0, 2, 5, 6, 1, step + 1)
        data = record(10, self.n + 1, bins, step, subject=1)
        self.add_record(data, 10, 1, step)
        # One that nobody needs; that of the first step is damaged.
        other = record(99, self.n + 1, b"x" * 8)
        self.add(other if step > 0 else other[:-1] + b"\1")

        numbers = struct.pack("<qqq4QIIqq", 10 + step, 20, 30, 3, 3, 0, 0, 1, 0, 4, 5)
        step_record = struct.pack("<IIq", 1, 0, step) + numbers[8:]
        self.add(record(5, self.n + 1, step_record, step, subject=1))
        entry = struct.pack("<qIIq", step, 1, 0, step) + numbers[8:]
        of[4].append(entry + struct.pack("<Q", self.n))


def group(id_: int, first: int, n: int, crc: int = 0) -> bytes:
    """What belongs to a definition."""
    return struct.pack("<IIQQ", id_, crc, first, n)


@dataclasses.dataclass
class Index:
    """An index before it is laid out.

    ``header``, ``footer``, ``entry`` replace fields; ``entry`` of a kind's entry in the
    directory.  ``change`` edits the bytes afterwards; ``end`` what the shard names.
    """

    shard: Shard = dataclasses.field(default_factory=Shard)
    header: dict[str, int] = dataclasses.field(default_factory=dict)
    footer: dict[str, int] = dataclasses.field(default_factory=dict)
    entry: dict[int, dict[str, int]] = dataclasses.field(default_factory=dict)
    order: list[int] = dataclasses.field(default_factory=lambda: list(range(1, 17)))
    change: Callable[[bytes], bytes] = bytes
    end: dict[str, int] = dataclasses.field(default_factory=dict)

    def files(self) -> tuple[bytes, bytes]:
        """The shard, sealed, and its index."""
        length = len(self.shard.bytes) + 128
        magic = b"\x89TDI\r\n\x1a\n"
        h = {"version": 2, "size": 64, "salt": SALT, "number": 1} | self.header
        out = struct.pack(
            "<8sHHIQI32x", magic, h["version"], h["size"], 0, h["salt"], h["number"]
        )
        out += struct.pack("<I", h.get("crc", masked_crc(out)))
        directory = b""
        for kind in self.order:
            data = b"".join(self.shard.sections.get(kind, [b"x" * 8]))
            size = SIZES[kind] if kind < len(SIZES) else 8
            e = {"kind": kind, "size": size, "offset": len(out), "n": len(data) // size}
            e |= {"crc": 0 if kind == 15 else masked_crc(data), "flags": 0}
            e |= {"first": -1, "last": -1}
            if kind in STEPPED:
                e |= {"flags": 1, "first": 0, "last": self.shard.last_step}
            e |= self.entry.get(kind, {})
            directory += struct.pack(
                "<IIQQIIqq16x", e["kind"], e["size"], e["offset"], e["n"], e["crc"],
                e["flags"], e["first"], e["last"],
            )  # fmt: skip
            out += data + bytes(-len(data) % 64)
        f = {"salt": SALT, "length": length, "n": self.shard.n_records}
        f |= {"offset": len(out), "sections": len(self.order)}
        f |= {"crc": masked_crc(directory)} | self.footer
        foot = struct.pack(
            "<8sQQQQII12x", b"TDIFOOT2", f["salt"], f["length"], f["n"], f["offset"],
            f["sections"], f["crc"],
        )  # fmt: skip
        out += directory + foot + struct.pack("<I", f.get("check", masked_crc(foot)))
        end = {"crc": f["crc"], "n": self.shard.n_records} | self.end
        sealed = struct.pack(
            "<QQQqqII16x", 0, end["n"], length, 0, self.shard.last_step, 2, end["crc"]
        )
        sealed = record(12, self.shard.n_records + 1, sealed, -1)
        return self.shard.bytes + sealed, self.change(out)


def patched(
    kind: int, nth: int, at: int, form: str, value: int, n_steps: int = 2
) -> Index:
    """An index in which an entry says something else."""
    index = Index(Shard(n_steps))
    entry = bytearray(index.shard.sections[kind][nth])
    struct.pack_into(form, entry, at, value)
    index.shard.sections[kind][nth] = bytes(entry)
    return index


def entry_patched(at: int, form: str, value: int) -> Index:
    """The same of an entry that has a checksum of its own, which fits."""
    index = patched(16, 0, at, form, value)
    entry = index.shard.sections[16][0][:60]
    index.shard.sections[16][0] = entry + struct.pack("<I", masked_crc(entry))
    return index


def said(section: int, **lies: int) -> Index:
    """The directory says something else of a section."""
    return Index(entry={section: lies})


def other_column() -> Index:
    """A column with a row of another definition, whose checksum fits."""
    index = patched(15, 0, 8, "<I", 2, LONG)
    rows = b"".join(index.shard.sections[15][:LONG])
    index.shard.sections[14][0] = group(1, 0, LONG, masked_crc(rows))
    return index


def descending() -> Index:
    """Tensors whose steps do not ascend, as the directory says they do."""
    index = patched(5, 0, 0, "<q", 1)
    entry = index.shard.sections[5][1]
    index.shard.sections[5][1] = bytes(8) + entry[8:]
    return index


OTHER = Index(header={"salt": SALT + 1}, footer={"salt": SALT + 1}).files()[1]

# name -> (index, when the records are walked)
ATTACKS: dict[str, tuple[Index, str]] = {
    "good": (Index(), NEVER),
    "section_of_a_later_version": (Index(order=[*range(1, 17), 99]), NEVER),
    "empty": (Index(change=lambda _: b""), OPENED),
    "zeros": (Index(change=lambda b: bytes(len(b))), OPENED),
    "header_alone": (Index(change=lambda b: b[:64]), OPENED),
    "cut": (Index(change=lambda b: b[:-64]), OPENED),
    "longer": (Index(change=lambda b: b + bytes(64)), OPENED),
    "of_another_shard": (Index(change=lambda _: OTHER), OPENED),
    "of_another_moment": (Index(end={"crc": 12345}), OPENED),
    "of_no_shard": (Index(end={"crc": 0}), OPENED),
    "header_magic": (Index(change=lambda b: b"\x88" + b[1:]), OPENED),
    "header_version": (Index(header={"version": 3}), OPENED),
    "header_size": (Index(header={"size": 128}), OPENED),
    "header_salt": (Index(header={"salt": SALT + 1}), OPENED),
    "header_number": (Index(header={"number": 2}), OPENED),
    "header_checksum": (Index(header={"crc": 1}), OPENED),
    "footer_salt": (Index(footer={"salt": SALT + 1}), OPENED),
    "footer_length": (Index(footer={"length": 64}), OPENED),
    "footer_records": (Index(footer={"n": 3}), OPENED),
    "footer_offset": (Index(footer={"offset": HUGE - 63}), OPENED),
    "footer_offset_before": (Index(footer={"offset": 64}), OPENED),
    "footer_sections": (Index(footer={"sections": 0xFFFFFFFF}), OPENED),
    "footer_fewer_sections": (Index(footer={"sections": 15}), OPENED),
    "footer_checksum": (Index(footer={"check": 1}), OPENED),
    "directory_checksum": (Index(footer={"crc": 1}), OPENED),
    "kind_zero": (said(9, kind=0), OPENED),
    "kind_twice": (said(9, kind=8), OPENED),
    "entry_size": (said(5, size=64, n=1), OPENED),
    "offset_beyond": (said(15, offset=1 << 40), OPENED),
    "offset_wraps": (said(15, offset=HUGE - 63), OPENED),
    "offset_odd": (said(2, offset=129), OPENED),
    "offset_in_the_header": (said(1, offset=0), OPENED),
    "sections_overlap": (said(3, offset=64), OPENED),
    "sections_descend": (Index(order=[*range(2, 17), 1], entry={1: {"offset": 64}}),
                         OPENED),
    "number_beyond": (said(4, n=1 << 20), OPENED),
    "number_wraps": (said(15, n=HUGE // 120 + 1), OPENED),
    "number_of_postings": (said(7, n=1), OPENED),
    "number_of_columns": (said(15, n=3), TOLD),
    "steps_turned": (said(4, first=1, last=0), OPENED),
    "steps_beyond_the_end": (said(4, last=9), OPENED),
    "steps_of_rows_outside": (said(11, last=0), ASKED),
    "steps_do_not_ascend": (descending(), ASKED),
    **{f"checksum_{kind}": (said(kind, crc=1), OPENED if kind < 4 else
                            NEVER if kind in LISTS else ASKED)
       for kind in (*range(1, 15), 16)},
    "definition_place": (patched(1, 1, 8, "<Q", 1 << 40), OPENED),
    "definition_length": (patched(1, 0, 4, "<I", 0xFFFFFFFF), OPENED),
    "definition_of_another_id": (patched(1, 0, 0, "<I", 7), OPENED),
    "definition_content": (patched(2, 0, 12, "<H", 0xFFFF), OPENED),
    "definition_order_beyond": (patched(3, 0, 0, "<I", 2), OPENED),
    "definition_order_twice": (patched(3, 0, 0, "<I", 1), OPENED),
    "tensor_beyond": (patched(5, 1, 16, "<Q", 1 << 40), ASKED),
    "tensor_length_wraps": (patched(5, 1, 24, "<Q", HUGE), ASKED),
    "tensor_sequence": (patched(5, 1, 8, "<Q", 1), ASKED),
    "tensor_of_another_shard": (patched(5, 0, 36, "<I", 2), ASKED),
    "group_beyond": (patched(6, 0, 16, "<Q", HUGE), NEVER),
    "group_hole": (patched(6, 0, 8, "<Q", 1), NEVER),
    "group_of_fewer": (patched(9, 0, 16, "<Q", 1), NEVER),
    "group_of_another": (patched(6, 0, 0, "<I", 2), NEVER),
    "group_descends": (patched(14, 1, 0, "<I", 1), ASKED),
    "group_overlap": (patched(14, 1, 8, "<Q", 1), ASKED),
    "posting_beyond": (patched(7, 0, 0, "<I", 2), NEVER),
    "posting_twice": (patched(7, 1, 0, "<I", 0), NEVER),
    "rows_beyond": (patched(11, 0, 8, "<Q", 1 << 40), ASKED),
    "rows_length_wraps": (patched(11, 0, 16, "<Q", HUGE), ASKED),
    "rows_first": (patched(11, 1, 24, "<Q", 1), ASKED),
    "rows_number": (patched(11, 1, 32, "<I", 0xFFFFFFFF), ASKED),
    "rows_signature": (patched(11, 1, 44, "<I", 1), ASKED),
    "signature_beyond": (patched(13, 0, 0, "<Q", 1 << 40), ASKED),
    "column_checksum": (patched(15, 1, 40, "<Q", 99, LONG), ASKED),
    "column_of_another": (other_column(), ASKED),
    "record_checksum": (patched(16, 0, 8, "<Q", 1), ASKED),
    "record_place_odd": (entry_patched(24, "<Q", 129), ASKED),
    "record_length": (entry_patched(32, "<Q", 1 << 62), ASKED),
}  # fmt: skip


def main() -> None:
    """Write all files anew."""
    for old in HERE.glob("index/*"):
        old.unlink()
    lines = []
    for name, (index, walked) in ATTACKS.items():
        shard, data = index.files()
        (HERE / "index" / f"{name}.tds").write_bytes(shard)
        (HERE / "index" / f"{name}.tdi").write_bytes(data)
        lines.append(f"{name} {walked}\n")
    (HERE / "indexes.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
