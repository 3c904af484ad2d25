"""Shards of version 1 are read for ever, by two readers that share no code.

tests/corpus/v1 holds small shards and what they say (expected.jsonl, a line per
answer).  Seen to fail when: a byte of a shard is changed; the planes of an element
size are joined in another order; a position restarts at another record.
"""

from __future__ import annotations

import json
import shutil
import struct
import textwrap
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference_reader import Reader
from tdbg import _core
from tdbg.errors import StorageError

CORPUS = Path(__file__).parents[2] / "corpus" / "v1"
CASES = sorted(path.parent for path in CORPUS.glob("*/expected.jsonl"))
ORDER = ["definition", "row", "tensor", "step", "scalar", "event", "span", "gap"]
ORDER += ["histogram", "samples", "refused", "damage", "missing"]
Lines = list[list[Any]]


def writer_directory(case: Path) -> Path:
    """Return the one writer directory of a case."""
    (directory,) = (path for path in case.iterdir() if path.is_dir())
    return directory


def grouped(lines: Lines) -> Lines:
    """Order lines as the core's tables are, each in the order of its records.

    Long values become their hashes, so that the corpus stays small.
    """
    short = [
        [*line[:-1], sha256(line[-1].encode()).hexdigest()]
        if line[0] == "tensor" and len(line[-1] or "") > 64
        else line
        for line in lines
    ]
    return sorted(short, key=_place)


def _place(line: list[Any]) -> tuple[int, int]:
    """Rows of samples go by their table."""
    return ORDER.index(line[0]), line[1] if line[0] == "samples" else 0


def core_lines(directory: Path, *, use_caches: bool) -> Lines:
    """What the core says of a writer directory."""
    reader = _core.RunReader(str(directory), use_caches=use_caches)
    lines: Lines = []
    for d in reader.definitions():
        lines.append(
            ["definition", d.id, d.role, d.dtype, d.item_size, d.flags, d.name]
            + [list(x) for x in (d.shape, d.global_shape, d.global_offset)]
            + [[list(p) for p in d.placements], list(d.aliases)]
        )
    for row in reader.rows():
        names = ("step", "definition", "call", "micro_batch", "flags", "position")
        head = [int(row[name]) for name in names]
        lines.append(["row", *head, row.tobytes()[24:].hex()])
    for i, t in enumerate(reader.tensors()):
        head = [int(t[n]) for n in ("step", "sequence", "definition", "call")]
        head += [int(t["micro_batch"]), int(t["position"])]
        lines.append(["tensor", *head, value(reader, i)])
    for s in reader.steps():
        names = [n for n in s.dtype.names if n not in ("step", "sequence")]
        head = [int(s["step"]), int(s["sequence"])]
        lines.append(["step", *head, *(int(s[n]) for n in names)])
    for s in reader.scalars():
        bits = int(s["value"].view(np.uint64))
        numbers = [int(s[n]) for n in ("step", "definition", "flags", "wall_ns")]
        lines.append(["scalar", *numbers, f"{bits:016x}"])
    for e in reader.events():
        head = [e.step, e.sequence, e.kind, e.severity, 0, e.wall_ns]
        lines.append(["event", *head, e.json.decode()])
    lines += [["span", *(int(x) for x in s)] for s in reader.spans().tolist()]
    # What an abandoned shard lacks is told by later writers only.
    gaps = [[int(x) for x in g] for g in reader.gaps().tolist()]
    lines += [["gap", *(g if g[-1] else g[:-2])] for g in gaps]
    for i, h in enumerate(reader.histograms()):
        numbers = [int(h[n]) for n in ("step", "definition", "call", "micro_batch")]
        keys, counts = reader.read_histogram(i)
        lines.append(["histogram", *numbers, 1, keys.tolist(), counts.tolist()])
    lines += samples_lines(reader)
    return grouped(lines + problem_lines(reader))


def samples_lines(reader: _core.RunReader) -> Lines:
    """The rows of each table."""
    lines: Lines = []
    for definition in reader.definitions():
        found, _ = reader.read_samples(definition.id)
        rows = found.reshape(-1, max(definition.item_size, 1))
        lines += [["samples", definition.id, row.tobytes().hex()] for row in rows]
    return lines


def value(reader: _core.RunReader, index: int) -> str | None:
    """The values of a tensor in hexadecimal, or nothing when they are refused."""
    try:
        return reader.read_tensor(index).tobytes().hex()
    except StorageError:
        return None


def problem_lines(reader: _core.RunReader) -> Lines:
    """Problems as the reference reader names them; it knows no torn tail."""
    lines: Lines = []
    for p in reader.problems():
        if p.message.startswith("shard refused"):
            lines.append(["refused", p.file])
        elif p.kind == "damage":
            lines.append(["damage", p.file, p.offset, p.length])
        elif p.kind == "missing":
            lines.append(["missing", p.file, p.offset])
    return lines


def reference_lines(directory: Path) -> Lines:
    """What the reference says, with the types of elements by their names."""
    return grouped(Reader(directory).lines)


def with_type_names(lines: Lines) -> Lines:
    """Replace code and text of an element type by the name that the core gives."""
    codes = {0: "", 1: "bool", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16"}
    codes |= {6: "uint32", 7: "int32", 8: "uint64", 9: "int64", 16: "float16"}
    codes |= {17: "float32", 18: "float64", 19: "bfloat16", 20: "float8_e4m3fn"}
    codes |= {21: "float8_e5m2", 22: "float8_e4m3fnuz", 23: "float8_e5m2fnuz"}
    codes |= {24: "float8_e8m0fnu", 32: "complex64", 33: "complex128"}
    return [
        [*line[:3], codes.get(line[3], line[7]), *line[4:7], *line[8:]]
        if line[0] == "definition"
        else line
        for line in lines
    ]


def expected_lines(case: Path) -> Lines:
    """What is committed beside the shards."""
    text = (case / "expected.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_the_corpus_is_there_and_small() -> None:
    assert [case.name for case in CASES] == [
        "codecs",
        "damaged",
        "element_types",
        "indexed",
        "records",
        "samples",
        "two_shards",
    ]
    size = sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file())
    assert 40_000 < size < 200_000
    kinds = {line[0] for case in CASES for line in expected_lines(case)}
    assert kinds == set(ORDER) - {"missing"}


def test_the_documentation_shows_the_reference_decoders() -> None:
    root = Path(__file__).parents[3]
    code = (root / "tests/python/helpers/reference_codecs.py").read_text()
    code = code.split("# [begin]\n")[1].split("# [end]")[0].strip()
    shown = textwrap.indent(code, "    ")
    assert shown in (root / "docs/format.md").read_text()


def test_the_corpus_holds_every_form_of_the_codecs() -> None:
    data = (CORPUS / "codecs" / "train-0-1" / "000001.tds").read_bytes()
    forms = set()
    for at in range(128, len(data), 64):
        if data[at : at + 6] != b"TDR1\x04\x00":
            continue
        n_chunks, start = struct.unpack_from("<II", data, at + 64 + 32)
        chunk = at + 64 + start
        for i in range(n_chunks):
            entry = at + 64 + 64 + 16 * i
            length, _, codec, flags = struct.unpack_from("<IIBB", data, entry)
            if codec in (3, 4):
                forms.add((codec, data[chunk], data[chunk + 1], flags))
            chunk += length
    codec, form, width, flags = (set(column) for column in zip(*forms, strict=True))
    assert codec == {3, 4}
    assert form == {0, 1, 3}
    assert width == {1, 2, 4, 8}
    assert flags == {0, 1}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_reference_reader_reads_the_corpus(case: Path) -> None:
    assert reference_lines(writer_directory(case)) == expected_lines(case)


@pytest.mark.parametrize("use_caches", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_core_reads_the_corpus(case: Path, use_caches: bool) -> None:
    lines = core_lines(writer_directory(case), use_caches=use_caches)
    assert lines == with_type_names(expected_lines(case))


@pytest.mark.parametrize("at", range(300, 10_000, 237))
def test_both_readers_agree_on_damaged_shards(at: int, tmp_path: Path) -> None:
    directory = tmp_path / "train-3-2"
    shutil.copytree(CORPUS / "records" / "train-3-2", directory)
    data = bytearray((directory / "000001.tds").read_bytes())
    data[at] ^= 0x20
    (directory / "000001.tds").write_bytes(bytes(data))
    lines = reference_lines(directory)
    assert core_lines(directory, use_caches=False) == with_type_names(lines)
